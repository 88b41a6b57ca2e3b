"""Shows the progress of a run: a bar on a terminal; elsewhere a line per stage, and one for each long activity."""
import contextlib
import functools
import sys
import time
import warnings
from collections.abc import Iterable, Iterator
from typing import Any

from alma_jax.learners.contract import Learner
from alma_jax.messages import UNSEEN, duration, say, sign, spark
from alma_jax.protocols.contract import State
from alma_jax.runs.listeners import Listener
from alma_jax.store.metrics import ERROR, Entry, Measure

COMPILING = "compiling"
_BAR = "{desc}  {percentage:3.0f}% |{bar}|"
_BARS = 12  # bars of the metric so far
_FEW = 3  # dispatches of a training until it says how long the rest takes
_ENOUGH = 0.1  # part of a stage that a session has to train before it says how long the rest takes


class Progress(Listener):
  """The progress of a run."""

  def __init__(self, shown: bool, samples: Iterable[int], measure: Measure = ERROR, known: bool = True) -> None:
    """Shows nothing before `begin`.

    Args:
      shown: whether anything is shown.
      samples: training samples of each stage, at most, ints [S].
      measure: what the metric of a stage is measured on.
      known: whether the number of stages is known; otherwise `samples` is a guess.
    """
    self._shown, self._known = shown, known
    self._samples, self._measure = [int(num) for num in samples], measure
    self._lines, self._where = False, ""
    self._before, self._done = 0, 0.0  # samples of earlier sessions, and all that are dispatched
    self._steps, self._dispatches, self._trained, self._since = "", 0, 0.0, 0.0  # of a training, see `training`
    self._val: float | None = None
    self._values: list[float] = []  # of the stages of this session
    self._began = time.monotonic()
    self._bar: Any = None

  def begin(self, learner: Learner, state: State) -> None:
    with warnings.catch_warnings():
      warnings.simplefilter("ignore")  # in a notebook without ipywidgets the bar is text
      from tqdm.auto import tqdm
    self._done = self._before = sum(self._samples[:state.stage])
    bar = self._shown and (sys.stderr.isatty() or "ipykernel" in sys.modules)
    self._lines = self._shown and not bar
    make = functools.partial(
        tqdm, total=sum(self._samples), initial=self._before, dynamic_ncols=True, mininterval=0.2, leave=False,
        bar_format=_BAR)
    self._bar = make(disable=True)  # until it can be drawn
    if bar:
      with UNSEEN:
        self._bar = make()
    self._began = time.monotonic()

  def skip(self, samples: int) -> None:
    """Counts training samples of the first stage that an earlier session has processed."""
    self._before += samples
    self._done = self._bar.n = self._bar.initial = self._before

  def steps(self, num: int, batch: float, stage: int, done: int, total: int) -> None:
    """Adds the training steps of a dispatch, which is still under way.

    Args:
      num: number of them.
      batch: samples of a step, on average.
      stage: that is trained, from 0.
      done, total: steps of this training, up to the end of the dispatch and all.
    """
    metric = "" if self._val is None else f"val {self._measure.metric} {_short(self._val)}"
    if self._values:
      metric = f"{self._measure.name} {spark(self._values, width=_BARS)} {_short(self._values[-1])}"
    step = f"step {done} of {total}"
    self._where = " · ".join(filter(None, (f"stage {stage + 1}{self._of(' of ')}", metric, step)))
    self._done += num * batch
    of_stage, of_run = self._left((total - done) * batch, stage)
    with UNSEEN:
      self._bar.bar_format = _BAR + f" {of_stage} left" * bool(of_stage) + f", run {of_run}" * bool(of_run)
      self._bar.set_description_str(self._where, refresh=False)
      self._bar.update(min(self._done, self._bar.total) - self._bar.n)  # a stage may take longer than planned
    self._steps = f": {step}" + f", about {of_stage} left in this stage" * bool(of_stage)
    self._steps += f", {of_run} in the run" * bool(of_run)
    self._dispatches, self._trained = self._dispatches + 1, self._trained + num * batch

  def epoch(self, entry: Entry) -> None:
    self._val = entry[f"val_{self._measure.metric}"]

  def line(self, entry: Entry, learner: Learner, state: State) -> None:
    if not entry["updated"]:
      return
    stage, value, seconds = entry["stage"], entry.get(self._measure.key), entry["seconds"]
    self._values += [] if value is None else [value]
    self._done = done = sum(self._samples[:stage + 1])  # patience may have ended the stage early
    with UNSEEN:
      self._bar.update(max(0, done - self._bar.n))
    if self._lines:
      left, past = sum(self._samples[stage + 1:]), done - self._before
      is_known = self._known and left and past > _ENOUGH * self._samples[stage]
      seconds_left = (time.monotonic() - self._began) * left / past if is_known else 0.0
      judged = "" if value is None else f"{self._measure.name} {_short(value)}, "
      say(f"stage {stage + 1}{self._of(' of ')}: {judged}{duration(seconds)}"
          + (f"; about {duration(seconds_left)} left" if is_known else ""))

  @contextlib.contextmanager
  def phase(self, name: str) -> Iterator[None]:
    """Shows an activity that is not a training step, e.g. "compiling", while the block runs."""
    with UNSEEN:
      self._bar.set_description_str(" · ".join(filter(None, (self._where, name))), refresh=not self._bar.disable)
    began = time.monotonic()
    with sign(name, self._lines):
      yield
    if name == COMPILING:  # later stages do not compile
      self._began += time.monotonic() - began
      self._since += time.monotonic() - began
    with UNSEEN:
      self._bar.set_description_str(self._where, refresh=False)

  def training(self, stage: int) -> contextlib.AbstractContextManager[None]:
    """A context in which a stage, counted from 0, is trained; `line` says how long it took."""
    self._val, self._steps, self._dispatches, self._trained, self._since = None, "", 0, 0.0, time.monotonic()
    return sign(f"training stage {stage + 1}{self._of(' of ')}", self._lines, ends=False, more=lambda: self._steps)

  def close(self) -> None:
    """Removes the bar."""
    if self._bar is not None:
      with UNSEEN:
        self._bar.close()

  def _left(self, samples: float, stage: int) -> tuple[str, str]:
    """How long the stage and the run will still take; "" if it is not known yet, or the same for the run.

    Args:
      samples: what is left of the training.
      stage: that is trained, from 0.
    """
    if self._dispatches < _FEW:
      return "", ""
    each = (time.monotonic() - self._since) / self._trained
    ends = [sum(self._samples[:stage + 1]), sum(self._samples)] if self._known else [0, 0]
    of_stage, of_run = (max(samples, end - self._done) * each for end in ends)  # a stage may have more trainings
    return duration(of_stage), duration(of_run) if of_run > of_stage else ""

  def _of(self, word: str) -> str:
    """E.g. " of 50", if the number of stages is known."""
    return f"{word}{len(self._samples)}" if self._known else ""


def _short(value: float) -> str:
  """A metric with four digits; an error with four decimals."""
  return f"{value:.4{'f' if value < 10 else 'g'}}"
