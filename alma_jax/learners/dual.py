"""dual: one network replays the old data that still hold, another learns the newest data (docs/changing-streams.md).

Every stage trains the *fast* network on the new data and a few mega-batches before them, then the *slow* network on new
and old data. If the fast network errs much more on the new data than it did on the last, the data have changed, and it
replays nothing from before. It then goes on from the slow network if that one already knows the new data. Otherwise, if
the new inputs look unlike the last ones, it starts afresh. If, after its training, it is significantly better than the
slow network, or new and not significantly worse, the slow one goes on from its weights.

With `stream.memory_policy=agreement`, the fast network also judges the old mega-batches. An old mega-batch contradicts
the new data if it looks like them, but the fast network gets many more of its labels wrong. The slow network does not
see it until later data agree with it again. It sees at most UNLIKE times as many old examples that look unlike the new
ones as other examples.
"""
import dataclasses
from typing import Any, ClassVar

import jax
import numpy as np

from alma_jax import keys
from alma_jax.config import sections, stream
from alma_jax.config.fields import field
from alma_jax.config.registry import IMAGES, register
from alma_jax.errors import BadInput
from alma_jax.learners import agreement, prediction, stacked
from alma_jax.learners.contract import GrowthReport, LearnerState, StageResult
from alma_jax.models import cost
from alma_jax.parallel import sharding
from alma_jax.training import loop, optimizers
from alma_jax.types import Cost, Variables

SLOW, FAST, NEW = 0, 1, 2
TESTS = 8  # one in TESTS new examples tests both networks, before the slow one is trained on it
SHOWING = 128  # new examples tested for a change, at most; with many more, ordinary differences look like one
KNOWN = 4 * SHOWING  # new examples since the last change whose errors are compared with those of old ones, at most
MOST_RECENT = 0.5  # of a batch of the fast network
SPANS = 64  # groups of old mega-batches that are judged, at most
LEAST, FEW, MOST = 24, 4, 32  # examples that decide about a span and its neighbours; and the fewest, the most of one
NEAR = 2  # a span is judged with at least 2 * NEAR neighbours
ENOUGH = 12  # new examples, and old ones, that can show that inputs look new
UNLIKE = 1 / 3  # most old examples that look unlike the new ones, for each other example of the slow network


@register
@dataclasses.dataclass(frozen=True)
class Options(sections.Options):
  """Two networks for data that change: one replays the old data that still hold, one learns the newest data."""
  name: str = "dual"
  fast_share: float = field(0.4, "share of a stage's steps that train the fast network", above=0, below=1)
  judged_share: float = field(
      0.15, "share of a stage's forward passes that test both networks and, with `stream.memory_policy=agreement`, "
      "judge old data", above=0, below=1)
  new_share: float = field(0.4, "least share of new examples in a batch of the slow network", above=0, at_most=1)
  recent: int = field(
      4, "how many of the newest old mega-batches the fast network replays; none from before a change", at_least=0)

  problems: ClassVar[tuple[str, ...]] = (IMAGES,)
  defaults: ClassVar = {"stream.replay_share": "uniform", "stream.memory_policy": "agreement"}
  judges: ClassVar[bool] = True
  batches: ClassVar[tuple[int, ...]] = (16,)  # measured: docs/results/drift

  @property
  def num_networks(self) -> int:
    return 2

  def make(self, context: Any) -> Any:
    return Dual(context)

  def check(self, config: Any) -> None:
    super().check(config)
    if self.fast_share + self.judged_share >= 1:
      raise BadInput(f"learner.fast_share={self.fast_share} and learner.judged_share={self.judged_share} leave nothing "
                     "for the slow network; lower one of them, so that they sum to less than 1.")


class Dual(stacked.Stacked):
  """`live` has the slow network and the fast one; a prediction is the mean of their probabilities.

  The slow network's batches mix new examples and those of the memory in proportion to their numbers, but at least
  `new_share` is new.

  Between stages, `host` has:
  - `wrong`: whether the fast network erred on each test example after its training, and on other new ones before it,
    unless the data had changed or it erred much more before; bool [n]
  - `known`: such errors of all stages since the last change, newest first; bool [n], n at most KNOWN
  - `since`: the first mega-batch after the last change, from 1
  - `origin`: the network whose weights the slow one started from
  - `weights`: the share of each span of old mega-batches that the slow network sees, [spans]. A span is `span`
    mega-batches, so that there are at most SPANS spans, and fewer in short stages.
  Within a stage it also has `passes`, the forward passes of testing and judging so far, `slow_wrong`, whether the slow
  network erred on each test example, `before`, whether the fast one erred on new examples before its training,
  `changed`, whether it noticed a change, and `start`, the network whose weights it starts from; and then `samples`, the
  number of examples that trained the fast network.
  """
  combine = "probabilities"

  def __init__(self, context: Any):
    super().__init__(context)
    self._policy: stream.Policy = context.config.stream.memory_policy

  def num_members(self, spec: dict[str, Any]) -> int:
    return self.options.num_networks

  def grow(self, state: LearnerState, data: loop.StageData) -> tuple[LearnerState, GrowthReport]:
    host, (new, num, most) = {"passes": 0, **state.host}, self._tests(data)
    if num:
      host |= (self._compared(state, data, new[:num]) if "samples" in host else
               self._noticed(state, data, new[:most], num))
    # It is repeated because a grown state is saved without its average.
    return state._replace(host=host), GrowthReport(host["passes"] * self.cost(state).fwd_macs, repeat=True)

  def training(self, state: LearnerState, data: loop.StageData) -> loop.Training:
    made, plan = super().training(state, data), self._plan(data)
    start = made.variables
    if "samples" in state.host:  # by the fast network, which has been trained
      origin, seen = state.host.get("origin", SLOW), self._slow_data(state, data)
      steps = (plan.samples - state.host["samples"] - state.host["passes"]) * plan.steps / plan.samples
    else:
      origin, seen = state.host.get("start", FAST), self._fast_data(state, data)
      steps = self.options.fast_share * plan.steps
      if origin == NEW:
        origin, start = FAST, self.fresh(data.stage, state.spec)
      elif origin == SLOW:
        start = state.predicting  # as it was tested
    return dataclasses.replace(made, spec=dataclasses.replace(made.spec, num_members=1), steps=max(1, round(steps)),
                               variables=self.take(start, [origin]),
                               data=seen._replace(val=data.val[:data.num_new_val]))

  def largest_training(self, state: LearnerState, data: loop.StageData) -> loop.Training:
    made = super().training(state, data)
    one = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((1, *leaf.shape[1:]), leaf.dtype), made.variables)
    return dataclasses.replace(made, spec=dataclasses.replace(made.spec, num_members=1), variables=one)

  def finish(self, state: LearnerState, data: loop.StageData, trained: loop.Trained) -> StageResult:
    report, host = trained.report, dict(state.host)
    if "samples" not in host:  # the fast network goes on from its average
      host = {key: value for key, value in host.items() if key not in ("weights", "origin", "wrong")}
      host["samples"] = report.samples
      live, average = (each and self._with(each, FAST, trained.variables) for each in (state.live, state.average))
      return StageResult(state._replace(live=live, host=host, average=average), report, complete=False)
    samples, *_ = host.pop("samples"), host.pop("passes"), host.pop("slow_wrong", None), host.pop("before", None)
    notes = {"changed": host.pop("changed", False), "fast_from": ("slow", "fast", "new")[host.pop("start", FAST)],
             "slow_from_fast": host.get("origin") == FAST}
    if "weights" in host:
      notes |= {"memory_weights": np.round(host["weights"], 3).tolist(), "memory_span": host["span"]}
    last = trained.variables if trained.last is None else trained.last
    live = self._with(state.live, SLOW, last)
    average = None if trained.last is None else self._with(live, SLOW, trained.variables)
    return StageResult(state._replace(live=live, host=host, average=average),
                       report._replace(samples=report.samples + samples), notes=notes)

  def cost(self, state: LearnerState) -> Cost:
    network = self.network(state.spec)
    macs, flops = cost.forward_macs(network, self._shape), optimizers.flops(
        self.context.config.train, network, self._shape)
    return super().cost(state)._replace(fwd_macs=macs, train_flops=flops)

  def describe(self, state: LearnerState) -> str:
    weights = state.host.get("weights")
    left_out = "" if weights is None else f", {int((weights < 0.5).sum())} of {len(weights)} old parts left out"
    follows = ", from which the slow one started again" if state.host.get("origin") == FAST else ""
    return f"a slow network and a fast one{follows}{left_out}"

  # --------------------------------------------------------------------- what the two networks see

  def _plan(self, data: loop.StageData) -> Any:
    """The sections.Plan of all of a stage."""
    return self.context.config.train.plan(len(data.train), data.share, data.grown)

  def _tests(self, data: loop.StageData) -> tuple[np.ndarray, int, int]:
    """(the new examples int32 [n] in random order; how many from the start are test examples; and tested for a change).

    The test examples do not train the fast network. Those tested for a change are tested before its training.
    """
    order = keys.rng(data.seed, keys.JUDGED, data.stage, 0).permutation(data.train[:data.num_new])
    # Half of the passes are for both networks before the training and one after it; a change takes at most a fourth.
    looks = self.options.judged_share * self._plan(data).samples / self.context.num_views / 2
    num = min(-(-len(order) // TESTS), max(1, int(looks / 3))) if len(order) > 1 else 0
    return order, num, int(np.clip((looks - num) / 2, num, max(num, min(SHOWING, len(order)))))

  def _fast_data(self, state: LearnerState, data: loop.StageData) -> loop.StageData:
    """The stage without the examples that test, and with the recent part of its memory."""
    new, num, _ = self._tests(data)
    seen, newest = new[num:], data.memory_from.max(initial=0)
    recent = data.memory_from >= max(state.host.get("since", 1), newest + 1 - self.options.recent)
    share = min(recent.sum() / (recent.sum() + len(seen)), MOST_RECENT)
    return data._replace(train=seen, num_new=len(seen), memory=data.memory[recent],
                         memory_from=data.memory_from[recent], share=float(share))

  def _slow_data(self, state: LearnerState, data: loop.StageData) -> loop.StageData:
    """The stage with the part of its memory that agrees with the new data."""
    if not len(data.memory):
      return data
    memory, born, weights = data.memory, data.memory_from, state.host.get("weights")
    if weights is not None:
      number = keys.rng(data.seed, keys.JUDGED, data.stage, 1).random(len(memory))
      stays = number < weights[(born - 1) // state.host["span"]]
      memory, born = memory[stays], born[stays]
    share = data.share * len(memory) / (data.share * len(memory) + (1 - data.share) * len(data.memory))
    return data._replace(memory=memory, memory_from=born, share=min(share, 1 - self.options.new_share))

  def _noticed(self, state: LearnerState, data: loop.StageData, new: np.ndarray, num: int) -> dict[str, Any]:
    """What `host` gets before the fast network is trained; the first `num` of `new` test both networks."""
    if not data.stage:
      return {}
    (looks, fast), (_, slow) = (self._looked(state, member, data, new) for member in (FAST, SLOW))
    found: dict[str, Any] = {"passes": 2 * self.context.num_views * len(new), "slow_wrong": slow[:num]}
    if "wrong" not in state.host or not agreement.risen(fast, state.host["wrong"]):
      return found | {"before": fast}
    newest = data.memory_from.max(initial=0)
    found |= {"changed": True, "since": int(newest) + 1}
    last = keys.rng(data.seed, keys.JUDGED, data.stage, 3).permutation(data.memory[data.memory_from == newest])
    num = min(len(last), len(new), MOST)
    if agreement.surpasses(slow, fast):
      found["start"] = SLOW
    elif num >= ENOUGH:
      found["passes"] += self.context.num_views * num
      old_looks, _ = self._looked(state, FAST, data, last[:num])
      found["start"] = NEW if agreement.alike(old_looks, looks[:num]) < 0.5 else FAST
    return found

  def _compared(self, state: LearnerState, data: loop.StageData, test: np.ndarray) -> dict[str, Any]:
    """What `host` gets once the fast network is trained: what the slow one starts from and replays."""
    looks, fast = self._looked(state, FAST, data, test)
    views = self.context.num_views
    found = {"wrong": fast, "passes": state.host.get("passes", 0) + views * len(test)}
    if "before" in state.host and not agreement.risen(state.host["before"], fast):  # else they say nothing about it now
      found["wrong"] = np.concatenate([fast, state.host["before"][len(test):]])
    earlier = [] if state.host.get("changed") else state.host.get("known", [])
    found["known"] = np.concatenate([found["wrong"], earlier])[:KNOWN].astype(bool)
    if data.stage:
      slow, is_new = state.host["slow_wrong"], state.host.get("start") == NEW
      is_better, is_worse = agreement.surpasses(fast, slow), agreement.surpasses(slow, fast)
      found["origin"] = FAST if is_better or (is_new and not is_worse) else SLOW
    if self._policy.judged and len(data.memory):
      left = (self.options.judged_share * self._plan(data).samples - found["passes"]) / views
      found["span"], most = 1, np.clip(left / FEW, 1, SPANS)
      while -(-int(data.memory_from.max()) // found["span"]) > most:
        found["span"] *= 2
      place = (data.memory_from - 1) // found["span"]
      first = -(-(state.host.get("since", 1) - 1) // found["span"])
      found["weights"], judged = self._judged(state, data, place, first, left, looks, found["known"])
      found["passes"] += views * judged
    return found

  def _judged(self, state: LearnerState, data: loop.StageData, place: np.ndarray, first: int, most: float,
              new_looks: np.ndarray, new_wrong: np.ndarray) -> tuple[np.ndarray, int]:
    """(the share of each span of old mega-batches that the slow network sees, float64 [S]; the examples looked at).

    Args:
      place: int [m], the span of each example of the memory.
      first: the first span that begins after the last change; earlier ones are no neighbours of later ones.
      most: how many examples it may look at, unless the spans need more.
      new_looks: small copies of new examples, float32 [h, D].
      new_wrong: bool [n], whether the fast network erred on examples since the last change.
    """
    spans, rng = np.arange(place.max() + 1), keys.rng(data.seed, keys.JUDGED, data.stage, 2)
    num = int(np.clip(most / len(spans), FEW, MOST))
    drawn = [rng.permutation(data.memory[place == i])[:num] for i in spans]
    own = np.repeat(spans, list(map(len, drawn)))
    looks, wrong = self._looked(state, FAST, data, np.concatenate(drawn))
    reach = max(NEAR, int(np.ceil((LEAST / num - 1) / 2)))
    kept, likeness = np.ones((2, len(spans)))
    for i in spans:
      low = first * (i >= first)
      side = np.flatnonzero((own >= first) == (i >= first))
      near = rng.permutation(side[agreement.window(wrong[side], own[side] - low, i - low, reach)])
      if len(near):
        num = min(len(near), len(new_looks), MOST)  # as many of each, or neighbours from one set are no surprise
        likeness[i] = agreement.alike(looks[near[:num]], new_looks[:num])
        kept[i] = 1 - agreement.contradicts(wrong[near], new_wrong) * likeness[i]
    stay = kept * np.bincount(place)
    unlike, others = (stay * (1 - likeness)).sum(), (stay * likeness).sum() + data.num_new
    return kept * (likeness + (1 - likeness) * min(1, UNLIKE * others / max(unlike, 1))), len(own)

  def _looked(self, state: LearnerState, member: int, data: loop.StageData,
              which: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(small copies of examples `which` float32 [n, D], whether a network errs on them bool [n])."""
    one, network = self.take(state.predicting, [member]), self.network(state.spec)

    def look(inputs: Any) -> Any:
      joined = stacked.contribute(network, self._problem, self.mesh, self.combine, one, inputs)
      return {**joined, "small": agreement.small(inputs)}

    pool, index = self._problem.load(data.pool, which)
    pool = pool if pool is data.pool else sharding.put(pool, self.mesh)
    found = prediction.in_batches(look, self._problem, self.mesh, pool, index)
    labels = np.asarray(pool.y)[index]  # on the host: their number differs from stage to stage
    return np.asarray(found["small"]), np.asarray(found["sum"].argmax(-1) != labels)

  def _with(self, variables: Variables, which: int, one: Variables) -> Variables:
    """Stacked variables with another member `which`; `one` has a single member."""
    def put(all_: Any, new: Any) -> Any:
      return np.concatenate([all_[:which], new, all_[which + 1:]])

    return sharding.put(jax.tree.map(put, *sharding.fetch((variables, one))), self.mesh)
