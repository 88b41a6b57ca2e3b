"""Mega-batches that are all there before the run begins (Caccia et al., 2021; docs/algorithms.md §1)."""
import functools
from collections.abc import Generator, Sequence
from typing import Any, ClassVar

from alma_jax.data import normalization
from alma_jax.learners import prediction
from alma_jax.learners.contract import Learner
from alma_jax.parallel.sharding import say
from alma_jax.problems import classification, language_modeling
from alma_jax.protocols import drift
from alma_jax.protocols.contract import Arrival, Facts, Joined, Prepared, Protocol, Sizes, State, Trained
from alma_jax.protocols.prequential import Prequential
from alma_jax.store import metrics
from alma_jax.store.metrics import Entry


class Offline(Protocol):
  """A permuted data set in B mega-batches, and a fixed test set.

  Attributes:
    source: what the mega-batches are cut from, see problems.contract.Source; of the class `Source`.
    schedule: when the learner is trained.
  """
  Source: ClassVar[Any]

  def __init__(self, config: Any, source: Any):
    self.config, self.source, self.schedule = config, source, config.stream.schedule
    self.files, self.fingerprint = source.files, source.fingerprint
    self.measure = metrics.Measure(source.problem.metric, not source.has_test)
    self._prequential = Prequential(config, source)
    self._watch = drift.Watch(config, source) if config.log.drift else None
    self._test: tuple[Any, Any] = (None, None)  # (pool of test examples, its normalisation constants)

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
    meta: Entry = self.source.meta()
    return meta

  @property
  def num_bytes(self) -> tuple[int, int]:
    num: tuple[int, int] = self.source.num_bytes
    return num

  def sizes(self) -> Sizes:
    sizes = self.source.memory.sizes(self.expected_ends)
    return Sizes(sizes.train, sizes.share, self.schedule.is_fixed)

  @property
  def expected_ends(self) -> tuple[int, ...]:
    """The last mega-batch of each stage; a guess if the schedule is not fixed."""
    ends: tuple[int, ...] = self.schedule.ends(self.source.megabatches.num)
    return ends

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
    if self._watch is not None:
      notes |= self._watch.update(t, state.lines, notes)
    if self.measure.is_prequential:
      value = notes[self.measure.key]
      notes[self.measure.metric] = self.source.untrained if value is None else value
    elif t == 1 and (untrained := self._untrained(learner, state)) is not None:
      notes[metrics.UNTRAINED] = untrained
    return Arrival(t, trains, notes)

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

  def test(self, learner: Learner, state: State, trained: Trained | None) -> Entry:
    """Contributions of blocks that never change again are joined once, and kept.

    Thus a growing ensemble costs as much to evaluate at its 50th stage as at its 5th.
    """
    if not self.source.has_test:
      return {}
    problem, pool = self.source.problem, self._test_pool(learner, state.meta)
    total = prediction.joined(learner, problem, state.learner, pool, None, *state.joined)
    if trained is not None and learner.freezes:
      state.joined = Joined(total, learner.num_blocks(state.learner))
    measured: Entry = self.source.score(learner.resolve(state.learner, total))
    return measured

  def _test_pool(self, learner: Learner, meta: Entry) -> Any:
    if self._test[0] is None:
      self._test = self.source.test_pool(learner.mesh), self.source.constants
    pool, before = self._test
    constants = self._constants(meta)
    if constants is not None and constants.entries() != before.entries():
      self._test = classification.renormalized(pool, constants, learner.mesh), constants
    return self._test[0]

  def _constants(self, meta: Entry) -> normalization.Normalization | None:
    """The normalisation constants of the learner with this `meta`; an untrained one uses the first stage's."""
    first: normalization.Normalization | None = self.source.constants
    return first if first is None or "mean" not in meta else normalization.of_entries(meta)

  def _untrained(self, learner: Learner, state: State) -> float | None:
    """The metric before the first training (docs/algorithms.md §1); None if it is unknown."""
    if self.source.untrained is not None or not self.source.problem.selects:
      value: float | None = self.source.untrained
      return value
    return float(self.test(learner, state, None)[self.measure.metric])

  # ------------------------------------------------------------------------ what a run shows

  @property
  def chance(self) -> float | None:
    chance: float | None = self.source.problem.chance
    return chance

  def headline(self, summary: Entry, lines: list[Entry]) -> str:
    problem, values, num = self.source.problem, self.measure.values(lines), len(lines)
    name, result = problem.judged, summary[problem.result]
    if self.measure.is_prequential:
      name, num = self.measure.name, len(values)
      result = sum(values) / max(num, 1)
    when = self.config.stream.schedule.described(summary["num_stages"])
    return f"{name} {result:.{problem.decimals}f} over {num} mega-batches, {when}"


class Images(Offline):
  """Images, or other arrays, of a data set."""
  Source = classification.Images

  def __init__(self, config: Any, data: Any = None, run: Any = None) -> None:
    del run
    super().__init__(config, classification.Images(config, data))

  @classmethod
  def data_for_costs(cls, dataset: Any) -> Any:
    return dataset.blank() or dataset.load()


class Texts(Offline):
  """Texts of a data set."""
  Source = language_modeling.Texts

  def __init__(self, config: Any, data: Any = None, run: Any = None) -> None:
    del data, run
    super().__init__(config, language_modeling.Texts(config))
