"""The run folder, TensorBoard, and what a person sees meanwhile."""
import hashlib
import json
import math
import os
import pathlib
import shutil
import sys
import time
import warnings

import filelock

from alma_jax import config as configs
from alma_jax.errors import BadInput, InUse

METRICS, TRAIN = "metrics.jsonl", "train.jsonl"
# In the order in which --overwrite deletes them: what is left at any moment is
# still a run, unfinished, of the config that is there.
_OURS = ("summary.json", "checkpoints", METRICS, TRAIN, "curve.png", "tensorboard", "wandb", "tokenizer.json", "export",
         "config.json")


class RunFolder:
  """A run folder, locked while open; in all processes but one a mere path."""

  def __init__(self, path, writes=True):
    """Takes hold of the folder, making it if need be.

    Args:
      path: the folder.
      writes: whether this process is the one that writes.

    Raises:
      BadInput: a live process uses it, or it cannot be made.
    """
    self.path, self._writes = pathlib.Path(path).expanduser(), writes
    self._files, self._lock = {}, None
    if not writes:
      return
    try:
      self.path.mkdir(parents=True, exist_ok=True)
      self._lock = filelock.FileLock(self.path / ".lock")
      self._lock.acquire(timeout=0)
    except filelock.Timeout as error:
      raise InUse(f"the run folder {self.path} is in use by a live process.") from error
    except OSError as error:
      raise BadInput(f"the run folder {self.path} cannot be made or written: {error.strerror}.") from error

  def claim(self, config, fingerprint, overwrite):
    """Makes sure that the folder is this run's, or empty.

    Args:
      config: RunConfig.
      fingerprint: of the data.
      overwrite: delete the run that is in it.

    Raises:
      BadInput: it holds another run, the fields that differ are named; or
        files that no run of ours has written, which are never touched.
    """
    if not self._writes:
      return
    stored = read_json(self.path / "config.json")
    if not isinstance(stored, dict) or "data_fingerprint" not in stored:
      found = [name for name in _OURS if (self.path / name).exists()]
      if found:
        raise BadInput(f"{self.path} holds {', '.join(found)}, but not from a run of this program; "
                       "choose another --workdir.")
    elif overwrite:
      self._delete()
    else:
      self._compare(stored, config, fingerprint)
      return  # written anew once the run is restored
    self.write_config(config, fingerprint)

  def write_config(self, config, fingerprint):
    """Writes config.json: every field, and what the data were."""
    if self._writes:
      write_json(self.path / "config.json", dict(configs.to_dict(config), data_fingerprint=fingerprint))

  def write_files(self, files):
    """Writes {name: text}, which later sessions find as they are."""
    for name, text in files.items():
      if self._writes and not (self.path / name).exists():
        write_bytes(self.path / name, text.encode())

  def _delete(self):
    for name in _OURS:
      path, doomed = self.path / name, self.path / f".deleted-{name}"
      if doomed.is_dir():
        shutil.rmtree(doomed)
      if path.is_dir() and not path.is_symlink():
        path.rename(doomed)  # at once; the files of a folder go one by one
        shutil.rmtree(doomed)
      else:
        path.unlink(missing_ok=True)

  def _compare(self, stored, config, fingerprint):
    differ = configs.differences(stored, config)
    if not differ and stored["data_fingerprint"] != fingerprint:
      differ = ["the data (same name, other contents)"]
    if differ:
      raise BadInput(f"{self.path} holds another run, which differs in {', '.join(differ)}; "
                     "choose another --workdir, or --overwrite it.")

  def cut(self, name, lines):
    """Opens a .jsonl file for appending, keeping its first `lines` lines.

    Raises:
      BadInput: it has fewer; somebody has changed it.
    """
    if not self._writes:
      return
    path = self.path / name
    kept = path.read_bytes().splitlines(keepends=True)[:lines] if path.exists() else []
    if len(kept) < lines or (kept and not kept[-1].endswith(b"\n")):
      raise BadInput(f"{path} has {len(kept)} lines, but the checkpoint covers {lines}; "
                     "restore the file, or --overwrite the run.")
    write_bytes(path, b"".join(kept))
    self._files[name] = path.open("a")

  def append(self, name, entry):
    """Adds a line to a .jsonl file opened with `cut`, and flushes it."""
    if self._writes:
      self._files[name].write(json.dumps(entry, allow_nan=False) + "\n")
      self._files[name].flush()

  def sync(self):
    """Makes sure that all lines are on disk."""
    for file in self._files.values():
      os.fsync(file.fileno())

  def write_summary(self, summary):
    """Writes summary.json, whole or not at all."""
    if self._writes:
      write_json(self.path / "summary.json", summary)

  def close(self):
    """Closes files and releases the folder."""
    for file in self._files.values():
      file.close()
    if self._lock is not None:
      self._lock.release()

  def __enter__(self):
    return self

  def __exit__(self, *unused):
    self.close()


class TensorBoard:
  """Scalars of both .jsonl files, at t and at the running epoch number."""

  def __init__(self, folder, t, epoch):
    """Writes below `folder`, dropping what is later than `t` and `epoch`."""
    from tensorboardX import SummaryWriter
    # The files are named by the second, and another session may have begun in this one.
    suffix = f".{time.time_ns()}"
    self._stream = SummaryWriter(str(folder / "stream"), purge_step=t + 1, filename_suffix=suffix)
    self._train = SummaryWriter(str(folder / "train"), purge_step=epoch + 1, filename_suffix=suffix)
    self._epoch = epoch

  def stream(self, entry):
    """A line of metrics.jsonl."""
    self._write(self._stream, entry, entry["t"])

  def train(self, entry):
    """A line of train.jsonl."""
    self._epoch += 1
    self._write(self._train, entry, self._epoch)

  def flush(self):
    """Puts on disk what a checkpoint is about to cover."""
    self._stream.flush()
    self._train.flush()

  def close(self):
    self._stream.close()
    self._train.close()

  def _write(self, writer, entry, step):
    for key, value in entry.items():
      for name, number in _scalars(key, value):
        writer.add_scalar(name, number, step)


class Wandb:
  """The same scalars for Weights & Biases: `stream/...` over t, `train/...` over the number of the line.

  A resumed run goes on under its own name there; lines since its last checkpoint are told again, with equal values.
  """

  def __init__(self, folder, config, train_lines):
    """Tells of the run in `folder`, with its RunConfig, from line `train_lines` of train.jsonl on."""
    import wandb
    name = hashlib.sha256(str(folder.resolve()).encode()).hexdigest()[:16]
    self._run = wandb.init(project=config.log.wandb, id=name, name=folder.name, resume="allow", dir=str(folder),
                           config=configs.flatten(configs.to_dict(config)))
    self._run.define_metric("stream/*", step_metric="stream/t")
    self._run.define_metric("train/*", step_metric="train/line")
    self._line = train_lines

  def stream(self, entry):
    """A line of metrics.jsonl."""
    self._run.log({f"stream/{name}": number for key, value in entry.items() for name, number in _scalars(key, value)})

  def train(self, entry):
    """A line of train.jsonl."""
    self._line += 1
    told = {f"train/{name}": number for key, value in entry.items() for name, number in _scalars(key, value)}
    self._run.log(told | {"train/line": self._line})

  def flush(self):
    """wandb sends what it was told by itself."""

  def close(self):
    self._run.finish()


def _scalars(name, value):
  """(name, number) pairs of a number or of nested lists of them: "load/1/3" is load[1][3]."""
  if isinstance(value, list):
    for i, part in enumerate(value):
      yield from _scalars(f"{name}/{i}", part)
  elif isinstance(value, (int, float)) and not isinstance(value, bool):
    yield name, value


class Progress:
  """A bar over the training samples of the stream; silent without a terminal."""

  def __init__(self, enabled, total, done, metric="error", rounds="epoch"):
    """`total` samples at most, `done` of them in an earlier session; `metric` and `rounds` name what is shown."""
    self._metric, self._rounds = metric, rounds
    with warnings.catch_warnings():
      warnings.simplefilter("ignore")  # in a notebook without ipywidgets the bar is text
      from tqdm.auto import tqdm
    self._bar = tqdm(
        total=total, initial=done, unit=" samples", unit_scale=True, dynamic_ncols=True, mininterval=0.2,
        disable=not (enabled and (sys.stderr.isatty() or "ipykernel" in sys.modules)), leave=False,
        bar_format="{desc} {percentage:3.0f}%|{bar}| {rate_fmt}, {remaining} left")
    self._val = math.nan

  def update(self, samples, stage, num_stages, rounds, num_rounds, val=None):
    """Moves on by some samples; `val`, the metric on validation data, once a round has ended."""
    self._val = self._val if val is None else val
    shown = "" if math.isnan(self._val) else f" val {self._metric} {self._val:.4{'f' if self._val < 10 else 'g'}}"
    self._bar.set_description_str(
        f"stage {stage + 1}/{num_stages} {self._rounds} {rounds}/{num_rounds}{shown}", refresh=False)
    self._bar.update(min(samples, self._bar.total - self._bar.n))  # a stage may take longer than was thought

  def close(self):
    self._bar.close()


def read_json(path):
  """The contents of a JSON file, or None if there is none.

  Raises:
    BadInput: it is not JSON.
  """
  try:
    return json.loads(pathlib.Path(path).read_text())
  except FileNotFoundError:
    return None
  except (OSError, ValueError) as error:
    raise BadInput(f"{path} cannot be read as JSON ({error}); move the folder away or take another.") from error


def read_lines(path):
  """The entries of a .jsonl file, without a last line that is only half written.

  Raises:
    BadInput: another line is not JSON.
  """
  lines = pathlib.Path(path).read_text().split("\n")[:-1]
  try:
    return [json.loads(line) for line in lines]
  except ValueError as error:
    raise BadInput(f"{path} has a line that is no JSON ({error}); restore the file.") from error


def write_json(path, tree):
  """Writes JSON, whole or not at all."""
  write_bytes(path, (json.dumps(tree, indent=2, allow_nan=False) + "\n").encode())


def write_bytes(path, data):
  """Replaces a file's contents, whole or not at all."""
  temporary = path.with_name(f".{path.name}.tmp")
  with open(temporary, "wb") as file:
    file.write(data)
    file.flush()
    os.fsync(file.fileno())
  temporary.replace(path)
