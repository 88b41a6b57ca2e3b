"""Tests the deployed learner on every mega-batch before it is trained on, and asks the schedule whether to train."""
from typing import Any

import jax
import numpy as np

from alma_jax.data import normalization, schedule
from alma_jax.learners import prediction
from alma_jax.learners.contract import Learner, LearnerState
from alma_jax.parallel import sharding
from alma_jax.problems import classification
from alma_jax.protocols.contract import State
from alma_jax.store import metrics

_MOST_AT_ONCE = 64  # mega-batches whose predictions are computed together


class Prequential:
  """The *prequential* metric of every mega-batch after the first training, which needs no test set.

  Learners that freeze their members are only tested if the schedule is adaptive, there is no test set, or drift is
  watched: all members have to predict every mega-batch, which may take longer than the training.
  """

  def __init__(self, config: Any, source: Any):
    """`source`: see problems.contract.Source."""
    self._config, self._source, self._schedule = config, source, config.stream.schedule
    self._key = f"prequential_{source.problem.metric}"
    self._always = not self._schedule.is_fixed or not source.has_test or config.log.drift > 0
    self._sizes: list[int] = []  # numbers of examples that the prequential metric of each mega-batch is a mean over
    self._known: dict[int, metrics.Entry] = {}  # what is known of later mega-batches, by the deployed learner
    self._deployed: LearnerState | None = None

  def test(self, t: int, learner: Learner, state: State) -> metrics.Entry:
    """The metrics of the deployed learner on mega-batch t, and for drift in text the deviation of its losses.

    Its predictions for the next mega-batches are computed at the same time, because they do not change until the next
    training. Nothing looks at them before their time.
    """
    if not state.ends or not (self._always or not learner.freezes):
      return {self._key: None}
    if state.learner is not self._deployed:
      self._known, self._deployed = {}, state.learner
    if t not in self._known:
      num, schedule = self._source.megabatches.num, self._schedule
      # As many as were needed so far, where nobody knows when the learner is trained next.
      last = t + len(self._known)
      if schedule.is_fixed:
        last = schedule.next(t, self._config.stream.num_megabatches) or num
      self._known |= self._tested(range(t, min(last, t + _MOST_AT_ONCE - 1, num) + 1), learner, state)
    return dict(self._known[t])

  def decided(self, t: int, learner: Learner, state: State, notes: metrics.Entry, price: float) -> schedule.Decision:
    """The decision after mega-batch t; `notes`: what `test` returned, `price`: of a multiply-add."""
    values = [line.get(self._key) for line in state.lines] + [notes[self._key]]
    while len(self._sizes) < t:
      self._sizes.append(len(self._source.tested(len(self._sizes) + 1)))
    return schedule.decide(state.ends, values, self._sizes[:t], price_per_mac=price,
                           macs=self._macs(t, learner, state))

  def _tested(self, span: range, learner: Learner, state: State) -> dict[int, metrics.Entry]:
    source, problem = self._source, self._source.problem
    parts = [source.tested(t) for t in span]
    held, index = source.select(np.concatenate(parts), learner.mesh)
    pool, index = problem.load(held, index)
    pool = pool if pool is held else sharding.put(pool, learner.mesh)
    if source.constants is not None:
      pool = classification.renormalized(pool, normalization.of_entries(state.meta), learner.mesh)
    answers, start = prediction.of_pool(learner, problem, state.learner, pool, index), 0
    values: dict[int, metrics.Entry] = {}
    for t, part in zip(span, parts):
      here = slice(start, start + len(part))
      answer = jax.tree.map(lambda leaf, here=here: np.asarray(leaf)[here], answers)
      values[t] = source.score_training(answer, part)
      start += len(part)
    return values

  def _macs(self, t: int, learner: Learner, state: State) -> float:
    """Multiply-adds of a training after mega-batch t: as in the last training, in proportion to its examples."""
    config, sizes = self._config, self._source.memory.sizes((*state.ends, t))
    plans = [config.train.plan(int(num), float(share)).samples for num, share in zip(sizes.train, sizes.share)]
    trained = [entry for entry in state.lines if entry["updated"]]
    if not trained:
      return learner.cost(state.learner).fwd_macs * plans[-1] * config.num_candidates
    return (trained[-1]["fwd_macs"] - trained[-1]["growth_macs"]) * plans[-1] / plans[-2]
