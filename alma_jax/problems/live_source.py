"""What the live sources of images and of text share: the folder, the feed, and the rows that are in memory."""
import functools
import pathlib
from typing import Any

import numpy as np

from alma_jax.config import schema
from alma_jax.data import feed, unpacking
from alma_jax.data.megabatches import Rows
from alma_jax.data.memory import Memory
from alma_jax.errors import BadInput


def folder_of(config: schema.RunConfig) -> pathlib.Path:
  """DIR of `live:DIR`.

  Raises:
    BadInput: there is no such folder.
  """
  folder = pathlib.Path(config.dataset.path).expanduser()
  if not folder.is_dir():
    raise BadInput(f"there is no folder {str(folder)!r} of a live stream; name yours by dataset.name=live:DIR.")
  return folder


def opened(config: schema.RunConfig, reader: feed.Reader, run: pathlib.Path | None) -> feed.Feed:
  """The feed of a run, once its first mega-batch has arrived.

  Args:
    config: of the run.
    reader: of its entries.
    run: folder of a run that goes on; None: a run that begins.

  Raises:
    BadInput: the folder cannot be used, or the stream has ended without a mega-batch.
  """
  folder = folder_of(config)
  section: Any = config.dataset  # sections.Live
  found = feed.Feed(folder, reader, settle=section.settle_seconds, idle=section.idle_seconds,
                    limit=config.stream.num_megabatches, run=run,
                    largest=unpacking.Limits(section.max_examples, section.max_bytes))
  if not found.wait(1):
    cause = (f"the file {feed.END} is there; remove it" if (folder / feed.END).exists() else
             f"none came within dataset.idle_seconds={section.idle_seconds:g}; raise it")
    raise BadInput(f"the live stream {str(folder)!r} has ended without a mega-batch that can be used, as {cause}, or "
                   "add entries.")
  return found


class LiveSource:
  """The part of a live source that does not depend on the kind of data.

  Attributes:
    feed: data.feed.Feed.
    megabatches: megabatches.Arrived.
    memory: memory.Memory.
    fingerprint: of what a run cannot change: the test set, declared classes or the tokenizer, the first mega-batch.
  """
  feed: feed.Feed
  memory: Memory
  problem: Any
  fingerprint: str
  _rows: Rows

  def num_outputs_after(self, t: int) -> int:
    """How many outputs a network needs for the labels up to mega-batch t."""
    del t
    return self.problem.num_outputs

  def set_outputs(self, num: int) -> None:
    """Changes the problem to networks with so many outputs."""
    del num

  def notes(self, t: int) -> dict[str, Any]:
    """What metrics.jsonl says about the entry of mega-batch t, besides its metrics."""
    del t
    return {}

  def fingerprint_after(self, t: int) -> str:
    """The fingerprint of all data up to mega-batch t, see feed.fingerprint."""
    known = self._fingerprints
    while len(known) <= t:
      known.append(feed.fingerprint(known[-1], self.feed.lines[len(known) - 1:len(known)]))
    return known[t]

  @functools.cached_property
  def _fingerprints(self) -> list[str]:
    """The fingerprints after 0, 1, ... mega-batches, as far as they were needed."""
    return [self.fingerprint]

  def release(self, ends: tuple[int, ...]) -> None:
    """Forgets the examples that no stage after those that end at `ends` can use."""
    self._rows.keep(self.memory.needed(ends))


def numbered(*parts: np.ndarray) -> list[np.ndarray]:
  """The parts of examples, int32, by their places in a pool that holds them one after the other."""
  ends = np.cumsum([len(part) for part in parts])
  return np.split(np.arange(ends[-1], dtype=np.int32), ends[:-1])


def capacity(num: int) -> int:
  """Size of a pool for `num` examples: a power of two, so that programs are compiled for few sizes."""
  return 1 << (num - 1).bit_length()


def padded(array: np.ndarray) -> np.ndarray:
  """[N, ...] -> [capacity(N), ...], with zeros at the end."""
  missing = capacity(len(array)) - len(array)
  return np.concatenate([array, np.zeros((missing, *array.shape[1:]), array.dtype)])
