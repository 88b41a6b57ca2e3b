"""Chooses learning rate and dropout by validation perplexity if the config lists several (§5).

Every stage is trained once with each combination, always from the same start, and the best result is kept. All
trainings count in Comp. A training that diverges goes on to its end, so that its cost does not depend on when the
divergence is noticed; its result is not considered.
"""
import dataclasses
import math
from collections.abc import Callable
from typing import Any

from alma_jax.errors import Diverged
from alma_jax.learners.contract import Context, GrowthReport, Learner, LearnerState, StageResult
from alma_jax.parallel import sharding
from alma_jax.training import loop
from alma_jax.types import Cost, Variables

_FRESH = dict(next=0, val=None, best=0, samples=0, growth=[0, None], diverged=[])
_BEST, _OWN = "best.", ("tuning", "chosen")


def num_tried(state: LearnerState) -> int:
  """Number of finished trainings in the stage in progress."""
  return state.host["tuning"]["next"] if "tuning" in state.host else 0


class Tuned:
  """A learner whose stages are trained by the learner of each candidate in turn.

  Between two trainings of a stage (`spec["tuning"]`), `live` holds what all candidates start from and the best result
  so far; entries of `host` whose names begin with "best." are those of the best result. `host["tuning"]` says which
  candidate is next, `host["chosen"]` what was chosen at the stages before.
  """

  def __init__(self, context: Context, factory: Callable[[Context], Learner]):
    """`factory` makes the learner of a candidate."""
    self._config = context.config
    configs = context.config.candidates
    self._learners = [factory(dataclasses.replace(context, config=config)) for config in configs]
    self._notes = [_notes(config) for config in configs]
    inner = self._inner = self._learners[0]
    self.mesh, self.freezes, self.shapes_recur = inner.mesh, inner.freezes, inner.shapes_recur
    self.num_blocks, self.contribution, self.resolve = inner.num_blocks, inner.contribution, inner.resolve
    self.padded_contribution, self.packed, self.router = inner.padded_contribution, inner.packed, inner.router
    self.planned_cost = inner.planned_cost

  def init(self) -> LearnerState:
    state = self._inner.init()
    return state._replace(spec={**state.spec, "tuning": False}, host={**state.host, "tuning": _FRESH, "chosen": []})

  def grow(self, state: LearnerState, data: loop.StageData) -> tuple[LearnerState, GrowthReport]:
    if state.spec["tuning"]:
      return state, GrowthReport(*state.host["tuning"]["growth"])
    grown, report = self._inner.grow(state, data)
    tuning = {**state.host["tuning"], "growth": [report.macs, report.flops]}
    report = report._replace(repeat=report.repeat or grown is state)
    return grown._replace(host={**grown.host, "tuning": tuning}), report

  def training(self, state: LearnerState, data: loop.StageData) -> loop.Training:
    number = state.host["tuning"]["next"]
    training = self._learners[number].training(self._start(state), data)
    return dataclasses.replace(training, notes=self._notes[number], may_diverge=True)

  def largest_training(self, state: LearnerState, data: loop.StageData) -> loop.Training:
    return self._inner.largest_training(self._start(state), data)

  def only_network(self, state: LearnerState) -> Variables | None:
    return self._inner.only_network(state)

  def finish(self, state: LearnerState, data: loop.StageData, trained: loop.Trained) -> StageResult:
    t, begun = dict(state.host["tuning"]), self._start(state)
    result = self._learners[t["next"]].finish(begun, data, trained)
    val, samples = float(sharding.agree(result.report.val)), t["samples"] + result.report.samples
    if not math.isfinite(val):
      t["diverged"] = [*t["diverged"], t["next"]]
    if math.isfinite(val) and (t["val"] is None or val < t["val"]):
      t, best = {**t, "best": t["next"], "val": val}, result.state
    else:
      best = _best(state) if t["next"] else begun._replace(average=None)  # its shapes may be those before a growth
    t = {**t, "next": t["next"] + 1, "samples": samples}
    report = result.report._replace(samples=samples, val=t["val"])
    if t["next"] < len(self._learners):
      host = begun.host | {_BEST + name: value for name, value in best.host.items() if name not in _OWN}
      return StageResult(begun._replace(spec={**begun.spec, "tuning": True}, host={**host, "tuning": t},
                                        live={"start": begun.live, "best": best.live}, average=best.average),
                         report, complete=False)
    if t["val"] is None:
      raise Diverged(f"all of train.learning_rate={self._config.train.learning_rate} diverged in stage "
                     f"{data.stage + 1}; lower them.")
    host = {**best.host, "tuning": _FRESH, "chosen": [*state.host["chosen"], [t["best"], t["diverged"]]]}
    after = begun._replace(spec={**begun.spec, "tuning": False}, live=best.live, host=host, average=best.average)
    return StageResult(after, report)

  def cost(self, state: LearnerState) -> Cost:
    return self._inner.cost(self._start(state))

  def describe(self, state: LearnerState) -> str:
    name = lambda i: "learning rate {peak_lr:g}, dropout {dropout:g}".format(**self._notes[i])
    lines = [f"stage {stage}: {name(best)}" + "".join(f"; diverged: {name(i)}" for i in diverged)
             for stage, (best, diverged) in enumerate(state.host["chosen"])]
    return "\n".join([self._inner.describe(state), *lines])

  def template(self, spec: dict[str, Any]) -> LearnerState:
    state = self._inner.template(spec)
    return state._replace(live={"start": state.live, "best": state.live}) if spec["tuning"] else state

  def _start(self, state: LearnerState) -> LearnerState:
    """The state that the next candidate is trained from."""
    if not state.spec["tuning"]:
      return state
    return state._replace(live=state.live["start"], host=_without_best(state.host), average=None)


def _best(state: LearnerState) -> LearnerState:
  """The best result so far, between two trainings of a stage."""
  kept = {name.removeprefix(_BEST): value for name, value in state.host.items() if name.startswith(_BEST)}
  return state._replace(live=state.live["best"], host=_without_best(state.host) | kept)


def _without_best(host: dict[str, Any]) -> dict[str, Any]:
  return {name: value for name, value in host.items() if not name.startswith(_BEST)}


def _notes(config: Any) -> dict[str, float]:
  """The entries by which a candidate's lines of train.jsonl are recognised."""
  (rate,), (dropout,) = config.train.learning_rate, config.model.dropout
  return dict(peak_lr=rate, dropout=dropout)
