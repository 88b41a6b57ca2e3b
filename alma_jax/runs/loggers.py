"""Sends the entries of metrics.jsonl and train.jsonl to TensorBoard and Weights & Biases."""
import contextlib
import hashlib
import pathlib
import time
from collections.abc import Iterator, Sequence
from typing import Any

from alma_jax import config as configs
from alma_jax.config import schema
from alma_jax.learners.contract import Learner
from alma_jax.parallel import sharding
from alma_jax.problems import measures
from alma_jax.protocols.contract import State
from alma_jax.runs.listeners import Listener
from alma_jax.store.metrics import Entry, Measure

_SHOWN = 60.0  # seconds after which TensorBoard sees an entry, at the latest when the next one is written


class Boards(Listener):
  """The boards that a config asks for, in process 0."""

  def __init__(self, folder: pathlib.Path, config: schema.RunConfig, measure: Measure):
    """`folder` of the run; `measure`: what its metric is measured on."""
    self._folder, self._config, self._measure = folder, config, measure
    self._boards: list[TensorBoard | Wandb] | None = None

  def begin(self, learner: Learner, state: State) -> None:
    if self._boards is None:
      self._boards = []
      if self._config.log.tensorboard and sharding.is_main():
        self._boards.append(TensorBoard(self._folder / "tensorboard", len(state.lines), state.num_train_lines,
                                        self._config.log.metrics))
      if self._config.log.wandb and sharding.is_main():
        self._boards.append(Wandb(self._folder, self._config, state.num_train_lines))

  def epoch(self, entry: Entry) -> None:
    for board in self._boards or ():
      board.train(entry)

  def line(self, entry: Entry, learner: Learner, state: State) -> None:
    for board in self._boards or ():
      board.stream(self._measure.logged(entry))

  def flush(self) -> None:
    for board in self._boards or ():
      board.flush()

  def close(self) -> None:
    with contextlib.ExitStack() as cleanup:
      for board in self._boards or ():
        cleanup.callback(board.close)


class TensorBoard:
  """Scalars of both .jsonl files: at t, and at the number of the line of train.jsonl."""

  def __init__(self, folder: pathlib.Path, t: int, epoch: int, metrics: Sequence[str] = ()):
    """Writes to `folder`; drops what is later than `t` and `epoch`. `metrics`: names of the chosen ones."""
    self._metrics = metrics
    self._stream, self._train = _Events(folder / "stream", t + 1), _Events(folder / "train", epoch + 1)
    self._epoch = epoch

  def stream(self, entry: Entry) -> None:
    """A line of metrics.jsonl."""
    self._stream.write(measures.scalars(entry, self._metrics), entry["t"])

  def train(self, entry: Entry) -> None:
    """A line of train.jsonl."""
    self._epoch += 1
    self._train.write(entry, self._epoch)

  def flush(self) -> None:
    """Writes to disk what the next checkpoint covers."""
    self._stream.flush()
    self._train.flush()

  def close(self) -> None:
    try:
      self._stream.close()
    finally:
      self._train.close()


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


class Wandb:
  """The same scalars for Weights & Biases: `stream/...` over t, `train/...` over the number of the line.

  A resumed run goes on under its own name there. Lines since its last checkpoint are logged again, with equal values.
  """

  def __init__(self, folder: pathlib.Path, config: schema.RunConfig, train_lines: int):
    """Logs the run in `folder` with its config, from line `train_lines` of train.jsonl on."""
    import wandb
    name = hashlib.sha256(str(folder.resolve()).encode()).hexdigest()[:16]
    self._run = wandb.init(project=config.log.wandb, id=name, name=folder.name, resume="allow", dir=str(folder),
                           config=configs.flatten(configs.to_dict(config)))
    self._run.define_metric("stream/*", step_metric="stream/t")
    self._run.define_metric("train/*", step_metric="train/line")
    self._line, self._metrics = train_lines, config.log.metrics

  def stream(self, entry: Entry) -> None:
    """A line of metrics.jsonl."""
    named = measures.scalars(entry, self._metrics)
    self._run.log({f"stream/{name}": number for key, value in named.items() for name, number in _scalars(key, value)})

  def train(self, entry: Entry) -> None:
    """A line of train.jsonl."""
    self._line += 1
    logged = {f"train/{name}": number for key, value in entry.items() for name, number in _scalars(key, value)}
    self._run.log(logged | {"train/line": self._line})

  def flush(self) -> None:
    """Does nothing: wandb sends its entries by itself."""

  def close(self) -> None:
    self._run.finish()


def _scalars(name: str, value: Any) -> Iterator[tuple[str, int | float]]:
  """(name, number) pairs of a number or of nested lists of them: "load/1/3" is load[1][3]."""
  if isinstance(value, list):
    for i, part in enumerate(value):
      yield from _scalars(f"{name}/{i}", part)
  elif isinstance(value, (int, float)) and not isinstance(value, bool):
    yield name, value
