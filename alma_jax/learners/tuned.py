"""Chooses learning rate and dropout by validation perplexity where the config lists several (§5).

Every stage is trained once with each combination, always from the same start, and
goes on with the best; all trainings count in Comp.
"""
import dataclasses
import itertools

from alma_jax.learners.base import GrowthReport


def candidates(config):
  """The RunConfigs of one learning rate and one dropout each that `config` lists."""
  return [dataclasses.replace(config, train=dataclasses.replace(config.train, learning_rate=(rate,)),
                              model=dataclasses.replace(config.model, dropout=(dropout,)))
          for rate, dropout in itertools.product(config.train.learning_rate, config.model.dropout)]


def make(context, factory):
  """Learner of a base.Context whose stages are trained by each candidate's learner; `factory` makes one.

  Between two trainings of a stage `live` holds what all start from and the best
  so far, and the spec's `tuning` says which candidate is next.
  """
  configs = candidates(context.config)
  learners = [factory(dataclasses.replace(context, config=c)) for c in configs]
  inner = learners[0]
  fresh = dict(next=0, val=None, best=0, samples=0, growth=[0, None])

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

  def finish(state, fit_state):
    t = tuning(state)
    begun = start(state)
    trained, report = current(state).finish(begun, fit_state)
    samples = t["samples"] + report.samples
    better = t["val"] is None or report.val < t["val"]
    best = dict(best=t["next"], val=report.val) if better else {}
    live = trained.live if better else state.live["best"]
    spec = trained.spec if better else {**state.spec}
    t = {**t, **best, "next": t["next"] + 1, "samples": samples}
    report = report._replace(samples=samples, val=t["val"])
    if t["next"] < len(learners):
      return state._replace(spec={**spec, "tuning": t}, live={"start": begun.live, "best": live}), report
    chosen = [*spec.get("chosen", ()), t["best"]]
    return state._replace(spec={**spec, "tuning": fresh, "chosen": chosen}, live=live), report

  def init():
    state = inner.init()
    return state._replace(spec={**state.spec, "tuning": fresh})

  def template(spec):
    state = inner.template(spec)
    return state._replace(live={"start": state.live, "best": state.live}) if spec["tuning"]["next"] else state

  def describe(spec):
    chosen = [configs[i] for i in spec.get("chosen", ())]
    lines = [f"stage {stage}: learning rate {c.train.learning_rate[0]:g}, dropout {c.model.dropout[0]:g}"
             for stage, c in enumerate(chosen)]
    return "\n".join([inner.describe(spec), *lines])

  return inner._replace(
      init=init, grow=grow, finish=finish, template=template, describe=describe,
      begin=lambda state, data: current(state).begin(start(state), data),
      complete=lambda state: not tuning(state)["next"],
      fit_template=lambda state: current(state).fit_template(start(state)),
      restore_fit=lambda state, *saved: current(state).restore_fit(start(state), *saved))
