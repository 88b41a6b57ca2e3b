"""Compares a whole first run, from an empty compilation cache, with the training loop of eager PyTorch.

    pip install torch
    python benchmarks/start.py --data_dir ~/tensorflow_datasets

Cases: an ensemble of five against five plain networks, and a mixture of experts that grows at each of 50 stages
against one plain network. Our seconds are those of a process from its start to its end. PyTorch's are those of its
training steps alone, with its data in memory as tensors, in one thread or all threads, whichever is faster: seconds of
a step, times the number of steps. The two take turns. `--warm` runs each case a second time, with the programs of the
first.
"""
import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time

import throughput

FIELDS = ["--config.stream.num_megabatches=50", "--config.stream.waiting_time=1", "--config.log.progress=False"]
CASES = {  # config, further fields
    "ens": ("configs/mnist.py:ens", ["--config.train.epochs=20"]),
    "gmoe": ("configs/mnist.py:gmoe", ["--config.train.epochs=10"]),
}


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("--data_dir", default="", help="folder of prepared TFDS data sets")
  parser.add_argument("--repeats", type=int, default=3)
  parser.add_argument("--cases", nargs="*", default=list(CASES), choices=list(CASES))
  parser.add_argument("--warm", action="store_true", help="also run with the programs of the first run")
  args = parser.parse_args()
  cores = len(os.sched_getaffinity(0))
  rivals = [throughput.start(f"torch,{threads},mlp", args.data_dir) for threads in sorted({1, cores})]
  for case in args.cases:
    steps = num_steps(case, args.data_dir)
    ours: dict[str, list[float]] = {"cold": []} | ({"warm": []} if args.warm else {})
    loops: list[list[float]] = [[] for _ in rivals]
    for _ in range(args.repeats):
      for loop, rival in zip(loops, rivals):
        loop += [throughput.turn(rival) * steps for _ in range(3)]
      with tempfile.TemporaryDirectory() as folder:
        for name in ours:
          ours[name].append(whole(case, args.data_dir, f"{folder}/cache", f"{folder}/{name}"))
    loop_seconds = min(statistics.median(loop) for loop in loops)
    print(f"{case}: {steps} steps, PyTorch's loop {loop_seconds:.1f} s")
    for name, seconds in ours.items():
      median = statistics.median(seconds)
      print(f"  {name}: {median:.1f} s ({min(seconds):.1f} to {max(seconds):.1f}), {median / loop_seconds:.2f} times "
            f"the loop's time, {loop_seconds / median:.2f} times as fast", flush=True)
  for rival in rivals:
    rival.communicate()


def flags(case: str, data_dir: str) -> list[str]:
  """The arguments of a run."""
  config, fields = CASES[case]
  return [f"--config={config}", f"--config.dataset.data_dir={data_dir}", *FIELDS, *fields]


def num_steps(case: str, data_dir: str) -> int:
  """Training steps of all members of a run."""
  from alma_jax import main as command
  from alma_jax.sweeps import dry_run
  _, config = command._parse(flags(case, data_dir))
  found, = dry_run.predict([config])
  assert isinstance(found, dry_run.Prediction), found
  return found.steps


def whole(case: str, data_dir: str, cache: str, workdir: str) -> float:
  """Seconds of a whole process."""
  began = time.perf_counter()
  subprocess.run([sys.executable, "-m", "alma_jax.main", *flags(case, data_dir), f"--workdir={workdir}"], check=True,
                 env=os.environ | {"XDG_CACHE_HOME": cache}, capture_output=True)
  return time.perf_counter() - began


if __name__ == "__main__":
  main()
