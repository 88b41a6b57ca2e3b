"""The table of --dry_run: all runs, their costs and their seconds."""
import os

from alma_jax.errors import BadInput
from alma_jax.sweeps import board, places, states, timing
from alma_jax.sweeps.plan import LOCAL, Launcher, Plan


def text(plan: Plan, launcher: Launcher) -> str:
  """A line for each run with upper bounds of its costs, and its state; then the sums over the runs that are left.

  If a run has finished, the table also has the seconds of finished runs and an estimate for the others.
  """
  os.environ.setdefault("JAX_PLATFORMS", "cpu")  # predictions only trace
  from alma_jax.sweeps import prediction
  here = launcher.name == LOCAL and not places.num_gpus()  # otherwise the runs use other memory
  found = dict(zip((job.name for job in plan.jobs), prediction.predict([job.config for job in plan.jobs], here)))
  refused = [f"{name} cannot be run: {cost}" for name, cost in found.items() if isinstance(cost, BadInput)]
  costs = {name: cost for name, cost in found.items() if not isinstance(cost, BadInput)}
  taken = states.seconds_taken(plan.jobs)
  predicted = timing.estimate({job.name: job.config for job in plan.jobs}, taken, costs)
  left = {name: plan.states[name] for name in costs
          if plan.states[name].kind not in (states.FINISHED, states.REFUSED)}
  sums = (f"{len(plan.jobs)} runs, of which {len(left)} are left: at most {sum(costs[n].steps for n in left):,} "
          f"training steps, {sum(costs[n].macs for n in left):.3g} multiply-adds, without growth")
  lines = [*_rows(plan, costs, taken, predicted), sums]
  workers = launcher.workers_for(plan.to_do)
  time_left = board.time_left(left, predicted, workers)
  if time_left:
    lines.append(f"{time_left} with {_count(workers, 'worker')}, estimated from {_count(len(taken), 'finished run')}")
  return "\n".join([*lines, *refused])


def _rows(plan: Plan, costs: dict[str, timing.Prediction], taken: dict[str, timing.Taken],
          predicted: dict[str, float]) -> list[str]:
  """The head, and a line for each run that can run."""
  width = max(len(job.name) for job in plan.jobs)
  seconds = lambda text: f"  {text:>8}" if predicted else ""
  lines = [f"{'run':{width}}  {'steps':>11}  multiply-adds{seconds('seconds')}  state"]
  for name, cost in costs.items():
    took = f"{taken[name].seconds:.0f}" if name in taken else f"~{predicted[name]:.0f}" if name in predicted else "?"
    lines.append(f"{name:{width}}  {cost.steps:11,}  {cost.macs:13.3g}{seconds(took)}  {plan.states[name]}")
  return lines


def _count(num: int, noun: str) -> str:
  """E.g. "1 worker", "2 workers"."""
  return f"{num} {noun}{'s' if num > 1 else ''}"
