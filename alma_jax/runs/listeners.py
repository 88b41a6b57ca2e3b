"""Listeners of a run: the progress display, boards, predictors, the remote copy. They never change results."""
import contextlib
import hashlib
import pathlib
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

from alma_jax import config as configs
from alma_jax.config import schema
from alma_jax.learners.contract import Learner
from alma_jax.parallel import sharding
from alma_jax.predictors import folder as predictors
from alma_jax.problems import measures
from alma_jax.protocols.contract import Protocol, Shown, State
from alma_jax.runs import exporting
from alma_jax.store.metrics import Entry, Measure
from alma_jax.store.mirror import Mirror
from alma_jax.store.run_files import PREDICTOR
from alma_jax.store.run_folder import RunFolder

_SHOWN = 60.0  # seconds after which TensorBoard sees an entry, at the latest when the next one is written


class Listener:
  """Base class of listeners. Those that several processes have are called by all of them in the same order."""

  def claimed(self, is_new: bool) -> None:
    """The run has claimed its folder and has not changed it yet; `is_new`: the folder has no lines yet."""

  def begin(self, learner: Learner, state: State) -> None:
    """The session begins with this state."""

  def relearned(self, learner: Learner, state: State) -> None:
    """The session goes on with a new learner that takes over the state, because new classes or sizes have arrived."""

  def epoch(self, entry: Entry) -> None:
    """A line of train.jsonl was written."""

  def line(self, entry: Entry, learner: Learner, state: State) -> None:
    """A line of metrics.jsonl was written, the last of `state.lines`. It is in no checkpoint yet."""

  def check(self) -> None:
    """Called often. May raise Unsaved if the run cannot continue."""

  def flush(self) -> None:
    """A checkpoint is about to be saved that covers all lines so far."""

  def saved(self, wait: Callable[[], None]) -> None:
    """The run is being saved; `wait()` returns when the checkpoint is on disk."""

  def close(self) -> None:
    """The session ends."""


class Publisher(Listener):
  """Replaces the predictors in the run folder after every stage, except those that the stage has not changed."""

  def __init__(self, protocol: Protocol, folder: RunFolder, phase: Callable[[str], AbstractContextManager[None]]):
    """`protocol` and `folder` of the run; `phase` shows a long activity, see Progress.phase."""
    self._protocol, self._folder, self._phase = protocol, folder, phase
    self._exporter: exporting.Exporter | None = None

  def begin(self, learner: Learner, state: State) -> None:
    """Publishes what is older than the last complete stage, as after `log.predictor` was switched on."""
    self.relearned(learner, state)
    for shown in self._protocol.shown(learner, state) if state.stage and state.complete else ():
      number = (predictors.latest_version(self._folder.path / PREDICTOR / shown.name) or "").partition("-")[0]
      if sharding.agree(int(number) if number.isdecimal() else -1) < shown.stage:
        self._publish(shown, state)

  def relearned(self, learner: Learner, state: State) -> None:
    ends = (*state.ends, *([state.arrival.t] if state.arrival else []))
    self._exporter = exporting.Exporter(learner, self._protocol.facts(ends).problem, self._protocol.config,
                                        self._folder.path)

  def line(self, entry: Entry, learner: Learner, state: State) -> None:
    """Before the checkpoint: no saved stage is without its predictor."""
    for shown in self._protocol.shown(learner, state, state.stage - 1) if entry["updated"] else ():
      self._publish(shown, state)

  def _publish(self, shown: Shown, state: State) -> None:
    assert self._exporter is not None
    with self._phase("writing the predictor"):
      files = self._exporter.files(shown)
      self._folder.publish(shown.name, state.stage - 1, files)


class Uploader(Listener):
  """Takes the folder to its store whenever the run is saved, beside the run, if it is the local copy of an address."""

  def __init__(self, mirror: Mirror):
    self._mirror = mirror

  def claimed(self, is_new: bool) -> None:
    if is_new:
      self._mirror.take()  # later there are lines, which a folder without a checkpoint must not have in a store

  def begin(self, learner: Learner, state: State) -> None:
    if state.lines or state.arrival:
      self._mirror.take()  # not before: only a sound moment of the run may replace what the store holds

  def check(self) -> None:
    self._mirror.check()

  def saved(self, wait: Callable[[], None]) -> None:
    wait()
    self._mirror.take()


class Board(Listener):
  """Base class: shows the numbers of both .jsonl files, "stream" at t, and "train" at the number of the line."""

  def __init__(self, folder: pathlib.Path, config: schema.RunConfig, measure: Measure):
    """`folder` and `config` of the run; `measure`: what its metric is measured on."""
    self._folder, self._config, self._measure = folder, config, measure
    self._num_lines: int | None = None  # of train.jsonl; None before the session begins

  def open(self, state: State) -> None:
    """The session begins with this state."""
    raise NotImplementedError

  def write(self, where: str, numbers: dict[str, int | float], step: int) -> None:
    """Shows numbers of "stream" or "train"."""
    raise NotImplementedError

  def begin(self, learner: Learner, state: State) -> None:
    self.open(state)
    self._num_lines = state.num_train_lines

  def epoch(self, entry: Entry) -> None:
    assert self._num_lines is not None
    self._num_lines += 1
    self.write("train", _numbers(entry), self._num_lines)

  def line(self, entry: Entry, learner: Learner, state: State) -> None:
    shown = measures.scalars(self._measure.logged(entry), self._config.log.metrics)
    self.write("stream", _numbers(shown), entry["t"])


class TensorBoard(Board):
  """The folder tensorboard/ of the run. Later sessions write further files."""

  def open(self, state: State) -> None:
    path = self._folder / "tensorboard"
    self._events = {"stream": _Events(path / "stream", len(state.lines) + 1),
                    "train": _Events(path / "train", state.num_train_lines + 1)}

  def write(self, where: str, numbers: dict[str, int | float], step: int) -> None:
    self._events[where].write(numbers, step)

  def flush(self) -> None:
    for events in self._events.values():
      events.flush()

  def close(self) -> None:
    with contextlib.ExitStack() as cleanup:
      for events in self._events.values() if self._num_lines is not None else ():
        cleanup.callback(events.close)


class Wandb(Board):
  """Weights & Biases: `stream/...` over t, `train/...` over the number of the line.

  A resumed run goes on under its own name there. Lines since its last checkpoint are logged again, with equal values.
  """

  def open(self, state: State) -> None:
    import wandb
    name = hashlib.sha256(str(self._folder.resolve()).encode()).hexdigest()[:16]
    self._run: Any = wandb.init(project=self._config.log.wandb, id=name, name=self._folder.name, resume="allow",
                                dir=str(self._folder), config=configs.flatten(configs.to_dict(self._config)))
    self._run.define_metric("stream/*", step_metric="stream/t")
    self._run.define_metric("train/*", step_metric="train/line")

  def write(self, where: str, numbers: dict[str, int | float], step: int) -> None:
    self._run.log({f"{where}/{name}": number for name, number in numbers.items()} | (
        {"train/line": step} if where == "train" else {}))

  def close(self) -> None:
    if self._num_lines is not None:
      self._run.finish()


class _Events:
  """A file of TensorBoard's events. Whoever writes to it gets the OSError of a full disk.

  tensorboardX's SummaryWriter writes in a thread. If that thread fails, it ends without a word, and the next entries
  wait for it for ever.
  """

  def __init__(self, folder: pathlib.Path, first: int):
    """A new file in `folder`, which TensorBoard shows instead of what earlier files have from step `first` on."""
    with _hidden("boto3", "google.cloud.storage"):  # a second's work, for addresses that it never gets from us
      from tensorboardX import event_file_writer
      from tensorboardX.proto import event_pb2, summary_pb2
    folder.mkdir(parents=True, exist_ok=True)
    # File names have the time in seconds, and another session may have begun in the same second.
    self._file = event_file_writer.EventsWriter(str(folder / "events"), f".{time.time_ns()}")
    self._flushed = time.monotonic()
    self._event, self._summary = event_pb2.Event, summary_pb2.Summary
    start = event_pb2.SessionLog(status=event_pb2.SessionLog.START)
    self._file.write_event(self._event(wall_time=time.time(), step=first, session_log=start))

  def write(self, numbers: dict[str, int | float], step: int) -> None:
    """Numbers by their names, at `step`."""
    values = [self._summary.Value(tag=name, simple_value=number) for name, number in numbers.items()]
    self._file.write_event(self._event(wall_time=time.time(), step=step, summary=self._summary(value=values)))
    if time.monotonic() - self._flushed > _SHOWN:
      self.flush()

  def flush(self) -> None:
    self._file.flush()
    self._flushed = time.monotonic()

  def close(self) -> None:
    self._file.close()


@contextlib.contextmanager
def _hidden(*names: str) -> Iterator[None]:
  """What is imported meanwhile finds none of these modules, unless they have been imported before."""
  modules: dict[str, Any] = sys.modules
  hidden = [name for name in names if modules.setdefault(name, None) is None]
  try:
    yield
  finally:
    for name in hidden:
      modules.pop(name, None)


def _numbers(entry: Entry) -> dict[str, int | float]:
  """The numbers of an entry and of its nested lists: "load/1/3" is load[1][3]."""
  def flat(name: str, value: Any) -> Iterator[tuple[str, int | float]]:
    if isinstance(value, list):
      for i, part in enumerate(value):
        yield from flat(f"{name}/{i}", part)
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
      yield name, value

  return {name: number for key, value in entry.items() for name, number in flat(key, value)}
