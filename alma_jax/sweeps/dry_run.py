"""The table of --dry_run: the costs of all runs, predicted from their configs, and their seconds."""
import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from alma_jax import protocols
from alma_jax.config import schema, sections
from alma_jax.data import tfds_folder
from alma_jax.errors import BadInput
from alma_jax.learners import contract
from alma_jax.models import cost
from alma_jax.parallel import environment, machine
from alma_jax.runs import budget, memory_check, settings
from alma_jax.sweeps import states
from alma_jax.sweeps.launch import LOCAL, Launcher, Plan


class Prediction(NamedTuple):
  """Predicted costs of a run, with the experts that growth is to add: upper bounds, as patience may end stages early.

  They lack what the choice of what grows costs, and the neurons that `ff` adds.

  Attributes:
    steps: training steps, of all members.
    macs: multiply-adds of forward passes in training (the paper's Comp).
  """
  steps: int
  macs: int


def text(plan: Plan, launcher: Launcher, changed: Mapping[str, str | None]) -> str:
  """A line for each run with upper bounds of its costs, and its state; then the sums over the runs that are left.

  Runs that cannot be run are named after the others, those with the same reason in one line.

  If a run has finished, the table also has the seconds of finished runs and an estimate for the others.

  Args:
    plan: of the sweep.
    launcher: how it would be started.
    changed: {field: text} of the command line, for all jobs.
  """
  here = launcher.name == LOCAL and not machine.num_gpus()  # otherwise the runs use other memory
  predicted = dict(zip((job.name for job in plan.jobs), predict([job.config for job in plan.jobs], here)))
  possible = {name: each for name, each in predicted.items() if not isinstance(each, BadInput)}
  reasons: dict[str, list[str]] = {}
  for name, each in predicted.items():
    if isinstance(each, BadInput):
      reasons.setdefault(str(each), []).append(name)
  seconds = states.estimate(plan.jobs)
  left = {job.name: plan.states[job.name] for job in plan.to_do if job.name in possible}
  lines = _rows(plan, possible, seconds) if possible else []
  more = lambda num: f" and {_count(num, 'other')}" if num else ""
  lines += [f"{names[0]}{more(len(names) - 1)} cannot be run: {reason}"
            for reason, names in reasons.items()]
  lines.append(_numbers(plan, left))
  if left:
    lines.append(f"those left take at most {sum(possible[name].steps for name in left):,} training steps, "
                 f"{sum(possible[name].macs for name in left):.3g} multiply-adds, "
                 "without the choice of what grows and the neurons that ff adds")
  for name in sorted({job.config.dataset.name for job in plan.to_do if job.config.dataset.is_downloaded}):
    lines.append(f"{name} is not on this machine yet; the first run downloads it")
  if changed:
    lines.append(f"changed in all runs: {', '.join(f'{field}={text}' for field, text in changed.items())}")
  workers = launcher.workers_for(plan.to_do)
  time_left = states.time_left(left, seconds, workers)
  if time_left:
    lines.append(f"{time_left} with {_count(workers, 'worker')}, estimated from finished runs")
  return "\n".join(lines)


@environment.fixed()
def predict(configs: Sequence[schema.RunConfig], here: bool = False) -> list[Prediction | BadInput]:
  """A Prediction for each config, or the BadInput that says why it cannot run.

  It traces the networks, and computes nothing. It loads the data, except those whose shapes are known.

  Args:
    configs: of the runs.
    here: whether they will run on this machine, on the kind of device that jax
      uses now; then a config that does not fit into its memory cannot run.

  Raises:
    BadInput: the costs depend on data that arrive while the runs go on.
  """
  for section in {config.dataset for config in configs if not config.dataset.is_complete}:
    raise BadInput(f"the costs of dataset.name={section.name} depend on mega-batches that arrive while it runs; leave "
                   "--dry_run out.")
  predictions: list[Prediction | BadInput] = []
  stages: dict[Any, Any] = {}  # their Sizes, and multiply-adds of an example, by what decides them
  fitting: set[Any] = set()  # configs of networks and their training that fit into memory
  with tfds_folder.trying_once():
    for c in configs:
      network = c.dataset, c.learner, c.model
      run, training = (*network, c.stream, c.train.budget and c.train), (*network, c.train, c.precision)
      try:
        if here and training not in fitting:
          with cost.predicting():
            memory_check.check(_setting(c))
          fitting.add(training)
        if run not in stages:
          setting = _setting(c)  # says whether this network can be trained on this stream
          sizes = setting.protocol.sizes()
          stages[run] = setting.decided, sizes, contract.planned_macs(setting.learner, len(sizes.train))
      except BadInput as error:
        predictions.append(error)
        continue
      decided, sizes, macs = stages[run]
      c = budget.applied(c, decided)
      plans = c.train.plans(sizes)
      predictions.append(Prediction(c.num_trainings * c.num_members * sum(plan.steps for plan in plans),
                                    c.num_trainings * sum(each * plan.samples for each, plan in zip(macs, plans))))
  return predictions


def _numbers(plan: Plan, left: Mapping[str, states.State]) -> str:
  """E.g. "5 runs: 1 finished, 2 failed, 2 left". Failed runs are run again only with --retry."""
  kinds = [state.kind for state in plan.states.values()]
  counts = {"finished": kinds.count(states.FINISHED), "failed (--retry runs them again)": kinds.count(states.FAILED),
            "refused, because their folders hold something else": kinds.count(states.REFUSED),
            "that cannot be run": len(plan.to_do) - len(left)}
  parts = [f"{num} {what}" for what, num in counts.items() if num]
  return f"{_count(len(plan.jobs), 'run')}: {', '.join([*parts, f'{len(left)} left'])}"


def _rows(plan: Plan, possible: Mapping[str, Prediction], seconds: Mapping[str, float]) -> list[str]:
  """The head, and a line for each run that can run; the seconds of finished runs, and estimates of the others."""
  width = max(len(job.name) for job in plan.jobs)
  column = lambda text: f"  {text:>8}" if seconds else ""
  lines = [f"{'run':{width}}  {'steps':>11}  multiply-adds{column('seconds')}  state"]
  for name, spent in possible.items():
    estimated = "~" * (plan.states[name].kind != states.FINISHED)
    took = f"{estimated}{seconds[name]:.0f}" if name in seconds else "?"
    lines.append(f"{name:{width}}  {spent.steps:11,}  {spent.macs:13.3g}{column(took)}  {plan.states[name]}")
  return lines


def _count(num: int, noun: str) -> str:
  """E.g. "1 worker", "2 workers"."""
  return f"{num} {noun}{'s' if num > 1 else ''}"


def _setting(config: schema.RunConfig) -> settings.Setting:
  """What a run of a config would use; the same for all seeds and numbers of devices."""
  protocol: Any = protocols.of(config)
  return settings.prepare(dataclasses.replace(config, seed=0, devices=0), _data(protocol, config.dataset))


@functools.cache
def _data(protocol: Any, section: sections.DataSet) -> Any:
  return protocol.data_for_costs(section)
