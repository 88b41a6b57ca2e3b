"""Time and space of saving what a run freezes: each block is written once and kept twice.

    python benchmarks/frozen.py

Blocks have the sizes of an MLP of width 8 on the digits, one of width 64 on MNIST, VGG19 of width 16 and ResNet18 of
width 64, random values and so many arrays.
"""
import pathlib
import tempfile
import time

import numpy as np

from alma_jax.runs import checkpoint

_BLOCKS = ((682, 6), (54_000, 6), (1_200_000, 60), (11_000_000, 60))  # parameters, arrays
_NUM = 4  # blocks of a size


def main() -> None:
  for num_params, num_arrays in _BLOCKS:
    with tempfile.TemporaryDirectory() as folder:
      print(measure(pathlib.Path(folder), num_params, num_arrays), flush=True)


def measure(folder: pathlib.Path, num_params: int, num_arrays: int) -> str:
  """A line about blocks of one size; the time is that of the fastest save, of which the first does not count."""
  rng = np.random.default_rng(0)
  saver, frozen, seconds = checkpoint.Checkpoints(folder, 1), [], []
  for stage in range(_NUM):
    frozen.append({str(i): rng.normal(size=num_params // num_arrays).astype(np.float32) for i in range(num_arrays)})
    began = time.perf_counter()
    saver._frozen.save(stage, frozen[-1])
    seconds.append(time.perf_counter() - began)
  saver.save({"stage": 0}, {}, tuple(frozen))
  saver.finish()
  files = [path for path in (folder / checkpoint.POOL).rglob("*") if path.is_file()]
  again = checkpoint.Checkpoints(folder, 1)
  began = time.perf_counter()
  again.newest()
  opening = time.perf_counter() - began
  space = sum(path.stat().st_size for path in files) / (_NUM * 4 * num_params)
  return (f"{num_params:>10,} parameters: {min(seconds[1:]) * 1e3:6.1f} ms a save, {len(files) / _NUM:g} files, "
          f"{space:.2f} times the bytes; opening a checkpoint with {_NUM}: {opening * 1e3:.0f} ms")


if __name__ == "__main__":
  main()
