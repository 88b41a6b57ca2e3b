"""Compares training on one mega-batch after the other with training on all at once, at the same number of updates.

    python benchmarks/iid.py --workdir runs/iid --config=configs/lm.py:sm,tiny --config.dataset.name=text:DIR

This is Table 1 of the paper. The command takes the flags of alma_jax.main. If it is stopped, the same command resumes.
--k=3,4 compares them after the first 3 mega-batches and after the first 4, instead of at the end of the stream.
"""
import contextlib
import pathlib
import signal
import subprocess
import sys

import alma_jax
from alma_jax import commands
from alma_jax import main as command
from alma_jax.errors import BadInput


def main() -> None:
  """Runs all, unless they are finished, and prints the table."""
  parser = commands.Parser("benchmarks/iid.py", __doc__)
  parser.add_argument("--workdir", default="runs/iid", help="folder of the run folders")
  parser.add_argument("--k", default="", help="numbers of mega-batches, as in 3,4; default: all of the stream")
  args, flags = parser.parse_known_args()
  path = pathlib.Path(args.workdir)
  _, config = command._parse(flags)  # what alma_jax.main would refuse is refused here, before any training
  total = config.stream.num_megabatches
  ks = [k.strip() for k in args.k.split(",")] if args.k else [str(total)]
  if not all(k.isdigit() and 1 < int(k) <= total for k in ks):
    raise BadInput(f"--k={args.k} should be numbers from 2 to stream.num_megabatches={total}, as in --k=2,{total}.")
  sequential = run(path / "sequential", *flags, "--config.stream.waiting_time=1")
  metric, lines = config.metric, []
  for k in map(int, ks):
    longer = [f"--config.train.steps_multiplier={k}"] if hasattr(config.train, "steps_multiplier") else []
    iid = run(path / ("iid" if k == total else f"iid{k}"), *flags, f"--config.stream.waiting_time={k}", *longer)
    one, other = (each.metrics[metric][k - 1] for each in (sequential, iid))
    lines.append(f"{metric} after {k} mega-batches: sequential {one:.4f}, iid {other:.4f}")
  print("", *lines, sep="\n")


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
