"""A live stream in process: mega-batches are arrays, and predictions come from memory (docs/python.md)."""
import contextlib
import functools
import os
import pathlib
from collections.abc import Generator
from typing import Any, Self

import numpy as np

from alma_jax import config as configs
from alma_jax.config.sections import LIVE
from alma_jax.data import examples, feed, unpacking
from alma_jax.data import labels as class_labels
from alma_jax.data.form import Form
from alma_jax.errors import BadInput, InUse, Stopped
from alma_jax.parallel import environment
from alma_jax.predictors import folder as predictors
from alma_jax.predictors import predictor
from alma_jax.problems import live
from alma_jax.runs import experiment, exporting, loop, results, settings
from alma_jax.store import run_files
from alma_jax.store.metrics import Entry
from alma_jax.store.run_folder import RunFolder

INBOX = "inbox"  # in the run folder: DIR of the live stream
# What a config says about a folder that others fill, and about the terminal.
_OWN = {"dataset.settle_seconds": 0.0, "dataset.idle_seconds": 0.0, "dataset.max_examples": 0, "dataset.max_bytes": 0,
        "dataset.image_column": "", "dataset.label_column": "", "log.progress": False}


class Stream:
  """A learner that trains on mega-batches as you give them; a context manager.

  It is a live run (docs/live.md) whose DIR is PATH/inbox: `update` writes an entry there, and goes on with the run
  until it waits for the next one. Therefore the numbers are those of a live run, and so are the files in PATH. For one
  thread at a time.
  """

  def __init__(self, config: Any, path: str | os.PathLike[str]):
    """Begins a stream, or goes on with the one in `path`, and trains on what a killed process had not finished.

    Args:
      config: of a live stream of images: "configs/live.py:anytime", a ConfigDict or a RunConfig. What it says about the
        folder DIR and its entries does not count, nor does `log.progress`.
      path: run folder. It is locked until `close`.

    Raises:
      BadInput: the config is of another kind; or the folder is in use, holds another run, or its stream has ended.
    """
    given = configs.parse(configs.load_file(*config.partition(":")[::2]) if isinstance(config, str) else config)
    if not given.dataset.takes_arrays:
      raise BadInput(f"a Stream takes the config of a live stream of images, such as 'configs/live.py:anytime', but "
                     f"this one has problem={given.problem!r} and dataset.name={given.dataset.name!r}.")
    self._path = run_files.local(path)
    self._inbox = self._path.resolve() / INBOX
    changes = _OWN | {"dataset.name": f"{LIVE}{self._inbox}"}
    self._config = configs.parse(configs.nested(configs.changed(configs.flatten(configs.to_dict(given)), changes)))
    self._steps: Generator[loop.Session, None, results.Run] | None = None
    self._session: loop.Session | None = None
    self._exporter: tuple[settings.Setting, exporting.Exporter] | None = None
    self._predictor: tuple[Any, predictor.ImagePredictor, np.ndarray] | None = None  # (state, of it, its classes)
    self._is_closed = False
    with contextlib.ExitStack() as cleanup:
      try:
        self._folder = cleanup.enter_context(RunFolder(self._path))
      except InUse as error:
        raise InUse(f"{self._path} is in use; close the Stream that holds it, or end the process.") from error
      if (self._path / run_files.CONFIG).exists() and not self._inbox.is_dir():
        raise BadInput(f"{self._path} holds a run that is not of a Stream; choose another path.")
      (self._inbox / "stream").mkdir(parents=True, exist_ok=True)
      self._reader = live.image_reader(self._config)
      if any(self._inbox.glob("stream/[!.]*")) or (self._path / feed.LEDGER).exists():
        self._go_on()
      cleanup.pop_all()

  @property
  def num_updates(self) -> int:
    """Number of mega-batches that the stream has received, those of earlier processes included."""
    return len(self._session.now.lines) if self._session else 0

  def update(self, x: Any, y: Any) -> Entry:
    """Receives a mega-batch, and trains if the schedule says so.

    Args:
      x: raw examples [N, ...], uint8 or floats, of the shape of the first ones. N is at least 2.
      y: [N], whole numbers or names of classes. New ones may come.

    Returns:
      Its line of metrics.jsonl. `prequential_error` is the error on it before training; None if nothing was trained.

    Raises:
      BadInput: it cannot be used, and nothing has changed; or the stream has ended or is closed.
      Diverged, Unsaved: see `alma_jax.run`; the stream is closed. After any other exception too it is closed, and a new
        one goes on.
    """
    self._check_open()
    t = self.num_updates + 1
    entry = self._entry(t)
    self._folder.check_place()
    with experiment.explained(functools.partial(experiment.shortage, self._path)), examples.named(f"mega-batch {t}"):
      labels = class_labels.read(np.asarray(y) if hasattr(y, "dtype") else np.array(y, object))  # lists may mix kinds
      self._write(entry.with_name(f".{entry.name}"), _array(x), labels)
    entry.with_name(f".{entry.name}").rename(entry)
    try:
      self._go_on()
    except BadInput:
      if self._session is None:  # the first mega-batch and the config do not go together
        entry.unlink()
      raise
    assert self._session is not None
    return dict(self._session.now.lines[t - 1])

  def predict(self, x: Any) -> np.ndarray:
    """The class of each example, by the learner after its last training.

    Args:
      x: raw examples [N, ...].

    Returns:
      [N], numbers or names, as `update` got them.

    Raises:
      BadInput: nothing was trained yet, or x is not like the training examples.
    """
    return self.classes[self._predicted(x)[0]]

  def predict_proba(self, x: Any) -> np.ndarray:
    """The probabilities of `classes` for each example, float32 [N, K]; see `predict`."""
    return self._predicted(x)[1]

  @property
  def classes(self) -> np.ndarray:
    """[K], the classes that the learner knows, numbers or names; none before the first training.

    K is at least 2: with a single class so far, the other one is -1 or "".
    """
    return self._deployed()[1] if self._session and self._session.now.stage else np.zeros(0, int)

  def end(self) -> None:
    """Ends the stream for good: the run is complete, and has what `alma report` needs. `predict` still works.

    Raises:
      BadInput: the stream has no mega-batch, or is closed.
    """
    self._check_open()
    if not self.num_updates:
      raise BadInput(f"the stream in {self._path} has no mega-batch; call update before you end it.")
    (self._inbox / feed.END).touch()
    self._go_on()

  def close(self) -> None:
    """Saves the run, and releases its folder. `predict` still works."""
    if self._is_closed:
      return
    self._is_closed = True  # should_stop
    try:
      if self._steps is not None:
        with environment.fixed():
          next(self._steps)
    except Stopped:
      pass
    finally:
      self._folder.close()

  def __enter__(self) -> Self:
    return self

  def __exit__(self, *unused: object) -> None:
    self.close()

  def _check_open(self) -> None:
    if self._is_closed:
      raise self._ended() if (self._path / "summary.json").exists() else BadInput(
          f"the stream in {self._path} is closed; open it again by alma_jax.Stream(config, path), and it goes on.")

  def _ended(self) -> BadInput:
    return BadInput(f"the stream in {self._path} has ended; predict by alma_jax.load_run, or choose another path.")

  def _entry(self, t: int) -> pathlib.Path:
    return self._inbox / "stream" / f"{t:06d}.npz"

  def _write(self, path: pathlib.Path, x: np.ndarray, labels: class_labels.Labels) -> None:
    """Writes a mega-batch; raises BadInput if the run could not use it."""
    if x.dtype.hasobject:
      Form().fit(x)  # refuses it
    with path.open("wb") as file:
      np.savez(file, x=x, y=labels.numbers if labels.names is None else labels.text())
    protocol: Any = self._session and self._session.setting.protocol
    self._reader.read(path, protocol.source.feed.lines if protocol else [])

  def _go_on(self) -> None:
    """Goes on, from the beginning if need be, until the run waits for the next mega-batch or has ended."""
    try:
      with environment.fixed():
        if self._steps is None:
          steps = experiment.steps(self._config, self._path, should_stop=lambda: self._is_closed, held=self._folder)
          self._session, self._steps = next(steps), steps
        next(self._steps)
    except BaseException as error:
      if self._session is None and isinstance(error, BadInput):
        raise  # nothing has begun
      self._is_closed = True
      self._folder.close()
      if not isinstance(error, StopIteration):
        raise
    if self._session is None:
      raise self._ended()

  def _predicted(self, x: Any) -> tuple[np.ndarray, ...]:
    if not len(self.classes):
      raise BadInput(f"the stream in {self._path} has not trained yet; call update first.")
    with examples.named("x"):
      return self._deployed()[0].classified(_array(x))

  def _deployed(self) -> tuple[predictor.ImagePredictor, np.ndarray]:
    """(the predictor of the last training, its classes)."""
    assert self._session is not None
    setting, now = self._session.setting, self._session.now
    if self._exporter is None or self._exporter[0] is not setting:
      problem = setting.facts.problem
      self._exporter = setting, exporting.Exporter(setting.learner, problem, setting.config, self._path)
    if self._predictor is None or self._predictor[0] is not now.learner:
      with environment.fixed():
        files = self._exporter[1].files(setting.protocol.view(setting.learner, now))
      made: Any = predictor.load(predictors.stored(files), self._predictor and self._predictor[1])
      names, newest = made.known.classes.names, self._entry(self.num_updates)
      kind = unpacking.read_npz(newest, lambda _: ["y"])["y"].dtype.kind if newest.exists() else ""
      are_numbers = kind != "U" and all(name.isdecimal() for name in names if name)
      self._predictor = now.learner, made, np.array([int(name or -1) for name in names] if are_numbers else names)
    return self._predictor[1:]


def _array(x: Any) -> np.ndarray:
  try:
    return np.asarray(x)
  except ValueError as error:
    raise BadInput("its examples differ in shape; give an array [N, ...].") from error
