"""The mega-batches of a live stream: entries of DIR/stream that arrive while the run goes on.

`Feed` reads an entry when it is complete, checks it, and writes what a resumed run needs into the run folder:
  stream.jsonl      a line per mega-batch: the entry's name, checksums, size, and what its reader notes of it
  megabatches/      the arrays of the mega-batches, so that a run can resume after entries have changed or disappeared
  rejected.jsonl    a line per entry that was set aside, with the reason
  notices.jsonl     a line per entry that changed or disappeared after it was used, or has the content of another
The order of the mega-batches is decided once, by stream.jsonl. So a run that is interrupted at any point sees the same
stream again.
"""
import contextlib
import functools
import hashlib
import json
import os
import pathlib
import time
from collections.abc import Generator, Iterable, Iterator, Mapping
from typing import Any, NamedTuple, Protocol

import numpy as np

from alma_jax import messages
from alma_jax.data import cache, inbox, unpacking
from alma_jax.errors import BadInput
from alma_jax.files import parse_json, write_bytes

LEDGER, COPIES, REJECTED, NOTICES = "stream.jsonl", "megabatches", "rejected.jsonl", "notices.jsonl"
FILES = (LEDGER, COPIES, REJECTED, NOTICES)
END = "end"  # the file in DIR that ends the stream
_OF_ENTRY: Mapping[str, type[Any]] = dict(name=str, signature=list)  # types of the entries of a line
_OF_LINE: Mapping[str, type[Any]] = {**_OF_ENTRY, "sha256": str, "t": int, "content": str, "arrays": str}
_POLL_SECONDS = 0.25
_RECHECK_SECONDS = 60.0  # between two looks at entries that were used

Arrays = dict[str, np.ndarray]
Line = dict[str, Any]


class Read(NamedTuple):
  """What a reader makes of an entry.

  Attributes:
    arrays: of the mega-batch.
    notes: JSON-able entries for its line of stream.jsonl; `num` is the number of its examples.
    digest: of the content, whatever its format.
    remarks: sentences for the person at the terminal.
  """
  arrays: Arrays
  notes: Line
  digest: str
  remarks: tuple[str, ...] = ()


class Reader(Protocol):
  """Reads and checks entries of one kind of data."""

  @property
  def notes(self) -> Mapping[str, type[Any]]:
    """{name: type} of the notes that every line has; lists are of strings or of whole numbers."""

  def read(self, path: pathlib.Path, lines: list[Line]) -> Read:
    """Reads an entry that comes after those of `lines`; raises BadInput with the reason if it cannot be used."""


class Feed:
  """The mega-batches of a live stream.

  Attributes:
    folder: DIR.
    lines: the entries of stream.jsonl, one for each mega-batch t = 1..len(lines).
  """

  def __init__(self, folder: pathlib.Path, reader: Reader, *, settle: float, idle: float, limit: int,
               run: pathlib.Path | None, largest: unpacking.Limits = unpacking.NO_LIMITS):
    """Opens a stream. Nothing is written before `attach`.

    Args:
      folder: DIR, which has a folder `stream`.
      reader: of its entries.
      settle, idle, limit: dataset.settle_seconds, dataset.idle_seconds and stream.num_megabatches.
      run: folder of a run that goes on; None: a run that begins.
      largest: dataset.max_examples and dataset.max_bytes.

    Raises:
      BadInput: there is no such folder, or the run's files are damaged.
    """
    self.folder, self._reader, self._idle, self._limit, self._largest = folder, reader, idle, limit, largest
    self._stream = folder / "stream"
    self._inbox = inbox.Inbox(self._stream, settle)
    self._path: pathlib.Path | None = None  # of the run, once it may be written to
    self._run = run
    self.lines: list[Line] = []
    self._held: dict[int, Arrays] = {}  # arrays that are not in a file yet
    self._pending: list[tuple[str, Line]] = []  # lines that are not in a file yet
    self._contents: dict[str, str] = {}  # {digest of the content: name} of the mega-batches
    self._noticed: set[tuple[str, str]] = set()
    self._checked_at = time.monotonic()
    self._arrived_at = time.monotonic()
    _check_folder(self._stream)
    if run is not None:
      self._resume(run)

  # ------------------------------------------------------------------ what has arrived

  def until(self, t: int, after: str = "") -> Generator[None, None, bool]:
    """Yields several times a second until mega-batch t is there, or the stream has ended. The first time it is at once.

    Args:
      t: from 1; all before it are there.
      after: what the person at the terminal should know while the run waits.

    Returns:
      False if the stream has ended before it.
    """
    if self.poll(t):
      return True
    waits, poll = 0, min(_POLL_SECONDS, self._idle or 1)
    with messages.sign(f"waiting for mega-batch {t}", shown=False):
      while not self.poll(t):
        if self._has_ended(t):
          return False
        if waits == 1:
          messages.say(f"waiting for mega-batch {t} in {self._stream}{after}")
        if time.monotonic() - self._checked_at > _RECHECK_SECONDS:
          self.recheck()
        if waits:
          time.sleep(poll)
        waits += 1
        yield
      return True

  def poll(self, t: int) -> bool:
    """Whether mega-batch t is there; takes it from the folder if it has arrived."""
    while t > len(self.lines):
      if self._limit and t > self._limit:
        return False
      try:
        found = self._inbox.next()
      except OSError as error:
        self._notice("unreadable", "stream", error=str(error.strerror))
        return False
      if found is None:
        return False
      self._take(*found)
    return True

  def is_last(self, t: int) -> bool:
    """Whether the stream is known to end with mega-batch t."""
    return t == self._limit or (not self.poll(t + 1) and self._has_ended(t + 1))

  def arrays(self, t: int) -> Arrays:
    """The arrays of mega-batch t.

    Raises:
      BadInput: neither the run's copy nor the entry is there any more.
    """
    if t in self._held:
      return self._held[t]
    line, where = self.lines[t - 1], self._path or self._run
    if where is not None:
      with contextlib.suppress(BadInput):
        arrays = unpacking.read_npz(_copy(where, t))
        if cache.hash_arrays(arrays) == line["arrays"]:
          return arrays
    path = self._stream / line["name"]
    if inbox.digest(path) != line["sha256"]:
      raise BadInput(f"mega-batch {t} is needed again, but the run's copy of it is gone, and so is {path} or what it "
                     "held; restore the entry, or --overwrite the run.")
    arrays = self._reader.read(path, self.lines[:t - 1]).arrays
    if where is self._path and where is not None:
      _save(_copy(where, t), arrays)
    return arrays

  # ------------------------------------------------------------------ the run folder

  def attach(self, path: pathlib.Path) -> None:
    """From now on the run folder `path`, which is locked, may be written to."""
    self._path = path
    (path / COPIES).mkdir(exist_ok=True)
    if (path / LEDGER).exists():  # a kill may have torn the last line
      num = len(self.lines) - sum(name == LEDGER for name, _ in self._pending)
      whole = "".join(json.dumps(line) + "\n" for line in self.lines[:num])
      if (path / LEDGER).read_text() != whole:
        write_bytes(path / LEDGER, whole.encode())
    for t, arrays in self._held.items():
      _save(_copy(path, t), arrays)
    for name, line in self._pending:
      _append(path / name, line)
    self._pending, self._held = [], {}
    self.recheck()

  def forget(self, t: int) -> None:
    """Deletes the run's copies of the mega-batches up to t, which it will not need again."""
    while self._path is not None and t > 0 and _copy(self._path, t).exists():
      _copy(self._path, t).unlink()
      t -= 1

  def recheck(self) -> None:
    """Reports entries that have changed or disappeared since they were used."""
    self._checked_at = time.monotonic()
    with messages.sign(f"looking for changes in {self._stream}"):
      for line in self.lines:
        path = self._stream / line["name"]
        signature = inbox.signature_of(path)
        if signature is None:
          self._notice("disappeared", path.name, t=line["t"])
        elif signature != tuple(line["signature"]) and inbox.digest(path) != line["sha256"]:
          self._notice("changed", path.name, t=line["t"])

  def _resume(self, run: pathlib.Path) -> None:
    self.lines = _read(run / LEDGER, {**_OF_LINE, **self._reader.notes})
    if [line["t"] for line in self.lines] != list(range(1, len(self.lines) + 1)):
      raise BadInput(f"the lines of {run / LEDGER} should be mega-batches 1 to {len(self.lines)}, in this order; "
                     "restore it, or --overwrite the run.")
    for line in _read(run / REJECTED, _OF_ENTRY):
      self._inbox.finish(line["name"], tuple(line["signature"]))
    for line in self.lines:  # some of them were rejected at first, and repaired
      self._inbox.finish(line["name"])
      self._contents.setdefault(line["content"], line["name"])
    self._noticed = {(line["notice"], line["name"]) for line in _read(run / NOTICES, dict(notice=str, name=str))}

  # ------------------------------------------------------------------ an entry

  def _take(self, path: pathlib.Path, signature: inbox.Signature) -> None:
    self._arrived_at = time.monotonic()
    try:
      if inbox.special(path) is not None:
        raise BadInput(f"{inbox.special(path)} is no file and no folder.")
      with messages.sign(f"reading {path.name}"), unpacking.limited(self._largest):
        read = self._reader.read(path, self.lines)
      with messages.sign(f"hashing {path.name}"):  # only now: hashing an entry that is too large would take long
        sha256 = inbox.digest(path)
    except BadInput as error:
      if inbox.signature_of(path) != signature:
        return  # it was still being written
      self._inbox.finish(path.name, signature)
      self._record(REJECTED, dict(name=path.name, reason=str(error), signature=list(signature)))
      messages.say(f"set aside {path}: {error}")
      return
    if inbox.signature_of(path) != signature:
      return
    t = len(self.lines) + 1
    late = [line["name"] for line in self.lines[-1:] if path.name < line["name"]]
    line = dict(t=t, name=path.name, sha256=sha256, content=read.digest, arrays=cache.hash_arrays(read.arrays),
                signature=list(signature), **read.notes)
    if self._path is None:
      self._held[t] = read.arrays
    else:
      with messages.sign(f"copying {path.name}"):
        _save(_copy(self._path, t), read.arrays)
    self._inbox.finish(path.name)
    self.lines.append(line)
    self._record(LEDGER, line)
    for remark in read.remarks:
      messages.say(f"{path.name}: {remark}")
    if late:
      messages.say(f"{path.name} arrived after {late[0]} was used, and is mega-batch {t}")
    if read.digest in self._contents:
      self._notice("duplicate", path.name, t=t, of=self._contents[read.digest])
    self._contents.setdefault(read.digest, path.name)

  def _has_ended(self, t: int) -> bool:
    """Whether nothing comes any more, given that mega-batch t is not there."""
    if self._limit and t > self._limit:
      return True
    if not self._inbox.is_empty:
      return False
    if self._idle and time.monotonic() - self._arrived_at >= self._idle:
      return True
    if not (self.folder / END).exists():
      return False
    self._inbox.refresh()  # an entry may have arrived just before the end
    return not self.poll(t) and self._inbox.is_empty

  def _notice(self, what: str, name: str, **facts: Any) -> None:
    if (what, name) in self._noticed:
      return
    self._noticed.add((what, name))
    self._record(NOTICES, dict(notice=what, name=name, **facts))
    of = f" {facts['of']}" if "of" in facts else ""
    sentence = dict(duplicate=f"has the same content as{of}; both are used",
                    unreadable=f"cannot be read: {facts.get('error')}",
                    changed="has changed since it was used; the run goes on with what it was. Put what is new into the "
                            "stream under another name",
                    disappeared="has disappeared since it was used; the run goes on with its own copy")[what]
    messages.say(f"{self._stream / name if what != 'unreadable' else self._stream} {sentence}")

  def _record(self, file: str, line: Line) -> None:
    if self._path is None:
      self._pending.append((file, line))
    else:
      _append(self._path / file, line)


def fingerprint(before: str, lines: Iterable[Line]) -> str:
  """SHA-256 of all data that a run has used, whatever the format of its entries.

  Args:
    before: fingerprint of the data before `lines`; for the first line, the fingerprint of the run.
    lines: lines of stream.jsonl, in order.
  """
  return functools.reduce(lambda sha256, line: hashlib.sha256((sha256 + line["content"]).encode()).hexdigest(),
                          lines, before)


def _check_folder(folder: pathlib.Path) -> None:
  if not folder.is_dir():
    raise BadInput(f"there is no folder {str(folder)!r} of mega-batches; make it, and name the folder above it by "
                   "dataset.name=live:DIR.")
  if not os.access(folder, os.R_OK | os.X_OK):
    raise BadInput(f"the folder {str(folder)!r} cannot be read: permission denied; change its permissions.")


def _copy(run: pathlib.Path, t: int) -> pathlib.Path:
  return run / COPIES / f"{t:06d}.npz"


def _save(path: pathlib.Path, arrays: Arrays) -> None:
  temporary = path.with_name(f".{path.name}.tmp")
  with open(temporary, "wb") as file:
    np.savez(file, **arrays)  # type: ignore[arg-type]
  temporary.replace(path)


def _append(path: pathlib.Path, line: Line) -> None:
  with path.open("a") as file:
    file.write(json.dumps(line) + "\n")


def _read(path: pathlib.Path, kinds: Mapping[str, type[Any]]) -> list[Line]:
  """The whole lines of a .jsonl file, none if it does not exist; `kinds` are the types of their entries."""
  try:
    return list(_parsed(path, kinds))
  except FileNotFoundError:
    return []
  except ValueError as error:
    raise BadInput(f"{path} has a line that the run has not written ({error}); restore it, or --overwrite the run."
                   ) from error


def _parsed(path: pathlib.Path, kinds: Mapping[str, type[Any]]) -> Iterator[Line]:
  for line in path.read_text().split("\n")[:-1]:
    entry = parse_json(line)
    if not isinstance(entry, dict):
      raise ValueError("it is no object")
    for key, kind in kinds.items():
      value: Any = entry.get(key)
      if type(value) is not kind or (kind is list and {*map(type, value)} not in (set(), {int}, {str})):
        raise ValueError(f"its {key!r} is {str(value)[:40]!r}")
    if len(entry.get("signature", (0, 0, 0))) != 3 or pathlib.PurePath(entry["name"]).name != entry["name"]:
      raise ValueError("it names no entry")
    yield entry
