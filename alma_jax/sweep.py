"""Runs a sweep: python -m alma_jax.sweep --config=configs/sweeps/digits.py

A sweep file lists many runs of one config. The command skips finished runs and
resumes interrupted ones, so repeating it completes the sweep. Failed runs are listed
with their last line; --retry runs them again. --config.FIELD=VALUE changes a field
of all runs, and --seeds=3,4 runs these seeds instead of those of the file.

Ctrl-C, SIGTERM and the closing of the terminal (SIGHUP) stop a sweep after the
running jobs are saved. A second signal ends it at once. Exit codes: 0 all finished,
1 some failed, 2 bad input, 130 stopped by Ctrl-C, 143 by SIGTERM, 129 by SIGHUP.
"""
import argparse
import os
import pathlib
import sys
from collections.abc import Sequence

from alma_jax import commands, extras
from alma_jax.errors import BadInput
from alma_jax.store import run_files
from alma_jax.sweeps import jobs, launch


@commands.command
def main(argv: Sequence[str] | None = None) -> int:
  """Runs the command line."""
  parser = commands.Parser("-m alma_jax.sweep", __doc__)
  parser.add_argument("--config", required=True,
                      help="sweep file, see configs/sweeps, or FILE:ARG, where ARG is for its get_sweep")
  parser.add_argument("--workdir", help="folder of the run folders; default: runs/NAME of the sweep file, or NAME-ARG")
  parser.add_argument("--seeds", metavar="SEED,SEED,...", help="seeds to run instead of those of the sweep file")
  parser.add_argument("--dry_run", action="store_true", help="list the runs and their costs, and run nothing")
  add_launcher(parser)
  args, changed = parser.parse_with_fields(argv)
  launcher = launcher_of(args)
  file, _, arg = args.config.partition(":")
  root = run_files.local(args.workdir or pathlib.Path("runs", "-".join(filter(None, (pathlib.Path(file).stem, arg)))))
  if args.dry_run:  # before jax is imported, as configs of learners do; predictions only trace
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
  made = jobs.make(jobs.with_seeds(jobs.load(args.config), _seeds(args.seeds)), root, changed)
  plan = launch.plan(made, root, args.retry)
  if args.dry_run:
    from alma_jax.sweeps import dry_run  # it imports jax
    print(dry_run.text(plan, launcher, changed))
    return 0
  return launch.run(plan, launcher)


def add_launcher(parser: argparse.ArgumentParser) -> None:
  """Adds the arguments that say how runs are started, for `launcher_of`, and --retry."""
  parser.add_argument("--launcher", choices=launch.LAUNCHERS, default=launch.LOCAL)
  parser.add_argument("--workers", type=int, default=0,
                      help="runs at once; default: one for each GPU, or else for each core; with slurm no limit")
  parser.add_argument("--retry", action="store_true", help="run the failed runs again")
  parser.add_argument("--slurm", action="append", default=[], metavar="NAME=VALUE",
                      help="a parameter of submitit, e.g. slurm_partition=gpu or timeout_min=600; can be repeated")


def launcher_of(args: argparse.Namespace) -> launch.Launcher:
  """The Launcher of parsed arguments.

  Raises:
    BadInput: they do not fit together.
  """
  if args.workers < 0:
    raise BadInput(f"--workers={args.workers} should be at least 0.")
  if args.launcher == launch.SLURM:
    extras.need("--launcher=slurm", "submitit")
  elif args.slurm:
    raise BadInput("--slurm is for --launcher=slurm.")
  return launch.Launcher(args.launcher, args.workers, dict(map(_option, args.slurm)))


def _seeds(text: str | None) -> list[int]:
  """The seeds of --seeds; none if it is not given."""
  if text is None:
    return []
  parts = text.split(",")
  if not all(part.strip().isdecimal() for part in parts):
    raise BadInput(f"--seeds={text} should be numbers with commas between them, e.g. --seeds=3,4.")
  return [int(part) for part in parts]


def _option(text: str) -> tuple[str, str | int | float]:
  """(name, value) of NAME=VALUE; the text of a number becomes a number."""
  name, equals, value = text.partition("=")
  if not equals:
    raise BadInput(f"--slurm={text!r} should be NAME=VALUE.")
  try:
    return name, int(value) if value.isdigit() else float(value)
  except ValueError:
    return name, value


if __name__ == "__main__":
  sys.exit(main())
