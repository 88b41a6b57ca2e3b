"""Sends the entries of metrics.jsonl and train.jsonl to TensorBoard and Weights & Biases."""
import contextlib
import hashlib
import pathlib
import time
from collections.abc import Iterator, Mapping
from typing import Any

from alma_jax import config as configs
from alma_jax.config import schema
from alma_jax.learners.contract import Learner
from alma_jax.problems import measures
from alma_jax.protocols.contract import State
from alma_jax.runs.listeners import Listener
from alma_jax.store.metrics import Entry, Measure

_SHOWN = 60.0  # seconds after which TensorBoard sees an entry, at the latest when the next one is written


class TensorBoard(Listener):
  """Scalars of both .jsonl files: at t, and at the number of the line of train.jsonl."""

  def __init__(self, folder: pathlib.Path, config: schema.RunConfig, measure: Measure):
    """`folder` and `config` of the run; `measure`: what its metric is measured on."""
    self._folder, self._metrics, self._measure = folder, config.log.metrics, measure
    self._stream: _Events | None = None
    self._train: _Events | None = None
    self._num_lines = 0  # of train.jsonl

  def begin(self, learner: Learner, state: State) -> None:
    if self._stream is None:
      self._num_lines = state.num_train_lines
      self._stream = _Events(self._folder / "stream", len(state.lines) + 1)
      self._train = _Events(self._folder / "train", self._num_lines + 1)

  def epoch(self, entry: Entry) -> None:
    assert self._train is not None
    self._num_lines += 1
    self._train.write(entry, self._num_lines)

  def line(self, entry: Entry, learner: Learner, state: State) -> None:
    assert self._stream is not None
    self._stream.write(measures.scalars(self._measure.logged(entry), self._metrics), entry["t"])

  def flush(self) -> None:
    for events in (self._stream, self._train):
      if events is not None:
        events.flush()

  def close(self) -> None:
    with contextlib.ExitStack() as cleanup:
      for events in (self._stream, self._train):
        if events is not None:
          cleanup.callback(events.close)


class _Events:
  """A file of TensorBoard's events. Whoever writes to it gets the OSError of a full disk.

  tensorboardX's SummaryWriter writes in a thread. If that thread fails, it ends without a word, and the next entries
  wait for it for ever.
  """

  def __init__(self, folder: pathlib.Path, first: int):
    """A new file in `folder`, which TensorBoard shows instead of what earlier files have from step `first` on."""
    from tensorboardX import event_file_writer
    from tensorboardX.proto import event_pb2, summary_pb2
    folder.mkdir(parents=True, exist_ok=True)
    # File names have the time in seconds, and another session may have begun in the same second.
    self._file = event_file_writer.EventsWriter(str(folder / "events"), f".{time.time_ns()}")
    self._flushed = time.monotonic()
    self._event, self._summary = event_pb2.Event, summary_pb2.Summary
    start = event_pb2.SessionLog(status=event_pb2.SessionLog.START)
    self._file.write_event(self._event(wall_time=time.time(), step=first, session_log=start))

  def write(self, entry: Entry, step: int) -> None:
    """The numbers of an entry, at `step`."""
    values = [self._summary.Value(tag=name, simple_value=number)
              for key, value in entry.items() for name, number in _scalars(key, value)]
    self._file.write_event(self._event(wall_time=time.time(), step=step, summary=self._summary(value=values)))
    if time.monotonic() - self._flushed > _SHOWN:
      self.flush()

  def flush(self) -> None:
    self._file.flush()
    self._flushed = time.monotonic()

  def close(self) -> None:
    self._file.close()


class Wandb(Listener):
  """The same scalars for Weights & Biases: `stream/...` over t, `train/...` over the number of the line.

  A resumed run goes on under its own name there. Lines since its last checkpoint are logged again, with equal values.
  """

  def __init__(self, folder: pathlib.Path, config: schema.RunConfig, measure: Measure):
    """`folder` and `config` of the run; `measure`: what its metric is measured on."""
    self._folder, self._config, self._measure = folder, config, measure
    self._run: Any = None
    self._num_lines = 0  # of train.jsonl

  def begin(self, learner: Learner, state: State) -> None:
    if self._run is not None:
      return
    import wandb
    name = hashlib.sha256(str(self._folder.resolve()).encode()).hexdigest()[:16]
    self._run = wandb.init(project=self._config.log.wandb, id=name, name=self._folder.name, resume="allow",
                           dir=str(self._folder), config=configs.flatten(configs.to_dict(self._config)))
    self._run.define_metric("stream/*", step_metric="stream/t")
    self._run.define_metric("train/*", step_metric="train/line")
    self._num_lines = state.num_train_lines

  def epoch(self, entry: Entry) -> None:
    self._num_lines += 1
    self._log("train", entry, {"train/line": self._num_lines})

  def line(self, entry: Entry, learner: Learner, state: State) -> None:
    self._log("stream", measures.scalars(self._measure.logged(entry), self._config.log.metrics))

  def close(self) -> None:
    if self._run is not None:
      self._run.finish()

  def _log(self, where: str, entry: Entry, more: Mapping[str, int] = {}) -> None:
    named = {f"{where}/{name}": number for key, value in entry.items() for name, number in _scalars(key, value)}
    self._run.log(named | dict(more))


def _scalars(name: str, value: Any) -> Iterator[tuple[str, int | float]]:
  """(name, number) pairs of a number or of nested lists of them: "load/1/3" is load[1][3]."""
  if isinstance(value, list):
    for i, part in enumerate(value):
      yield from _scalars(f"{name}/{i}", part)
  elif isinstance(value, (int, float)) and not isinstance(value, bool):
    yield name, value
