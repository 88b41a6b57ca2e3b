"""The table of --dry_run: all runs, their costs and their seconds."""
from collections.abc import Mapping
from typing import TYPE_CHECKING

from alma_jax.errors import BadInput
from alma_jax.sweeps import display, places, states, timing
from alma_jax.sweeps.plan import LOCAL, Launcher, Plan

if TYPE_CHECKING:  # it imports jax
  from alma_jax.sweeps import costs


def text(plan: Plan, launcher: Launcher, changed: Mapping[str, str]) -> str:
  """A line for each run with upper bounds of its costs, and its state; then the sums over the runs that are left.

  Runs that cannot be run are named after the others, those with the same reason in one line.

  If a run has finished, the table also has the seconds of finished runs and an estimate for the others.

  Args:
    plan: of the sweep.
    launcher: how it would be started.
    changed: {field: text} of the command line, for all jobs.
  """
  from alma_jax.sweeps import costs
  here = launcher.name == LOCAL and not places.num_gpus()  # otherwise the runs use other memory
  predicted = dict(zip((job.name for job in plan.jobs), costs.predict([job.config for job in plan.jobs], here)))
  refused = _refused({name: str(cost) for name, cost in predicted.items() if isinstance(cost, BadInput)})
  possible = {name: cost for name, cost in predicted.items() if not isinstance(cost, BadInput)}
  taken = states.seconds_taken(plan.jobs)
  seconds = timing.estimate({job.name: job.config for job in plan.jobs if job.name in possible}, taken)
  left = {job.name: plan.states[job.name] for job in plan.to_do if job.name in possible}
  lines = [*(_rows(plan, possible, taken, seconds) if possible else []), *refused, _numbers(plan, left)]
  if left:
    lines.append(f"those left take at most {sum(possible[name].steps for name in left):,} training steps, "
                 f"{sum(possible[name].macs for name in left):.3g} multiply-adds, without growth")
  for name in costs.downloads([job.config for job in plan.to_do]):
    lines.append(f"{name} is not on this machine yet; the first run downloads it")
  if changed:
    lines.append(f"changed in all runs: {', '.join(f'{field}={text}' for field, text in changed.items())}")
  workers = launcher.workers_for(plan.to_do)
  time_left = display.time_left(left, seconds, workers)
  if time_left:
    lines.append(f"{time_left} with {_count(workers, 'worker')}, estimated from {_count(len(taken), 'finished run')}")
  return "\n".join(lines)


def _refused(reasons: Mapping[str, str]) -> list[str]:
  """A line for each reason why runs cannot be run, with the name of the run or of the first one."""
  runs: dict[str, list[str]] = {}
  for name, reason in reasons.items():
    runs.setdefault(reason, []).append(name)
  more = lambda num: f" and {_count(num, 'other')}" if num else ""
  return [f"{names[0]}{more(len(names) - 1)} cannot be run: {reason}" for reason, names in runs.items()]


def _numbers(plan: Plan, left: Mapping[str, states.State]) -> str:
  """E.g. "5 runs: 1 finished, 2 failed, 2 left". Failed runs are run again only with --retry."""
  kinds = [state.kind for state in plan.states.values()]
  counts = {"finished": kinds.count(states.FINISHED), "failed (--retry runs them again)": kinds.count(states.FAILED),
            "refused, because their folders hold something else": kinds.count(states.REFUSED),
            "that cannot be run": len(plan.to_do) - len(left)}
  parts = [f"{num} {what}" for what, num in counts.items() if num]
  return f"{_count(len(plan.jobs), 'run')}: {', '.join([*parts, f'{len(left)} left'])}"


def _rows(plan: Plan, possible: "Mapping[str, costs.Prediction]", taken: Mapping[str, timing.Taken],
          estimated: Mapping[str, float]) -> list[str]:
  """The head, and a line for each run that can run."""
  width = max(len(job.name) for job in plan.jobs)
  seconds = lambda text: f"  {text:>8}" if estimated else ""
  lines = [f"{'run':{width}}  {'steps':>11}  multiply-adds{seconds('seconds')}  state"]
  for name, cost in possible.items():
    took = f"{taken[name].seconds:.0f}" if name in taken else f"~{estimated[name]:.0f}" if name in estimated else "?"
    lines.append(f"{name:{width}}  {cost.steps:11,}  {cost.macs:13.3g}{seconds(took)}  {plan.states[name]}")
  return lines


def _count(num: int, noun: str) -> str:
  """E.g. "1 worker", "2 workers"."""
  return f"{num} {noun}{'s' if num > 1 else ''}"
