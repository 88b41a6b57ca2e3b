"""Prints the prequential errors of live streams in which the scale of columns changes at night 6 (docs/live.md).

    python benchmarks/scales.py [--learner=anytime]

A night has 400 examples of 5 columns N(0, 1); the class is the sign of the sum of columns 1 and 2. Every stream runs
twice: as usual, and with the normalisation constants of the first night throughout.
"""
import math
import pathlib
import tempfile

import jax
import numpy as np

import alma_jax
from alma_jax import commands
from alma_jax import config as configs
from alma_jax.data import normalization

NIGHTS, CHANGE, SHOWN = 10, 6, (5, 6, 7, 10)
CHANGES = {"column 0 is 0, then has deviation 1e4": lambda x, late: x * np.array([1e4 if late else 0, 1, 1, 1, 1]),
           "all columns times 1000": lambda x, late: x * (1000 if late else 1),
           "all columns divided by 1000": lambda x, late: x / (1000 if late else 1)}


def errors(change, learner: str, folder: pathlib.Path) -> list[float]:
  rng = np.random.default_rng(0)
  (folder / "stream").mkdir(parents=True)
  for t in range(1, NIGHTS + 1):
    x = rng.normal(size=(400, 5))
    np.savez(folder / f"stream/{t:03d}.npz", x=change(x, t >= CHANGE).astype(np.float32),
             y=(x[:, 1] + x[:, 2] > 0).astype(int))
  (folder / "end").touch()
  config = configs.base(learner)
  config.update_from_flattened_dict({
      "dataset.name": f"live:{folder}", "stream.num_megabatches": 0, "stream.schedule": "every",
      "stream.waiting_time": 1, "log.progress": False, "log.tensorboard": False})
  return list(alma_jax.run(config, folder / "run").metrics["prequential_error"])


def main() -> None:
  parser = commands.Parser("benchmarks/scales.py", __doc__)
  parser.add_argument("--learner", default="anytime")
  learner = parser.parse_args().learner
  for ratio in (normalization.RATIO, math.inf):
    normalization.RATIO = ratio  # with an infinite ratio, constants always fit
    jax.clear_caches()  # compiled programs contain the ratio
    for number, (name, change) in enumerate(CHANGES.items()):
      with tempfile.TemporaryDirectory() as folder:
        found = errors(change, learner, pathlib.Path(folder) / f"{number}-{ratio}")
      print(f"{name}, {'first constants' if math.isinf(ratio) else 'as usual'}: "
            + ", ".join(f"night {t} {found[t - 1]:.3f}" for t in SHOWN), flush=True)


if __name__ == "__main__":
  main()
