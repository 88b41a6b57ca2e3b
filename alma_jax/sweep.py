"""Runs a sweep: python -m alma_jax.sweep --config=configs/sweeps/digits.py

A sweep file lists many runs of one config. Finished runs are skipped and
interrupted ones go on, so the same command again finishes a sweep. What failed is
listed with its last line and tried again with --retry. --config.FIELD=VALUE
changes a field of all runs. Exit codes: 0 all finished, 1 some failed, 2 bad
input, 143 stopped by SIGTERM after saving (1 by Ctrl-C).
"""
import os
import pathlib
import signal
import sys

import filelock

from alma_jax import commands, writers
from alma_jax.errors import BadInput
from alma_jax.sweeps import board, pool
from alma_jax.sweeps import jobs as sweep_jobs

_FAILURES = "failures.json"


def main(argv=None):
  """Runs the command line; returns the exit code."""
  return commands.exit_code(lambda: _main(argv))


def _main(argv):
  parser = commands.Parser("-m alma_jax.sweep", __doc__)
  parser.add_argument("--config", required=True, help="sweep file, see configs/sweeps")
  parser.add_argument("--workdir", help="folder of the run folders; default: runs/ and the sweep file's name")
  parser.add_argument("--launcher", choices=("local", "slurm"), default="local")
  parser.add_argument("--workers", type=int, default=0,
                      help="runs at once; default: one for each GPU, or for each core; with slurm no limit")
  parser.add_argument("--dry_run", action="store_true", help="lists the runs and what they will cost, runs nothing")
  parser.add_argument("--retry", action="store_true", help="tries what has failed again")
  parser.add_argument("--slurm", action="append", default=[], metavar="NAME=VALUE",
                      help="a parameter of submitit, as in slurm_partition=gpu or timeout_min=600; may be repeated")
  args, rest = parser.parse_known_args(argv)
  if args.workers < 0:
    raise BadInput(f"--workers={args.workers} should be at least 0.")
  overrides = dict(_override(flag) for flag in rest)
  root = pathlib.Path(args.workdir or pathlib.Path("runs") / pathlib.Path(args.config).stem).expanduser()
  if root.exists() and not root.is_dir():
    raise BadInput(f"{root} is a file; --workdir names a folder.")
  made = sweep_jobs.make(sweep_jobs.load(args.config), root, overrides)
  failures = writers.read_json(root / _FAILURES) or {}
  if args.retry:
    failures = {}
  states = {job.name: sweep_jobs.state(job, failures) for job in made}
  if args.dry_run:
    print(_listing(made, states))
    return 0
  try:
    (root / "logs").mkdir(parents=True, exist_ok=True)
    lock = filelock.FileLock(root / ".lock")
    lock.acquire(timeout=0)
  except filelock.Timeout as error:
    raise BadInput(f"a live process runs a sweep in {root}.") from error
  except OSError as error:
    raise BadInput(f"the folder {root} cannot be made or written: {error.strerror}.") from error
  try:
    return _run(args, root, made, states, failures)
  finally:
    lock.release()


def _run(args, root, made, states, failures):
  to_do = [job for job in made if states[job.name].kind in (sweep_jobs.NEW, sweep_jobs.BEGUN)]
  signals = []

  def stop(number, frame):
    del frame
    signals.append(number)
    signal.signal(number, signal.SIG_DFL)  # a second one is not to be argued with

  for number in (signal.SIGTERM, signal.SIGINT):
    signal.signal(number, stop)
  num_workers, events = _launch(args, to_do, root, lambda: bool(signals))
  with board.Board(made, states, num_workers) as shown:
    for event in events:
      shown.update(event)
      if event.kind in (pool.DONE, pool.FAILED):
        failures.pop(event.job.name, None)
        failures |= {event.job.name: event.line} if event.kind == pool.FAILED else {}
        writers.write_json(root / _FAILURES, failures)
  print(shown.summary())
  if signals:
    print("stopped; the same command goes on from there.", file=sys.stderr)
    return 143 if signal.SIGTERM in signals else 1
  return 0 if shown.all_finished() else 1


def _launch(args, jobs, root, should_stop):
  """(runs at once, iterator of pool.Event)."""
  if args.launcher == "local":
    if args.slurm:
      raise BadInput("--slurm is for --launcher=slurm.")
    num = min(args.workers or pool.num_gpus() or pool.num_cores(), max(1, len(jobs)))
    return num, pool.run(jobs, num, root / "logs", should_stop)
  from alma_jax.sweeps import slurm  # submitit is slow to import
  (root / "slurm").mkdir(parents=True, exist_ok=True)
  options = dict(_option(text) for text in args.slurm)
  return args.workers or len(jobs), slurm.run(jobs, args.workers, root / "slurm", options, should_stop)


def _listing(made, states):
  """Table of all runs, with what those that are left will cost at most."""
  os.environ.setdefault("JAX_PLATFORMS", "cpu")  # it only counts
  from alma_jax.sweeps import predict
  found = dict(zip(made, predict.predict([job.config for job in made])))
  refused = [f"{job.name} cannot be run: {cost}" for job, cost in found.items() if isinstance(cost, BadInput)]
  found = {job: cost for job, cost in found.items() if not isinstance(cost, BadInput)}
  width = max(len(job.name) for job in made)
  lines = [f"{'run':{width}}  {'steps':>11}  multiply-adds  state"]
  for job, cost in found.items():
    lines.append(f"{job.name:{width}}  {cost.steps:11,}  {cost.macs:13.3g}  {states[job.name]}")
  left = [cost for job, cost in found.items()
          if states[job.name].kind not in (sweep_jobs.FINISHED, sweep_jobs.REFUSED)]
  lines.append(f"{len(made)} runs, {len(left)} of them left to do: at most {sum(cost.steps for cost in left):,} "
               f"training steps, {sum(cost.macs for cost in left):.3g} multiply-adds, growth not counted")
  return "\n".join([*lines, *refused])


def _override(flag):
  """(field, text) of --config.FIELD=VALUE."""
  name, equals, text = flag.partition("=")
  if not name.startswith("--config.") or not equals:
    raise BadInput(f"unexpected argument {flag!r}; fields of all runs are changed with --config.FIELD=VALUE.")
  return name.removeprefix("--config."), text


def _option(text):
  """(name, value) of NAME=VALUE; numbers are numbers."""
  name, equals, value = text.partition("=")
  if not equals:
    raise BadInput(f"--slurm={text!r} should be NAME=VALUE.")
  try:
    return name, int(value) if value.isdigit() else float(value)
  except ValueError:
    return name, value


if __name__ == "__main__":
  sys.exit(main())
