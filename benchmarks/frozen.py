"""Time and space of saving what a run freezes: each block is written once and kept twice.

    python benchmarks/frozen.py

Blocks have about the sizes of an MLP of width 8 on the digits, one of width 64 on MNIST, VGG19 of width 16 and ResNet18
of width 64; the values are random. For comparison they are saved in Orbax's format as well, once, as version 0.1 did.
"""
import pathlib
import sys
import tempfile
import time
from collections.abc import Callable

import numpy as np
import orbax.checkpoint as ocp

from alma_jax import commands
from alma_jax.store import checkpoint

_BLOCKS = ((682, 6), (54_000, 6), (1_200_000, 60), (11_000_000, 60))  # parameters, arrays
_NUM = 5  # blocks of a size; the first save does not count

Block = dict[str, np.ndarray]


def main() -> None:
  commands.Parser("benchmarks/frozen.py", __doc__).parse_args()
  for num_params, num_arrays in _BLOCKS:
    rng = np.random.default_rng(0)
    blocks = [{str(i): rng.normal(size=num_params // num_arrays).astype(np.float32) for i in range(num_arrays)}
              for _ in range(_NUM)]
    with tempfile.TemporaryDirectory() as folder:
      print(f"{num_params:>10,} parameters: {compare(pathlib.Path(folder), blocks)}", flush=True)


def compare(folder: pathlib.Path, blocks: list[Block]) -> str:
  """What both formats take, and the time of opening a checkpoint that refers to the blocks."""
  saver = checkpoint.Checkpoints(folder / "run", 1)
  pool = measure(folder / "run" / checkpoint.POOL, blocks, saver._frozen.save)
  orbax = measure(folder / "orbax", blocks, lambda i, block: _save(folder / f"orbax/{i}", block))
  opening = _opening(folder / "run", saver, blocks)
  return f"the pool {pool}; Orbax {orbax}; opening a checkpoint with {len(blocks)} blocks {opening * 1e3:.0f} ms"


def measure(folder: pathlib.Path, blocks: list[Block], save: Callable[[int, Block], object]) -> str:
  """The time of the fastest save of a block, and the number and size of its files in `folder`."""
  seconds = []
  for i, block in enumerate(blocks):
    began = time.perf_counter()
    save(i, block)
    seconds.append(time.perf_counter() - began)
  files = [path for path in folder.rglob("*") if path.is_file()]
  space = sum(path.stat().st_size for path in files) / sum(leaf.nbytes for block in blocks for leaf in block.values())
  return f"{min(seconds[1:]) * 1e3:.1f} ms, {len(files) / len(blocks):g} files, {space:.2f} times the bytes"


def _save(folder: pathlib.Path, block: Block) -> None:
  with ocp.StandardCheckpointer() as checkpointer:
    checkpointer.save(folder, block)


def _opening(folder: pathlib.Path, saver: checkpoint.Checkpoints, blocks: list[Block]) -> float:
  """Seconds."""
  saver.save({"lines": []}, {}, tuple(blocks))
  saver.finish()
  again = checkpoint.Checkpoints(folder, 1)
  began = time.perf_counter()
  again.newest()
  return time.perf_counter() - began


if __name__ == "__main__":
  sys.exit(commands.exit_code(main))
