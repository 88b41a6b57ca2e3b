"""The run folder: its lock, the run that it belongs to, and the lines that the run appends."""
import contextlib
import errno
import functools
import os
import pathlib
import shutil
import time
import warnings
from collections.abc import Mapping
from typing import IO, Any, NamedTuple, Self

import filelock

from alma_jax import config as configs
from alma_jax.config import code, schema
from alma_jax.errors import BadInput, InUse, Unsaved
from alma_jax.files import write_bytes
from alma_jax.predictors import folder as predictors
from alma_jax.store import run_files
from alma_jax.store.metrics import Entry
from alma_jax.store.run_files import DOING, PREDICTOR, WRITTEN, json_bytes
from alma_jax.version import __version__

_READ_ONLY = (errno.EROFS, errno.EACCES, errno.EPERM)


class Identity(NamedTuple):
  """What makes a run the run in a folder.

  Attributes:
    config: RunConfig.
    digests: hashes of what decides the results besides the config, as config.json has them.
    made_with: what the rounding of the results depends on, by name.
    named_data: what has changed if the fingerprint of the data has.
  """
  config: schema.RunConfig
  digests: dict[str, Any]
  made_with: dict[str, str]
  named_data: str


class RunFolder:
  """A run folder, locked while it is open. Only one process of a run writes to it; the others only know its path."""

  def __init__(self, path: str | os.PathLike[str], writes: bool = True, address: str = ""):
    """Locks the folder; makes it if it does not exist.

    Args:
      path: the folder.
      writes: whether this process is the one that writes.
      address: in a store, if the folder is the local copy; "" otherwise.

    Raises:
      BadInput: a live process uses it, or it cannot be made. A folder with a
        finished run may be read-only.
    """
    self.path, self._writes = run_files.local(path), writes
    self.shown = address or str(self.path)  # the folder as messages name it
    self._files: dict[str, IO[bytes]] = {}
    self._lock: filelock.BaseFileLock | None = None
    self._read_only = False  # a finished run in a read-only folder, which is not locked
    if not writes:
      return
    try:
      self.path.mkdir(parents=True, exist_ok=True)
      self._lock = filelock.FileLock(self.path / ".lock")
      self._lock.acquire(timeout=0)
    except filelock.Timeout as error:
      raise InUse(f"the run folder {self.path} is in use by another process; wait until it ends, or choose another "
                  "folder.") from error
    except OSError as error:
      if error.errno not in _READ_ONLY or not (self.path / "summary.json").is_file():
        raise BadInput(f"the run folder {self.path} cannot be made or written: {error.strerror}.") from error
      self._lock, self._writes, self._read_only = None, False, True

  def claim(self, run: Identity, overwrite: bool) -> Self:
    """Makes sure that the folder is this run's, or empty, and returns it.

    Args:
      run: what the folder should belong to.
      overwrite: delete the run that is in it.

    Raises:
      BadInput: it holds another run, whose differing fields are named; or files
        that no run has written, which are never changed.
    """
    self._run = run
    if overwrite and self._read_only:
      raise BadInput(f"the run folder {self.path} cannot be written, which --overwrite needs; "
                     "choose another --workdir.")
    if self._lock is None and (overwrite or not (self.path / "summary.json").is_file()):
      return self  # another process claims it
    stored = run_files.find_config(self.path, of_any_format=overwrite)
    if stored is not None and not overwrite:
      self._compare(stored)
      self._compare_code(stored.get("code", {}))
      self._compare_made_with(stored.get("made_with", {}))
      return self  # the loop writes config.json once the run is restored
    if stored is not None:
      self._delete()
    elif foreign := [name for name in WRITTEN if (self.path / name).exists()]:
      raise BadInput(f"{self.shown} holds {', '.join(foreign)}, but not from a run of alma_jax; "
                     "choose another --workdir.")
    self.write_config()
    return self

  def write_config(self) -> None:
    """Writes config.json: every field, what identifies the run, and hashes of the user's own code.

    The hashes and `made_with` stay as they were when the run began.
    """
    if self._writes:
      first, run = run_files.find_config(self.path) or {}, self._run
      tree = dict(format=run_files.FORMAT, **configs.to_dict(run.config), **run.digests, alma_jax_version=__version__)
      own = first.get("code") or code.code_of(run.config)
      tree |= {"code": own} if own else {}
      tree |= dict(made_with=first.get("made_with") or run.made_with)
      self.write({run_files.CONFIG: json_bytes(tree)})

  def write(self, files: Mapping[str, bytes], again: bool = True) -> None:
    """Writes files, each whole or not at all.

    Args:
      files: {name: contents}.
      again: whether to replace those that exist.
    """
    for name, data in files.items():
      if self._writes and (again or not (self.path / name).exists()):
        write_bytes(self.path / name, data)

  def delete(self, name: str) -> None:
    """Deletes a file, if it exists."""
    if self._writes:
      (self.path / name).unlink(missing_ok=True)

  def publish(self, name: str, stage: int, files: Mapping[str, bytes]) -> None:
    """Replaces a predictor, which others may be reading.

    Args:
      name: of its folder in PREDICTOR; "": that folder itself.
      stage: after which it is written, from 0.
      files: {name: contents}.
    """
    if self._writes:
      predictors.publish(self.path / PREDICTOR / name, stage, files)

  def _delete(self) -> None:
    for name in WRITTEN:
      path, doomed = self.path / name, self.path / f".deleted-{name}"
      if doomed.is_dir():
        shutil.rmtree(doomed)
      if path.is_dir() and not path.is_symlink():
        path.rename(doomed)  # atomic, whereas the files of a folder are deleted one by one
        shutil.rmtree(doomed)
      else:
        path.unlink(missing_ok=True)

  def _compare(self, stored: dict[str, Any]) -> None:
    digests = self._run.digests
    before, arrays = stored.get("arrays", {}), digests.get("arrays", {})
    named = {"data_fingerprint": self._run.named_data,
             "root_sha256": "the network of learner.root (same folder, other weights)"}
    differ = configs.differences(stored, self._run.config)
    differ = differ or [what for key, what in named.items() if stored.get(key) != digests.get(key)]
    differ = differ or [f"the arrays that {name!r} loads (same name, other contents)"
                        for name in before.keys() | arrays.keys() if before.get(name) != arrays.get(name)]
    if differ:
      raise BadInput(f"{self.shown} holds another run, which differs in {', '.join(differ)}; "
                     "choose another --workdir, or --overwrite it.")

  def _compare_code(self, stored: dict[str, str]) -> None:
    now = code.code_of(self._run.config)
    for name in now.keys() & stored.keys():
      if now[name] != stored[name]:
        file = f"the file {name}" if name.endswith(".py") else f"the file that defines {name!r}"
        warnings.warn(f"{file} has changed since the run in {self.shown} began, so its "
                      "results belong to the old code; --overwrite starts it again", stacklevel=2)

  def _compare_made_with(self, stored: dict[str, str]) -> None:
    """Warns if an unfinished run goes on with versions, devices or flags that may round differently."""
    if (self.path / "summary.json").exists():
      return
    now = self._run.made_with
    differ = [f"{name} ({stored.get(name, 'not set')} there, {now.get(name, 'not set')} here)"
              for name in dict.fromkeys([*stored, *now]) if stored.get(name) != now.get(name)]
    if differ:
      warnings.warn(f"the run in {self.shown} began with other versions, devices or compiler flags, so rounding may "
                    f"make its results differ from an uninterrupted run: {', '.join(differ)}",
                    stacklevel=2)

  def cut(self, name: str, entries: list[Entry]) -> None:
    """Opens a .jsonl file for appending to these entries. If it does not begin with them, it is written again."""
    if self._writes:
      lines, written = self._lines(name), [*map(run_files.encoded, entries)]
      if lines and written and lines[:len(written)] != written:
        _warn_changed(self.path / name)
      self._open(name, written)

  def check_and_cut(self, name: str, num: int, total: str) -> None:
    """Opens a .jsonl file for appending to its first `num` lines.

    Args:
      name: of the file.
      num: lines that the checkpoint covers.
      total: their checksum, see `run_files.chained`.

    Raises:
      BadInput: the file has fewer or other lines than were written.
    """
    if not self._writes:
      return
    path, lines = self.path / name, self._lines(name)
    if len(lines) < num:
      raise BadInput(f"{path} has {len(lines)} whole lines, but the checkpoint covers {num}; restore the file, or "
                     "--overwrite the run.")
    if functools.reduce(run_files.chained, lines[:num], "") != total:
      raise BadInput(f"a line of {path} is not what the run has written; restore the file, or --overwrite the run.")
    self._open(name, lines[:num])

  def _lines(self, name: str) -> list[bytes]:
    """The whole lines of a file; a kill may have torn the last one."""
    path = self.path / name
    lines = path.read_bytes().splitlines(keepends=True) if path.exists() else []
    return [line for line in lines if line.endswith(b"\n")]

  def _open(self, name: str, lines: list[bytes]) -> None:
    if name in self._files:
      self._files.pop(name).close()
    write_bytes(self.path / name, b"".join(lines))
    self._files[name] = (self.path / name).open("ab")

  def mend(self, name: str, data: bytes) -> None:
    """Writes a file again if it is not what the run has written, and warns."""
    path = self.path / name
    if self._writes and not (path.is_file() and path.read_bytes() == data):
      _warn_changed(path)
      self.write({name: data})

  def append(self, name: str, entry: Entry) -> None:
    """Adds a line to a .jsonl file opened with `cut`, and flushes it.

    Raises:
      Unsaved: the folder is no longer in its place.
    """
    if self._writes:
      self.check_place()
      self._files[name].write(run_files.encoded(entry))
      self._files[name].flush()

  def check_place(self) -> None:
    """Raises Unsaved if the folder was moved, which would take the open files along, or deleted."""
    sentence = self.moved()
    if sentence is not None:
      raise Unsaved(sentence)

  def moved(self) -> str | None:
    """A sentence if the files that this process has opened are no longer in their place."""
    try:
      is_moved = not all(os.path.samestat(os.fstat(file.fileno()), (self.path / name).stat())
                         for name, file in self._files.items())
    except FileNotFoundError:
      is_moved = True
    return (f"{self.shown} was moved or deleted, or its files replaced, while the run wrote to it. Where it is now it "
            "goes on from its last checkpoint.") if is_moved else None

  def note(self, activity: str, seconds: float = 0.0) -> None:
    """Notes an activity and its seconds so far, for `alma status` and `alma board`; "": nothing takes long now."""
    with contextlib.suppress(OSError):  # a full disk shows when something important is written
      if activity:
        self.write({DOING: json_bytes(dict(activity=activity, since=time.time() - seconds))})
      else:
        self.delete(DOING)

  def sync(self) -> None:
    """Makes sure that all lines are on disk, in this folder."""
    self.check_place()
    for file in self._files.values():
      os.fsync(file.fileno())

  def close(self) -> None:
    """Closes files and releases the folder."""
    try:
      for file in self._files.values():
        file.close()
    finally:
      if self._lock is not None:
        self._lock.release()

  def __enter__(self) -> "RunFolder":
    return self

  def __exit__(self, *unused: object) -> None:
    self.close()


def _warn_changed(path: pathlib.Path) -> None:
  warnings.warn(f"{path} was not what the run has written, and was written again from the checkpoint", stacklevel=3)
