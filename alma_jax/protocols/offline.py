"""Mega-batches that are all there before the run begins (Caccia et al., 2021; docs/algorithms.md §1)."""
import functools
from collections.abc import Generator, Iterator, Sequence
from typing import Any, ClassVar

import jax
import numpy as np

from alma_jax import extras
from alma_jax.config.stream import Schedule
from alma_jax.data import normalization, schedule
from alma_jax.learners import prediction
from alma_jax.learners.contract import Learner, LearnerState
from alma_jax.parallel import sharding
from alma_jax.parallel.sharding import say
from alma_jax.problems import changing, classification, contract, language_modeling
from alma_jax.protocols import drift
from alma_jax.protocols.contract import Arrival, Facts, Joined, Prepared, Protocol, Sizes, State, TrainedStage
from alma_jax.store import metrics
from alma_jax.store.metrics import Entry

_MOST_AT_ONCE = 64  # mega-batches whose predictions are computed together


class Offline(Protocol):
  """A permuted data set in B mega-batches, and a fixed test set.

  Attributes:
    source: what the mega-batches are cut from, see problems.contract.Source; of the class `Source`.
    schedule: when the learner is trained.
  """
  Source: ClassVar[Any]
  source: contract.Source
  schedule: Schedule

  def __init__(self, config: Any, source: Any):
    self.config, self.source, self.schedule = config, source, config.stream.schedule
    self.files, self.fingerprint = source.files, source.fingerprint
    self.measure = metrics.Measure(source.problem.metric, not source.has_test)
    self._prequential = Prequential(self)
    if config.log.drift:
      extras.need(f"log.drift={config.log.drift}", "river")
    self._detector: drift.Detector | None = None
    self._test: tuple[Any, Any, Any] | None = None  # (source.test_at, pool of test examples, its constants)

  # ------------------------------------------------------------------------ what a learner and a run are made from

  @classmethod
  def of_meta(cls, config: Any, meta: Entry) -> Facts:
    return Facts(*cls.Source.of_meta(config, meta))

  def facts(self, ends: Sequence[int]) -> Facts:
    return self._facts

  @functools.cached_property
  def _facts(self) -> Facts:
    return Facts(self.source.problem, self.source.example_shape,
                 self.source.memory.most_val(self.expected_ends if self.schedule.is_fixed else None), self._num_first)

  def meta(self, ends: Sequence[int]) -> Entry:
    return self.source.meta(ends)

  @property
  def num_bytes(self) -> tuple[int, int]:
    return self.source.num_bytes

  def sizes(self) -> Sizes:
    sizes: Sizes = self.source.memory.sizes(self.expected_ends)
    return sizes._replace(exact=self.schedule.is_fixed)

  @property
  def expected_ends(self) -> tuple[int, ...]:
    """The last mega-batch of each stage; a guess if the schedule is not fixed."""
    return self.config.stream.expected_ends

  @property
  def _num_first(self) -> int:
    return int(self.source.memory.sizes(self.expected_ends[:1]).train[0])

  # ------------------------------------------------------------------------ the life of a stream

  def arrivals(self, lines: list[Entry]) -> Generator[int | None, None, None]:
    while len(lines) < self.source.megabatches.num:
      yield len(lines) + 1

  def decide(self, t: int, learner: Learner, state: State) -> Arrival:
    notes = self._prequential.test(t, learner, state)
    trains, why = self.schedule.decide(t, self.config.stream.num_megabatches, lambda: self._is_last(t),
                                       lambda price: self._prequential.decided(t, learner, state, notes, price))
    notes |= why
    if self.config.log.drift:
      notes |= self._drift(t, state.lines, notes)
    if self.measure.is_prequential:
      value = notes[self.measure.key]
      notes[self.measure.metric] = self.source.untrained if value is None else value
    elif t == 1 and (untrained := self._untrained(learner, state)) is not None:
      notes[metrics.UNTRAINED] = untrained
    elif state.ends and not trains and self.source.test_at(t) != self.source.test_at(t - 1):
      notes |= self.test(learner, state, None)  # the last result is about another test set
    return Arrival(t, trains, notes)

  def _drift(self, t: int, lines: Sequence[Entry], notes: Entry) -> Entry:
    """What the line of mega-batch t says about drift; `lines`: of the mega-batches before, `notes`: of its own."""
    problem, tested = self.source.problem, lambda u: len(self.source.tested(u))
    if self._detector is None or self._detector.num_heard != t - 1:  # the run is resumed, or a line was taken back
      self._detector = drift.Detector(self.config.log.drift, f"prequential_{problem.metric}", problem.guessing_loss)
      for u, line in enumerate(lines[:t - 1], 1):
        self._detector.update(line, tested(u))
    alarm = self._detector.update(notes, tested(t))
    if alarm:
      before, after = (f"{alarm[name]:.{problem.decimals}f}" for name in (drift.BEFORE, drift.AFTER))
      say(f"drift at mega-batch {t}: the prequential {problem.metric} has risen from {before} to {after}")
    return alarm

  def stage(self, ends: Sequence[int], learner: Learner, meta: Entry) -> Prepared:
    data = self.source.load(self.source.memory.stage(ends), learner.mesh)
    before = self._constants(meta)
    if before is None:
      return Prepared(data)
    constants, changed = self.source.followed(before, ends)
    if changed:
      say(f"warning: stage {len(ends)} uses new normalisation constants, because the scale of the data has changed: "
          f"{normalization.described(before, constants, changed, len(self.source.example_shape) == 3)}")
    pool = classification.renormalized(data.pool, constants, learner.mesh)
    val_pool = pool if data.val_pool is data.pool else classification.renormalized(
        data.val_pool, constants, learner.mesh)
    return Prepared(data._replace(pool=pool, val_pool=val_pool), self.meta(ends) | constants.entries(),
                    {metrics.RENORMALIZED: changed} if changed else {})

  def _is_last(self, t: int) -> bool:
    return t == self.source.megabatches.num

  def test(self, learner: Learner, state: State, trained: TrainedStage | None) -> Entry:
    """Contributions of blocks that never change again are joined once, and kept.

    Thus a growing ensemble costs as much to evaluate at its 50th stage as at its 5th, unless the test set has changed.
    """
    if not self.source.has_test:
      return {}
    t = len(state.lines) + 1
    problem, pool = self.source.problem, self._test_pool(t, learner, state.meta)
    is_same = state.ends and self.source.test_at(state.ends[-1]) == self.source.test_at(t)
    total = prediction.joined(learner, problem, state.learner, pool, None, *(state.joined if is_same else Joined()))
    if trained is not None and learner.freezes:
      state.joined = Joined(total, learner.num_blocks(state.learner))
    return self.source.score(learner.resolve(state.learner, total), t)

  def _test_pool(self, t: int, learner: Learner, meta: Entry) -> Any:
    which = self.source.test_at(t)
    if self._test is None or self._test[0] != which:
      self._test = which, self.source.test_pool(learner.mesh, t), self.source.constants
    _, pool, before = self._test
    constants = self._constants(meta)
    if constants is not None and constants.entries() != before.entries():
      pool = classification.renormalized(pool, constants, learner.mesh)
      self._test = which, pool, constants
    return pool

  def _constants(self, meta: Entry) -> normalization.Normalization | None:
    """The normalisation constants of the learner with this `meta`; an untrained one uses the first stage's."""
    first: normalization.Normalization | None = self.source.constants
    return first if first is None or "mean" not in meta else normalization.of_entries(meta)

  def _untrained(self, learner: Learner, state: State) -> float | None:
    """The metric before the first training (docs/algorithms.md §1); None if it is unknown."""
    if self.source.untrained is not None or not self.source.problem.selects:
      return self.source.untrained
    return float(self.test(learner, state, None)[self.measure.metric])

  # ------------------------------------------------------------------------ what a run shows

  def summary(self, lines: list[Entry], initial_params: int) -> Entry:
    facts = {"chance": self.facts(metrics.ends(lines)).problem.chance, "num_test": self.source.num_test or None}
    return super().summary(lines, initial_params) | {name: it for name, it in facts.items() if it is not None}


class Images(Offline):
  """Images, or other arrays, of a data set."""
  Source = classification.Images

  def __init__(self, config: Any, data: Any = None, run: Any = None) -> None:
    del run
    super().__init__(config, self.Source(config, data))

  @classmethod
  def data_for_costs(cls, dataset: Any) -> Any:
    return dataset.blank() or dataset.load()

  @classmethod
  def entries(cls, config: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    source, num = cls.Source(config), config.stream.num_megabatches
    digits = max(4, len(str(num)))
    for t in range(1, num + 1):
      yield f"stream/{t:0{digits}}.npz", dict(zip("xy", source.arrays(t)))
    if len({source.test_at(t) for t in range(1, num + 1)}) == 1:
      yield "test.npz", dict(zip("xy", source.test_arrays(num)))


class Changing(Images):
  """A stream of images or vectors that changes, and a test set that follows it."""
  Source = changing.Changing

  @classmethod
  def data_for_costs(cls, dataset: Any) -> Any:
    return dataset.blank()


class Texts(Offline):
  """Texts of a data set."""
  Source = language_modeling.Texts

  def __init__(self, config: Any, data: Any = None, run: Any = None) -> None:
    del data, run
    super().__init__(config, language_modeling.Texts(config))


class Prequential:
  """Tests the deployed learner on every mega-batch before it is trained on: its *prequential* metric.

  Learners that freeze their members are only tested if the schedule is adaptive, there is no test set, drift is
  watched, or the stream is one that changes: all members have to predict every mega-batch, which may take longer than
  the training.
  """

  def __init__(self, protocol: Offline):
    """`protocol`: with its config, source and schedule."""
    self._protocol, self._source, self._schedule = protocol, protocol.source, protocol.schedule
    config, source = protocol.config, protocol.source
    self._key = f"prequential_{source.problem.metric}"
    self._always = (not self._schedule.is_fixed or not source.has_test or config.log.drift > 0 or
                    source.is_changing)
    self._sizes: list[int] = []  # numbers of examples that the prequential metric of each mega-batch is a mean over
    self._known: dict[int, Entry] = {}  # what is known of later mega-batches, by the deployed learner
    self._deployed: LearnerState | None = None

  def test(self, t: int, learner: Learner, state: State) -> Entry:
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
        last = schedule.next(t, self._protocol.config.stream.num_megabatches) or num
      self._known |= self._tested(range(t, min(last, t + _MOST_AT_ONCE - 1, num) + 1), learner, state)
    return dict(self._known[t])

  def decided(self, t: int, learner: Learner, state: State, notes: Entry, price: float) -> schedule.Decision:
    """The decision after mega-batch t; `notes`: what `test` returned, `price`: of a multiply-add."""
    values = [line.get(self._key) for line in state.lines] + [notes[self._key]]
    while len(self._sizes) < t:
      self._sizes.append(len(self._source.tested(len(self._sizes) + 1)))
    return schedule.decide(state.ends, values, self._sizes[:t], price_per_mac=price,
                           macs=self._macs(t, learner, state))

  def _tested(self, span: range, learner: Learner, state: State) -> dict[int, Entry]:
    source, problem = self._source, self._source.problem
    parts = [source.tested(t) for t in span]
    held, index = source.select(np.concatenate(parts), learner.mesh)
    pool, index = problem.load(held, index)
    pool = pool if pool is held else sharding.put(pool, learner.mesh)
    if source.constants is not None:
      pool = classification.renormalized(pool, normalization.of_entries(state.meta), learner.mesh)
    answers, start = prediction.of_pool(learner, problem, state.learner, pool, index), 0
    values: dict[int, Entry] = {}
    for t, part in zip(span, parts):
      here = slice(start, start + len(part))
      answer = jax.tree.map(lambda leaf, here=here: np.asarray(leaf)[here], answers)
      values[t] = source.score_training(answer, part)
      start += len(part)
    return values

  def _macs(self, t: int, learner: Learner, state: State) -> float:
    """Multiply-adds of a training after mega-batch t: as in the last training, in proportion to its examples."""
    config, sizes = self._protocol.config, self._source.memory.sizes((*state.ends, t))
    samples = [plan.samples for plan in config.train.plans(sizes)]
    trained = [entry for entry in state.lines if entry["updated"]]
    if not trained:
      return learner.cost(state.learner).fwd_macs * samples[-1] * config.num_candidates
    return (trained[-1]["fwd_macs"] - trained[-1]["growth_macs"]) * samples[-1] / samples[-2]
