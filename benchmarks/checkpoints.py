"""What the checkpoints of a run cost, as a share of its time.

    python benchmarks/checkpoints.py --data_dir ~/tensorflow_datasets --config=configs/mnist.py:ens
    python benchmarks/checkpoints.py --data_dir ~/tensorflow_datasets --config=configs/cifar.py:ens \
        --config.model.width=16
    python benchmarks/checkpoints.py --config=configs/lm.py:sm,tiny --config.dataset.name=text:books

Runs a config in this process, and waits for every checkpoint until it is on disk. A run does not wait: the files are
written beside its training. The seconds of this script are therefore the most that checkpoints can cost. `--minutes`
stops the run early.
"""
import argparse
import statistics
import sys
import tempfile
import time
from typing import Any

import alma_jax
from alma_jax import commands
from alma_jax import config as configs
from alma_jax import main as command
from alma_jax.errors import Stopped
from alma_jax.store import checkpoint


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter,
                                   allow_abbrev=False)
  parser.add_argument("--data_dir", default="", help="folder of prepared TFDS data sets")
  parser.add_argument("--minutes", type=float, default=60.0, help="stop the run after this time")
  args, flags = parser.parse_known_args()
  commands.quiet()
  if args.data_dir:
    flags.append(f"--config.dataset.data_dir={args.data_dir}")
  _, config = command._parse([*flags, "--config.log.progress=False"])
  measure(config, 60 * args.minutes)


def measure(config: Any, most: float) -> None:
  """Runs a config for at most `most` seconds, and prints what its checkpoints cost."""
  seconds: list[float] = []
  save = checkpoint.Checkpoints.save

  def saved(self: checkpoint.Checkpoints, *args: Any, **kwargs: Any) -> None:
    began = time.perf_counter()
    save(self, *args, **kwargs)
    self.wait()
    seconds.append(time.perf_counter() - began)

  checkpoint.Checkpoints.save = saved  # type: ignore[method-assign]
  began = time.perf_counter()
  with tempfile.TemporaryDirectory() as folder:
    try:
      alma_jax.run(configs.parse(config), folder, should_stop=lambda: time.perf_counter() - began > most)
    except Stopped:
      pass
  wall = time.perf_counter() - began
  print(f"{len(seconds)} checkpoints in {wall:.1f} s, {statistics.median(seconds) * 1e3:.0f} ms each (at most "
        f"{max(seconds) * 1e3:.0f}), together {sum(seconds):.2f} s, {sum(seconds) / wall:.2%} of the run")


if __name__ == "__main__":
  sys.exit(commands.exit_code(main))
