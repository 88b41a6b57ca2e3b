"""What a mega-batch of a long live stream costs at its beginning and at its end.

    python benchmarks/live.py [--num=10000] [--replay] [--every=1]

Mega-batches of 20 digits, moved by up to two pixels and with noise, lie in a folder and are used one after the other.
For the first and the last tenth it prints the median time from one line of metrics.jsonl to the next, and of a
checkpoint: on the clock, and of the processor, which other processes disturb less. The first 50 mega-batches, in which
programs are compiled, do not count.
"""
import argparse
import pathlib
import tempfile
import time

import numpy as np
from sklearn.datasets import load_digits

import alma_jax
from alma_jax import config as configs
from alma_jax.runs import loop
from alma_jax.store import run_files, run_folder

_SKIPPED, _SIZE = 50, 20


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("--num", type=int, default=10_000, help="number of mega-batches")
  parser.add_argument("--every", type=int, default=1, help="stream.waiting_time")
  parser.add_argument("--replay", action="store_true", help="with a memory of 500 examples")
  options = parser.parse_args()
  with tempfile.TemporaryDirectory() as folder:
    path = pathlib.Path(folder)
    drop(path, options.num)
    config = configs.base("sm")
    config.update_from_flattened_dict({
        "dataset.name": f"live:{path}", "dataset.settle_seconds": 0.0, "stream.num_megabatches": 0,
        "stream.waiting_time": options.every, "train.epochs": 3, "checkpoint.seconds": 5.0, "log.progress": False})
    if options.replay:
      config.update_from_flattened_dict({"stream.replay_share": 0.5, "stream.memory_size": 500})
    lines, saves = watched()
    alma_jax.run(config, path / "run")
  gaps, share = np.diff(np.array(lines), axis=0), options.num // 10
  compare("mega-batch", gaps[_SKIPPED:share + _SKIPPED], gaps[-share:])
  tenth = max(3, len(saves) // 10)
  compare(f"checkpoint (one of {len(saves)})", np.array(saves[:tenth]), np.array(saves[-tenth:]))


def compare(what: str, first: np.ndarray, last: np.ndarray) -> None:
  """Prints medians of two arrays [N, 2] of seconds on the clock and of the processor."""
  for name, early, late in zip(("clock", "processor"), *(1e3 * np.median(part, 0) for part in (first, last))):
    print(f"{what}, {name}: {early:.2f} ms in the first tenth, {late:.2f} ms in the last, ratio {late / early:.3f}")


def drop(folder: pathlib.Path, num: int) -> None:
  """Writes the stream, its test set and its end."""
  (folder / "stream").mkdir()
  images, labels = load_digits(return_X_y=True)
  images = images.reshape(-1, 8, 8)
  np.savez(folder / "test.npz", x=images[:300].astype(np.uint8), y=labels[:300])
  rng = np.random.default_rng(0)
  for t in range(num):
    which = rng.integers(300, len(images), _SIZE)
    x = np.roll(images[which], rng.integers(-2, 3, 2), (1, 2)) + rng.integers(0, 4, (_SIZE, 8, 8))
    np.savez(folder / "stream" / f"{t:06d}.npz", x=x.astype(np.uint8), y=labels[which])
  (folder / "end").touch()


def watched() -> tuple[list[tuple[float, float]], list[tuple[float, float]]]:
  """Lists that the run fills: (clock, processor) at every line, and the seconds of every checkpoint by both."""
  lines: list[tuple[float, float]] = []
  saves: list[tuple[float, float]] = []
  write, save = run_folder.RunFolder.append, loop.Session._save
  now = lambda: np.array([time.monotonic(), time.process_time()])

  def timed_write(self, name, entry) -> None:
    write(self, name, entry)
    if name == run_files.METRICS:
      lines.append(tuple(now()))

  def timed_save(self, *args, **options) -> None:
    began = now()
    save(self, *args, **options)
    self._checkpoints._manager.wait_until_finished()
    saves.append(tuple(now() - began))

  run_folder.RunFolder.append, loop.Session._save = timed_write, timed_save
  return lines, saves


if __name__ == "__main__":
  main()
