"""The arrival of a mega-batch: the deployed learner is tested on it, and the schedule decides whether to train."""
from typing import Any

import jax
import numpy as np

from alma_jax.config import sections
from alma_jax.data import schedule
from alma_jax.learners import contract, prediction, tuned
from alma_jax.parallel import sharding
from alma_jax.problems import classification, sequence
from alma_jax.runs import settings
from alma_jax.runs.snapshot import RunState
from alma_jax.store import metrics

_MOST_AT_ONCE = 64  # mega-batches whose predictions are computed together


class Arrivals:
  """The mega-batches of a run, in their order.

  Before a mega-batch is used, the deployed learner predicts it: its *prequential* error needs no test set. It is logged
  for every mega-batch after the first training. Learners that freeze their members are only tested if the schedule is
  adaptive, there is no test set, or drift is watched: all members have to predict every mega-batch, which may take
  longer than the training. A task that has just arrived has no head, and is not predicted.

  Attributes:
    metric: name of the prequential metric in metrics.jsonl.
  """

  def __init__(self, setting: settings.Setting, stages: settings.Stages):
    """`stages`: of the run."""
    self._setting, self._stream, self._stages = setting, setting.stream, stages
    self._adaptive = self._stream.is_adaptive
    self._tests = not isinstance(setting.source, sequence.Tasks) and (
        self._adaptive or not setting.learner.freezes or not setting.source.has_test or setting.config.log.drift > 0)
    self.metric = f"prequential_{setting.source.problem.metric}"
    self._sizes: list[int] = []  # numbers of examples that the prequential metric of each mega-batch is a mean over
    self._known: dict[int, metrics.Entry] = {}  # prequential values of the deployed learner
    self._deployed: contract.LearnerState | None = None

  def next(self, now: RunState) -> tuple[bool, metrics.Entry]:
    """Whether the learner is trained after the next mega-batch, and what its line of metrics.jsonl says about it.

    Args:
      now: the state of the run, between two stages.
    """
    t, ends = len(now.lines) + 1, now.ends
    entry: metrics.Entry = {self.metric: None} | (self._tested(now, t) if ends and self._tests else {})
    if not self._adaptive:
      return self._stream.trains_after(t), entry
    values = [line.get(self.metric) for line in now.lines] + [entry[self.metric]]
    source = self._setting.source
    assert not isinstance(source, sequence.Tasks)  # whose tasks are all trained
    while len(self._sizes) < t:
      self._sizes.append(len(source.tested(len(self._sizes) + 1)))
    adaptive = self._setting.config.stream.schedule
    assert isinstance(adaptive, sections.Adaptive)
    decision = schedule.decide(ends, values, self._sizes[:t], price_per_mac=adaptive.price,
                               macs=self._macs(now, t))
    return decision.train, entry | _logged(decision)

  def _tested(self, now: RunState, t: int) -> metrics.Entry:
    """The metrics of the deployed learner on mega-batch t, and for drift in text the deviation of its losses.

    Its predictions for the next mega-batches are computed at the same time, because they do not change until the next
    training. Nothing looks at them before their time.
    """
    if now.learner is not self._deployed:
      self._known, self._deployed = {}, now.learner
    if t not in self._known:
      num = self._stream.num_megabatches
      last = t + len(self._known) if self._adaptive else self._stream.next_training(t) or num
      self._known |= self._tested_together(now, range(t, min(last, t + _MOST_AT_ONCE - 1, num) + 1))
    return self._known[t]

  def _tested_together(self, now: RunState, span: range) -> dict[int, metrics.Entry]:
    learner, source, state = self._setting.learner, self._setting.source, now.learner
    assert not isinstance(source, sequence.Tasks)
    problem: Any = source.problem
    parts = [source.tested(t) for t in span]
    held, index = self._stages.select(np.concatenate(parts))
    pool, index = problem.load(held, index)
    pool, total = pool if pool is held else sharding.put(pool, learner.mesh), None
    pool = classification.renormalized(pool, source, now.constants, learner.mesh)
    for block in range(learner.num_blocks(state)):
      total = problem.join(total, prediction.contributions(learner, problem, state, block, pool, index))
    found, start = learner.resolve(state, total or {}), 0
    values: dict[int, metrics.Entry] = {}
    for t, part in zip(span, parts):
      here = slice(start, start + len(part))
      answer = jax.tree.map(lambda leaf, here=here: np.asarray(leaf)[here], found)
      values[t] = source.score_training(answer, part)
      start += len(part)
    return values

  def _macs(self, now: RunState, t: int) -> float:
    """Multiply-adds of a training after mega-batch t: those of the last training, for as many examples as it has."""
    config, sizes = self._setting.config, self._stream.sizes((*now.ends, t))
    plans = [config.train.plan(int(num), float(share)).samples for num, share in zip(sizes.train, sizes.share)]
    trained = [entry for entry in now.lines if entry["updated"]]
    if not trained:
      return self._setting.learner.cost(now.learner).fwd_macs * plans[-1] * tuned.num_candidates(config)
    return (trained[-1]["fwd_macs"] - trained[-1]["growth_macs"]) * plans[-1] / plans[-2]


def _logged(decision: schedule.Decision) -> metrics.Entry:
  """What metrics.jsonl says about a decision."""
  floor, scale, exponent = decision.law or (None, None, None)
  return dict(law_floor=floor, law_scale=scale, law_exponent=exponent, regret=decision.regret,
              training_price=decision.price)
