"""Measures eight digits runs in a sweep with one worker, in a sweep with two, and as one command after the other.

    python benchmarks/sweep.py

Runs configs/sweeps/digits.py in temporary folders, each way --repeats times in turn, after a first turn that fills the
compilation cache. Prints medians in seconds, their ratios, and the time that a sweep with one worker adds to a run.
"""
import argparse
import json
import pathlib
import runpy
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable

FILE = "configs/sweeps/digits.py"


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("--repeats", type=int, default=3)
  repeats = parser.parse_args().repeats
  ways: dict[str, Callable[[pathlib.Path], None]] = {
      "one worker": lambda folder: sweep(folder, 1), "two workers": lambda folder: sweep(folder, 2),
      "one command each": commands}
  measured: dict[str, list[float]] = {name: [] for name in ways}
  added: list[float] = []
  for i in range(repeats + 1):
    for name, way in ways.items():
      with tempfile.TemporaryDirectory() as folder:
        start = time.monotonic()
        way(pathlib.Path(folder))
        seconds = time.monotonic() - start
        own = [json.loads(path.read_text())["wall_seconds"] for path in pathlib.Path(folder).glob("*/summary.json")]
      if not i:
        continue  # this turn has filled the compilation cache
      measured[name].append(seconds)
      if name == "one worker":
        added.append((seconds - sum(own)) / len(own))
  medians = {name: statistics.median(seconds) for name, seconds in measured.items()}
  for name, seconds in medians.items():
    print(f"{name}: {seconds:.1f} s; two workers take {medians['two workers'] / seconds:.2f} of this")
  print(f"two workers are {medians['one worker'] / medians['two workers']:.2f} times as fast as one, and "
        f"{medians['one command each'] / medians['two workers']:.2f} times as fast as one command after the other")
  print(f"with one worker a run takes {statistics.median(added):.2f} s more than its wall_seconds, start-up included")


def sweep(folder: pathlib.Path, workers: int) -> None:
  """Runs the sweep with this number of workers."""
  subprocess.run([sys.executable, "-m", "alma_jax.sweep", f"--config={FILE}", f"--workdir={folder}",
                  f"--workers={workers}"], check=True, capture_output=True)


def commands(folder: pathlib.Path) -> None:
  """Runs the same runs, one command after the other."""
  for i, point in enumerate(runpy.run_path(FILE)["get_sweep"]().points):
    subprocess.run([sys.executable, "-m", "alma_jax.main", f"--config=configs/digits.py:{point['learner']}",
                    f"--config.stream.waiting_time={point['waiting_time']}", f"--config.seed={point['seed']}",
                    f"--workdir={folder / str(i)}"], check=True, capture_output=True)


if __name__ == "__main__":
  main()
