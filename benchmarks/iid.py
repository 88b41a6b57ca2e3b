"""Learning mega-batch after mega-batch against all data at once (the paper's Table 1): the same number of updates.

    python benchmarks/iid.py --workdir runs/iid --config=configs/lm.py:sm,tiny --config.dataset.name=text:DIR

Takes the flags of alma_jax.main, and can be stopped and started again like it.
"""
import contextlib
import pathlib
import signal
import subprocess
import sys

import alma_jax
from alma_jax import commands


def main():
  """Runs both, or finds them done, and prints the table; returns the exit code."""
  parser = commands.Parser("benchmarks/iid.py", __doc__)
  parser.add_argument("--workdir", default="runs/iid", help="folder of the two run folders")
  args, flags = parser.parse_known_args()
  path = pathlib.Path(args.workdir)
  sequential = run(path / "sequential", *flags, "--config.stream.waiting_time=1")
  num = sequential.config.stream.num_megabatches
  longer = [f"--config.train.steps_multiplier={num}"] if sequential.config.is_language else []
  iid = run(path / "iid", *flags, f"--config.stream.waiting_time={num}", *longer)
  metric = "final_perplexity" if sequential.config.is_language else "final_error"
  print(f"\n{metric.replace('_', ' ')}: sequential {sequential.summary[metric]:.4f}, iid {iid.summary[metric]:.4f}")


def run(workdir, *flags):
  """The finished Run; leaves with the run's exit code if that is not 0. Signals are passed on to it."""
  process = subprocess.Popen([sys.executable, "-m", "alma_jax.main", *flags, f"--workdir={workdir}"])
  before = signal.signal(signal.SIGTERM, lambda number, frame: process.send_signal(number))
  while process.returncode is None:
    with contextlib.suppress(KeyboardInterrupt):  # a terminal's Ctrl-C has reached it, too
      process.wait()
  signal.signal(signal.SIGTERM, before)
  if process.returncode:
    sys.exit(process.returncode)
  return alma_jax.load_run(workdir)


if __name__ == "__main__":
  sys.exit(commands.exit_code(main))
