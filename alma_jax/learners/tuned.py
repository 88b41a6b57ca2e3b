"""Chooses learning rate and dropout by validation perplexity where the config lists several (§5).

Every stage is trained once with each combination, always from the same start, and
goes on with the best; all trainings count in Comp. A training that diverges goes
on to its end, so that what it costs does not depend on when that is noticed, and
is passed over.
"""
import dataclasses
import itertools
import math

import numpy as np

from alma_jax import sharding
from alma_jax.errors import Diverged
from alma_jax.learners.base import GrowthReport


def candidates(config):
  """The RunConfigs of one learning rate and one dropout each that `config` lists."""
  return [dataclasses.replace(config, train=dataclasses.replace(config.train, learning_rate=(rate,)),
                              model=dataclasses.replace(config.model, dropout=(dropout,)))
          for rate, dropout in itertools.product(config.train.learning_rate, config.model.dropout)]


def num_candidates(config):
  """How many trainings a stage takes; 1 where nothing is to be chosen."""
  return len(candidates(config)) if config.is_language else 1


def make(context, factory):
  """Learner of a base.Context whose stages are trained by each candidate's learner; `factory` makes one.

  Between two trainings of a stage `live` holds what all start from and the best
  so far, and the spec's `tuning` says which candidate is next.
  """
  configs = candidates(context.config)
  learners = [factory(dataclasses.replace(context, config=c)) for c in configs]
  inner = learners[0]
  fresh = dict(next=0, val=None, best=0, samples=0, growth=[0, None], diverged=[])

  def tuning(state):
    return state.spec["tuning"]

  def current(state):
    return learners[tuning(state)["next"]]

  def start(state):
    """The state that the next candidate is trained from."""
    return state._replace(live=state.live["start"]) if tuning(state)["next"] else state

  def grow(state, data):
    if tuning(state)["next"]:
      return state, GrowthReport(*tuning(state)["growth"])
    state, report = inner.grow(state, data)
    return state._replace(spec={**state.spec, "tuning": {**tuning(state), "growth": list(report)}}), report

  def read(fit_state, records):
    epochs, done = inner.read(fit_state, records)
    spec = fit_state.spec
    for epoch in epochs:  # what sets a candidate's lines in train.jsonl apart
      epoch.joint.update(peak_lr=spec.train.learning_rate[0], dropout=spec.network.module.dropout)
      lost = [name for name, value in epoch.joint.items() if not np.isfinite(value).all()]
      epoch.joint.update(dict.fromkeys(lost))
    return epochs, done

  def finish(state, fit_state):
    t, begun = tuning(state), start(state)
    trained, report = current(state).finish(begun, fit_state)
    val, samples = sharding.agree(report.val), t["samples"] + report.samples
    if not math.isfinite(val):
      t = {**t, "diverged": [*t.get("diverged", ()), t["next"]]}
    better = math.isfinite(val) and (t["val"] is None or val < t["val"])
    t = {**t, "next": t["next"] + 1, "samples": samples}
    if better:
      t, live = {**t, "best": t["next"] - 1, "val": val}, trained.live
    else:
      live = state.live["best"] if t["next"] > 1 else begun.live
    report = report._replace(samples=samples, val=t["val"])
    if t["next"] < len(learners):
      return state._replace(spec={**state.spec, "tuning": t}, live={"start": begun.live, "best": live}), report
    if t["val"] is None:
      raise Diverged(f"all of train.learning_rate={context.config.train.learning_rate} diverged in stage "
                     f"{fit_state.data.stage}; lower them.")
    chosen = [*state.spec.get("chosen", ()), [t["best"], t.get("diverged", [])]]
    return state._replace(spec={**state.spec, "tuning": fresh, "chosen": chosen}, live=live), report

  def init():
    state = inner.init()
    return state._replace(spec={**state.spec, "tuning": fresh})

  def template(spec):
    state = inner.template(spec)
    return state._replace(live={"start": state.live, "best": state.live}) if spec["tuning"]["next"] else state

  def describe(spec):
    told = lambda i: f"learning rate {configs[i].train.learning_rate[0]:g}, dropout {configs[i].model.dropout[0]:g}"
    chosen = [entry if isinstance(entry, list) else [entry, []]  # of an earlier version
              for entry in spec.get("chosen", ())]
    lines = [f"stage {stage}: {told(best)}" + "".join(f"; diverged: {told(i)}" for i in diverged)
             for stage, (best, diverged) in enumerate(chosen)]
    return "\n".join([inner.describe(spec), *lines])

  return inner._replace(
      init=init, grow=grow, read=read, finish=finish, template=template, describe=describe,
      begin=lambda state, data: current(state).begin(start(state), data),
      complete=lambda state: not tuning(state)["next"],
      fit_template=lambda state: current(state).fit_template(start(state)),
      restore_fit=lambda state, *saved: current(state).restore_fit(start(state), *saved))
