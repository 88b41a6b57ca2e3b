"""Trains the experts of an hmoe apart: python -m alma_jax.apart --config=configs/mnist.py:hmoe --workdir DIR

A first process trains the base network on the first stage and publishes it with the prototypes of the clusters, as one
file. Then every expert is a process of its own: it reads that file and the data, trains on the examples of its cluster
in all stages, and exchanges nothing with the others. manifest.json lists the experts.

The same command again goes on: it runs what is missing and leaves the rest as it is. Failed experts are run again with
--retry. --config.FIELD=VALUE changes a field. In Python, alma_jax.load_mixture(DIR).predict(images) loads the experts
that the images need. Exit codes are those of `alma sweep`.
"""
import pathlib
import sys
from collections.abc import Sequence

from alma_jax import commands, sweep
from alma_jax.errors import BadInput
from alma_jax.store import run_files
from alma_jax.sweeps import Sweep, launch, states
from alma_jax.sweeps import jobs as sweep_jobs
from alma_jax.sweeps.jobs import Job


@commands.command
def main(argv: Sequence[str] | None = None) -> int:
  """Runs the command line."""
  parser = commands.Parser("-m alma_jax.apart", __doc__)
  parser.add_argument("--config", required=True, metavar="FILE:hmoe", help="config file with the learner hmoe")
  parser.add_argument("--workdir", required=True, help="folder of the manifest and of the runs")
  sweep.add_launcher(parser)
  args, changed = parser.parse_with_fields(argv)
  launcher = sweep.launcher_of(args)
  file, _, arg = args.config.partition(":")
  if (run_files.local(args.workdir) / run_files.CONFIG).exists():
    raise BadInput(f"{args.workdir} is the folder of a run; choose another one for the gate and its experts.")
  root = run_files.local(args.workdir).absolute()  # the identity of an expert's run names the file of the gate
  whole = sweep_jobs.make(Sweep(file, [{"learner": arg or "hmoe"}]), root, changed)[0]
  from alma_jax.runs import mixture  # imports jax
  num = whole.config.model.num_experts
  base = Job(f"gate{num}", mixture.base_config(whole.config), root / f"gate{num}", whole.file, whole.arg, num)
  code = _run(root, [base], args.retry, launcher)
  published = base.workdir / run_files.GATE
  if code or not published.exists():
    return code or 1
  from alma_jax.learners import gate
  count = len(gate.read(published)[0].counts)
  experts = [Job(f"expert{number}", mixture.expert_config(whole.config, published, number), root / f"expert{number}",
                 whole.file, whole.arg) for number in range(count)]
  code = _run(root, experts, args.retry, launcher)
  folders = {i: job.workdir for i, job in enumerate(experts)}
  manifest = mixture.write_manifest(root, published, folders, whole.config).manifest
  if "test_error" in manifest:
    commands.show(f"test error {manifest['test_error']:.4f} of {count} experts, {root / mixture.MANIFEST}")
  return code


def _run(root: pathlib.Path, jobs: list[Job], retry: bool, launcher: launch.Launcher) -> int:
  """Runs jobs; returns the exit code. Raises BadInput if the folder of one holds something else."""
  made = launch.plan(jobs, root, retry)
  for state in made.states.values():
    if state.kind == states.REFUSED:
      raise BadInput(state.line)
  return launch.run(made, launcher)


if __name__ == "__main__":
  sys.exit(main())
