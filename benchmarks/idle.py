"""What a live run costs while it waits, and how long it takes from the arrival of a mega-batch to its line.

    python benchmarks/idle.py [--seconds=60]

Ten mega-batches of digits arrive one after another. Then nothing comes, and the process is watched. Its memory is
compared with that of a process that has just finished the offline run of the same learner.
"""
import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time

import numpy as np
from sklearn.datasets import load_digits

_FLAGS = ["--config.stream.waiting_time=1", "--config.train.epochs=5", "--config.checkpoint.seconds=5"]
_OFFLINE = """
import alma_jax, os
config = alma_jax.base_config("sm")
config.stream.num_megabatches, config.stream.waiting_time, config.train.epochs = 10, 1, 5
alma_jax.run(config, {workdir!r})
print(int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGE_SIZE"))
"""


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("--seconds", type=float, default=60, help="how long the idle process is watched")
  options = parser.parse_args()
  images, labels = load_digits(return_X_y=True)
  with tempfile.TemporaryDirectory() as temporary:
    folder = pathlib.Path(temporary)
    offline = int(subprocess.run([sys.executable, "-c", _OFFLINE.format(workdir=str(folder / "offline"))], check=True,
                                 stdout=subprocess.PIPE).stdout.split()[-1])
    (folder / "stream").mkdir()
    np.savez(folder / "test.npz", x=images[:300].reshape(-1, 8, 8).astype(np.uint8), y=labels[:300])
    process = subprocess.Popen([sys.executable, "-m", "alma_jax.main", "--config=configs/live.py:sm", *_FLAGS,
                                f"--config.dataset.name=live:{folder}", f"--workdir={folder / 'run'}"])
    try:
      delays = [arrive(folder, t, images[150 * t + 150:][:150], labels[150 * t + 150:][:150]) for t in range(1, 11)]
      time.sleep(15)  # the last checkpoint
      before = cpu_seconds(process.pid)
      time.sleep(options.seconds)
      busy = (cpu_seconds(process.pid) - before) / options.seconds
      memory = int(pathlib.Path(f"/proc/{process.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    finally:
      process.kill()
      process.wait()
  print(f"idle: {100 * busy:.2f} % of a core; {memory / 1e6:.0f} MB, {(memory - offline) / 1e6:+.0f} MB against the "
        f"offline run ({offline / 1e6:.0f} MB)")
  print(f"from the arrival to the line, without the stage itself: median {np.median(delays[1:]):.2f} s, at most "
        f"{max(delays[1:]):.2f} s")


def arrive(folder: pathlib.Path, t: int, x: np.ndarray, y: np.ndarray) -> float:
  """Delivers mega-batch t; returns the seconds until its line was written, less those of the stage."""
  hidden = folder / "stream" / f".{t:02d}.npz"
  np.savez(hidden, x=x.reshape(-1, 8, 8).astype(np.uint8), y=y)
  time.sleep(1)
  hidden.rename(folder / "stream" / f"{t:02d}.npz")
  began, path = time.monotonic(), folder / "run" / "metrics.jsonl"
  while not path.exists() or path.read_bytes().count(b"\n") < t:
    time.sleep(0.01)
  return time.monotonic() - began - json.loads(path.read_text().splitlines()[t - 1])["seconds"]


def cpu_seconds(pid: int) -> float:
  fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
  return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
  main()
