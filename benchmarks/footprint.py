"""Measures start-up times, memory, and whether the later stages of a growing ensemble take longer.

    python benchmarks/footprint.py --data_dir ~/tensorflow_datasets

Prints the seconds of `--help`, of configs/digits.py:ens from an empty compilation cache to its summary, and of loading
mnist a second time; the peak memory of a whole process of mnist and of cifar; and how long the stages 46 to 50 of gens
on mnist take relative to the stages 5 to 9.
"""
import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("--data_dir", default="", help="folder of prepared TFDS data sets")
  parser.add_argument("--repeats", type=int, default=3)
  args = parser.parse_args()
  data = [f"--config.dataset.data_dir={args.data_dir}"]

  print_median("--help", [launch("--help")[0] for _ in range(args.repeats)])
  print_median("digits:ens, cold", [cold_digits() for _ in range(args.repeats)])
  load = "import time; t = time.time(); from alma_jax.data import datasets; " \
         f"datasets.load('mnist', {args.data_dir!r}); print(time.time() - t)"
  for _ in range(2):
    seconds = float(subprocess.run([sys.executable, "-c", load], check=True, capture_output=True, text=True).stdout)
  print(f"mnist loaded a second time: {seconds:.2f} s", flush=True)

  with tempfile.TemporaryDirectory() as folder:
    for name, flags in (("mnist", ["--config.train.epochs=2"]),
                        ("cifar", ["--config.train.epochs=1", "--config.stream.num_megabatches=10",
                                   "--config.learner.num_members=5"])):
      seconds, peak = launch(f"--config=configs/{name}.py:ens", *data, *flags, f"--workdir={folder}/{name}")
      print(f"{name}:ens {' '.join(flags)}: {seconds:.0f} s, peak memory {peak / 2**20:.2f} GB", flush=True)
    ratios = []
    for i in range(args.repeats):
      launch("--config=configs/mnist.py:gens", *data, "--config.train.patience=0", f"--workdir={folder}/gens{i}")
      ratios.append(growth_of_seconds(f"{folder}/gens{i}"))
    print(f"gens, mnist: stages 46-50 take {statistics.median(ratios):.2f} times stages 5-9 "
          f"({', '.join(f'{r:.2f}' for r in ratios)})")


def cold_digits() -> float:
  """Seconds of a digits run with an empty compilation cache."""
  with tempfile.TemporaryDirectory() as folder:
    return launch("--config=configs/digits.py:ens", f"--workdir={folder}/run", cache=folder)[0]


def growth_of_seconds(workdir: str) -> float:
  """Median seconds of the stages 46 to 50 of a run, over those of the stages 5 to 9."""
  import alma_jax

  run = alma_jax.load_run(workdir)
  seconds = run.metrics["seconds"][run.metrics["updated"]]
  return statistics.median(seconds[45:50]) / statistics.median(seconds[4:9])


def launch(*flags: str, cache: str | None = None) -> tuple[float, int]:
  """(seconds, peak resident kB) of the command line with these flags."""
  env = dict(os.environ, **({"XDG_CACHE_HOME": cache} if cache else {}))
  began = time.monotonic()
  process = subprocess.Popen([sys.executable, "-m", "alma_jax.main", *flags], env=env,
                             stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
  assert process.stderr is not None
  message = process.stderr.read()
  _, status, usage = os.wait4(process.pid, 0)
  if status:
    sys.exit(message.decode())
  return time.monotonic() - began, usage.ru_maxrss


def print_median(name: str, seconds: Sequence[float]) -> None:
  print(f"{name}: {statistics.median(seconds):.2f} s ({', '.join(f'{s:.2f}' for s in seconds)})", flush=True)


if __name__ == "__main__":
  main()
