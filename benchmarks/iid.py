"""Compares training on one mega-batch after the other with training on all at once, at the same number of updates.

    python benchmarks/iid.py --workdir runs/iid --config=configs/lm.py:sm,tiny --config.dataset.name=text:DIR

This is Table 1 of the paper. The command takes the flags of alma_jax.main. If it is stopped, the same command resumes.
"""
import contextlib
import pathlib
import signal
import subprocess
import sys

import alma_jax
from alma_jax import commands


def main() -> None:
  """Runs both, unless they are finished, and prints the table."""
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


def run(workdir: pathlib.Path, *flags: str) -> "alma_jax.Run":
  """The finished run. SIGTERM is passed on to its process, whose exit code ends this one if it is not 0."""
  process = subprocess.Popen([sys.executable, "-m", "alma_jax.main", *flags, f"--workdir={workdir}"])
  before = signal.signal(signal.SIGTERM, lambda number, frame: process.send_signal(number))
  while process.returncode is None:
    with contextlib.suppress(KeyboardInterrupt):  # Ctrl-C on a terminal has reached the process as well
      process.wait()
  signal.signal(signal.SIGTERM, before)
  if process.returncode:
    sys.exit(process.returncode)
  return alma_jax.load_run(workdir)


if __name__ == "__main__":
  sys.exit(commands.exit_code(main))
