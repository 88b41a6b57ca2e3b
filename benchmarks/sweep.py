"""Eight digits runs with one worker, with two, and one command after the other; and the sweep's own time for a run.

    python benchmarks/sweep.py

Runs configs/sweeps/digits.py in temporary folders, each way --repeats times in turn,
after a first time that fills the compilation cache. Prints medians in seconds,
ratios, and for one worker what a run takes beyond its own wall_seconds.
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

FILE = "configs/sweeps/digits.py"


def main():
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("--repeats", type=int, default=3)
  repeats = parser.parse_args().repeats
  ways = {"one worker": lambda folder: sweep(folder, 1), "two workers": lambda folder: sweep(folder, 2),
          "one command each": commands}
  taken, beyond = {name: [] for name in ways}, []
  for i in range(repeats + 1):
    for name, way in ways.items():
      with tempfile.TemporaryDirectory() as folder:
        start = time.monotonic()
        way(pathlib.Path(folder))
        seconds = time.monotonic() - start
        own = [json.loads(path.read_text())["wall_seconds"] for path in pathlib.Path(folder).glob("*/summary.json")]
      if not i:
        continue  # the compilation cache is full from now on
      taken[name].append(seconds)
      if name == "one worker":
        beyond.append((seconds - sum(own)) / len(own))
  medians = {name: statistics.median(all_taken) for name, all_taken in taken.items()}
  for name, seconds in medians.items():
    print(f"{name}: {seconds:.1f} s, {medians['two workers'] / seconds:.2f} of it with two workers")
  print(f"two workers are {medians['one worker'] / medians['two workers']:.2f} times as fast as one, "
        f"{medians['one command each'] / medians['two workers']:.2f} times as fast as one command after the other")
  print(f"a run takes {statistics.median(beyond):.2f} s beyond its own wall_seconds with one worker, start-up included")


def sweep(folder, workers):
  subprocess.run([sys.executable, "-m", "alma_jax.sweep", f"--config={FILE}", f"--workdir={folder}",
                  f"--workers={workers}"], check=True, capture_output=True)


def commands(folder):
  for i, point in enumerate(runpy.run_path(FILE)["get_sweep"]().points):
    subprocess.run([sys.executable, "-m", "alma_jax.main", f"--config=configs/digits.py:{point['learner']}",
                    f"--config.stream.waiting_time={point['waiting_time']}", f"--config.seed={point['seed']}",
                    f"--workdir={folder / str(i)}"], check=True, capture_output=True)


if __name__ == "__main__":
  main()
