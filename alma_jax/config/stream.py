"""The section `stream` that images and text share, and the schedules: when a learner is trained."""
import bisect
import dataclasses
import functools
import itertools
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from alma_jax.config.fields import Section, choice, field
from alma_jax.errors import BadInput


@dataclasses.dataclass(frozen=True)
class Schedule(Section):
  """Base class of schedules: after which mega-batches the learner is trained.

  Attributes:
    is_fixed: whether this is known before the stream starts.
    trains_at_end: whether there is a last training on mega-batches that are left over at the end of the stream.
  """
  name: str = ""

  is_fixed: ClassVar[bool] = True
  trains_at_end: ClassVar[bool] = False

  def ends(self, num_megabatches: int) -> tuple[int, ...]:
    """The last mega-batch of each stage, t_1 < t_2 < ..., counted from 1; a guess if the schedule is not fixed.

    Numbers are rounded like Python's `round`, ties to even.
    """
    raise NotImplementedError

  def next(self, t: int, num_megabatches: int) -> int | None:
    """The first training at mega-batch t or later; None if there is none or it is unknown.

    `num_megabatches` is 0 if the stream has no limit.
    """
    raise NotImplementedError

  def decide(self, t: int, num_megabatches: int, is_last: Callable[[], bool], decided: Callable[[float], Any]
             ) -> tuple[bool, dict[str, Any]]:
    """Whether to train after mega-batch t, and what metrics.jsonl says about the decision.

    Args:
      t: from 1.
      num_megabatches: as for `next`.
      is_last: () -> whether the stream is known to end with mega-batch t. A live stream looks for the next one, so it
        is asked only if the answer matters.
      decided: price of a multiply-add -> data.schedule.Decision; only schedules that are not fixed ask for it.
    """
    del decided
    return t == self.next(t, num_megabatches) or (self.trains_at_end and is_last()), {}


@dataclasses.dataclass(frozen=True)
class Every(Schedule):
  """Trains after every w mega-batches, and at the end."""
  name: str = "every"
  waiting_time: int = field(2, "mega-batches of a stage, w: the learner waits for w of them, then trains", at_least=1)

  trains_at_end: ClassVar[bool] = True

  def ends(self, num_megabatches: int) -> tuple[int, ...]:
    return (*range(self.waiting_time, num_megabatches, self.waiting_time), num_megabatches)

  def next(self, t: int, num_megabatches: int) -> int | None:
    end = -(-t // self.waiting_time) * self.waiting_time
    return min(end, num_megabatches) if num_megabatches else end

  def check(self, config: Any) -> None:
    num = config.stream.num_megabatches
    if num and self.waiting_time > num:
      raise BadInput(f"stream.waiting_time={self.waiting_time} exceeds stream.num_megabatches={num}; use at most "
                     f"{num}.")


@dataclasses.dataclass(frozen=True)
class Power(Schedule):
  """Trains at t_s = max(t_(s-1) + 1, round(B (s/S)^p)), or earlier, so that S - s mega-batches remain."""
  name: str = "power"
  num_trainings: int = field(0, "number of trainings, S", at_least=0)
  exponent: float = field(2.0, "exponent p", at_least=1)

  def ends(self, num_megabatches: int) -> tuple[int, ...]:
    return _power_ends(num_megabatches, self.num_trainings, self.exponent)

  def next(self, t: int, num_megabatches: int) -> int | None:
    ends = self.ends(num_megabatches)
    place = bisect.bisect_left(ends, t)
    return ends[place] if place < len(ends) else None

  def check(self, config: Any) -> None:
    num = config.stream.num_megabatches
    if not num:
      raise BadInput("stream.schedule='power' needs stream.num_megabatches above 0, because it spreads its trainings "
                     "over the whole stream; set that number, or choose another schedule.")
    if not 0 < self.num_trainings <= num:
      raise BadInput(f"stream.num_trainings={self.num_trainings} should be from 1 to "
                     f"stream.num_megabatches={num}.")


@dataclasses.dataclass(frozen=True)
class Geometric(Schedule):
  """Trains after mega-batches t_1 = 1 and t_(s+1) = max(t_s + 1, round(factor t_s)), up to B."""
  name: str = "geometric"
  factor: float = field(1.15, "factor from one training to the next", above=1)
  train_at_end: bool = field(False, "also train at the end of the stream, on what is left")

  @property
  def trains_at_end(self) -> bool:  # type: ignore[override]  # it depends on a field
    return self.train_at_end

  def ends(self, num_megabatches: int) -> tuple[int, ...]:
    ends = [1]
    while (t := max(ends[-1] + 1, round(self.factor * ends[-1]))) <= num_megabatches:
      ends.append(t)
    return (*ends, num_megabatches) if self.train_at_end and ends[-1] < num_megabatches else tuple(ends)

  def next(self, t: int, num_megabatches: int) -> int | None:
    end = 1
    while end < t:
      end = max(end + 1, round(self.factor * end))
    return min(end, num_megabatches) if self.train_at_end and num_megabatches else end


@dataclasses.dataclass(frozen=True)
class Adaptive(Schedule):
  """Trains when the expected gain pays for a training; see data/schedule.py."""
  name: str = "adaptive"
  price: float = field(
      0.0, "price of a multiply-add; the schedule minimises CER + price x Comp (text: perplexity for error)",
      at_least=0)

  is_fixed: ClassVar[bool] = False

  def ends(self, num_megabatches: int) -> tuple[int, ...]:
    return Geometric().ends(num_megabatches)

  def next(self, t: int, num_megabatches: int) -> int | None:
    return None

  def decide(self, t: int, num_megabatches: int, is_last: Callable[[], bool], decided: Callable[[float], Any]
             ) -> tuple[bool, dict[str, Any]]:
    decision = decided(self.price)
    return decision.train, decision.notes

  def check(self, config: Any) -> None:
    if not self.price:
      raise BadInput("stream.price=0.0 should be above 0; give the price of a multiply-add, such as 1e-11.")


@functools.lru_cache(maxsize=16)  # for runs with many mega-batches, which ask after each
def _power_ends(num_megabatches: int, num: int, exponent: float) -> tuple[int, ...]:
  ends = [0]
  for s in range(1, num + 1):
    wanted = max(ends[-1] + 1, round(num_megabatches * (s / num) ** exponent))
    ends.append(min(wanted, num_megabatches - (num - s)))
  return tuple(ends[1:])


ALWAYS: Schedule = Every(waiting_time=1)
SCHEDULES: Mapping[str, type[Schedule]] = {cls.name: cls for cls in (Every, Power, Geometric, Adaptive)}
WHEN = "train `every` w mega-batches, at `power` or `geometric` times, or when it pays for itself (`adaptive`)"


@dataclasses.dataclass(frozen=True)
class Policy(Section):
  """A memory policy: which old mega-batches are replayed. This one replays all of them, whatever their age."""
  name: str = "uniform"

  chooses: ClassVar[bool] = False  # whether it ever leaves out a mega-batch
  judged: ClassVar[bool] = False  # whether the learner decides which

  def kept(self, age: Any) -> Any:
    """The share of a mega-batch that is kept, float64 array; age: int array, mega-batches that came after it."""
    return age * 0.0 + 1

  def check(self, config: Any) -> None:
    if self.chooses and not config.stream.replay_share:
      raise BadInput(f"stream.memory_policy={self.name!r} decides what stream.replay_share draws from; set that above "
                     "0 or to uniform, or leave stream.memory_policy=uniform.")
    if self.chooses and not self.judged and config.stream.memory_size:
      raise BadInput(f"stream.memory_policy={self.name!r} and stream.memory_size={config.stream.memory_size} exclude "
                     "each other, because both bound the memory; set stream.memory_size=0, or "
                     "stream.memory_policy=uniform.")


@dataclasses.dataclass(frozen=True)
class Window(Policy):
  """Keeps only the newest mega-batches."""
  name: str = "window"
  window: int = field(8, "number of newest mega-batches to keep, including those of the stage", at_least=1)

  chooses: ClassVar[bool] = True

  def kept(self, age: Any) -> Any:
    return (age < self.window) * 1.0


@dataclasses.dataclass(frozen=True)
class HalfLife(Policy):
  """Halves what it keeps of a mega-batch after each half-life."""
  name: str = "half_life"
  half_life: float = field(4.0, "mega-batches after which half of the examples are left", above=0)

  chooses: ClassVar[bool] = True

  def kept(self, age: Any) -> Any:
    return 0.5 ** (age / self.half_life)


@dataclasses.dataclass(frozen=True)
class Agreement(Policy):
  """Keeps all mega-batches, but a stage replays only those that do not contradict its new data."""
  name: str = "agreement"

  chooses: ClassVar[bool] = True
  judged: ClassVar[bool] = True

  def check(self, config: Any) -> None:
    if not config.learner.judges:
      raise BadInput("stream.memory_policy='agreement' needs a learner that judges old mega-batches, as dual does for "
                     "images; change learner.name, or set another policy.")
    super().check(config)


POLICIES: Mapping[str, type[Policy]] = {cls.name: cls for cls in (Policy, Window, HalfLife, Agreement)}


@dataclasses.dataclass(frozen=True)
class AnyStream(Section):
  """Base class of all streams."""
  num_megabatches: int = field(
      20, "mega-batches of the stream, B; for `live:DIR` at most this many, and 0: no limit", at_least=0)

  schedule = ALWAYS

  @property
  def expected_ends(self) -> tuple[int, ...]:
    """The last mega-batch of each stage; a guess if the schedule is not fixed."""
    return self.schedule.ends(self.num_megabatches)

  @property
  def least_batch(self) -> int:
    """The smallest batch size."""
    return 1


@dataclasses.dataclass(frozen=True)
class Stream(AnyStream):
  """A stream of mega-batches."""
  replay: float = field(
      0.0, "share of the memory to keep from stage to stage and to add to the stage's new data", at_least=0, at_most=1)
  replay_share: float | str = field(
      0.0, "share of every batch that comes from earlier stages, without extra steps; `uniform`: the memory's share of "
      "all examples", at_least=0, below=1, choices=("uniform",))
  replay_order: str = field(
      "random", "with `stream.replay_share`: draw old examples at `random`, or in `passes` that visit each of them "
      "once", choices=("random", "passes"))
  memory_size: int = field(
      0, "with `stream.replay_share`: most examples to keep of earlier stages, a uniform sample; 0: all", at_least=0)
  memory_policy: Policy = choice(
      POLICIES, "uniform", "with `stream.replay_share`: which old mega-batches to replay: all (`uniform`), the newest "
      "(`window`), fewer examples of older ones (`half_life`), or those that do not contradict the new data "
      "(`agreement`)")
  schedule: Schedule = choice(SCHEDULES, "every", WHEN)

  val_fraction = 0.0  # share of every mega-batch that is held out for validation

  @property
  def num_kept_for_validation(self) -> int:
    """How many of the `memory_size` examples are validation examples; they are never trained on."""
    return int(self.val_fraction * self.memory_size + 1e-9)

  @property
  def least_batch(self) -> int:
    """The smallest batch size. With `replay_share`, a batch needs an old and a new example."""
    return next(size for size in itertools.count(1) if not self._share or memory_part(size, self._share))

  @property
  def _share(self) -> float:
    """`replay_share`; 0.5 stands for one that depends on the stage."""
    return 0.5 if isinstance(self.replay_share, str) else self.replay_share

  @property
  def most_trainings(self) -> int:
    """An upper bound on the number of trainings."""
    if not self.num_megabatches:
      return 2**31
    return len(self.expected_ends) if self.schedule.is_fixed else self.num_megabatches

  def check(self, config: Any) -> None:
    """Raises BadInput if the fields do not go together, or not with the rest of the config."""
    if not self.num_megabatches and config.dataset.is_complete:
      raise BadInput("stream.num_megabatches=0 should be at least 1; only a live stream, dataset.name=live:DIR, may "
                     "have no limit.")
    if self.replay and self.replay_share:
      raise BadInput(f"stream.replay={self.replay} and stream.replay_share={self.replay_share} exclude each other: the "
                     "first adds old data to the new data, the second draws a part of every batch from old data; set "
                     "one of them to 0.")
    if not self.replay_share:
      if self.memory_size:
        raise BadInput(f"stream.memory_size={self.memory_size} needs stream.replay_share above 0; set it, or "
                       "leave stream.memory_size=0.")
      return
    batch = config.train.batch_size or config.learner.batches[0]
    part = memory_part(batch, self._share)
    asked = f"stream.replay_share={self.replay_share} of train.batch_size={batch}"
    if not part:
      raise BadInput(f"{asked} is less than one example; raise one of them, or set stream.replay_share=0.")
    num_kept = self.memory_size - self.num_kept_for_validation
    if self.memory_size and not isinstance(self.replay_share, str) and num_kept < part:
      raise BadInput(f"stream.memory_size={self.memory_size} keeps {num_kept} training examples, fewer than the {part} "
                     f"that {asked} asks for; raise stream.memory_size or lower the share.")


def memory_part(batch_size: int, share: float) -> int:
  """Number of examples of a batch that come from the memory; at least one example is new."""
  return min(round(batch_size * share), batch_size - 1)
