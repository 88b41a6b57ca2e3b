"""Boosting over stages: each new member minds what the old ones get wrong (SAMME; §2)."""
import jax
import numpy as np

from alma_jax import cost, members, sharding
from alma_jax.learners import fit, stacked
from alma_jax.learners.base import GrowthReport
from alma_jax.tasks import classification


def make(context):
  """Learner of a base.Context.

  A stage adds one member, trained on the stage's examples as `weigh` weighs
  them by the mistakes of the old ones: drawn anew in every epoch
  (learner.weighting="resample"), or with weighted losses ("loss"). Then the
  coefficients of all members are computed in the same way, on the stage's
  validation or training data; the prediction is argmax sum_m alpha_m logits_m.
  """
  options, num_classes = context.config.learner, context.task.num_classes
  network = context.network()
  macs = cost.forward_macs(network, (1, *context.example_shape))

  def grow(state, data, fresh):
    if not data.stage:
      return state, GrowthReport()
    live = {"last": state.live, "first": stacked.blocks(state)[0]}.get(options.init)
    grown = stacked.append(state, fresh(state.spec) if live is None else live)
    return grown, GrowthReport(macs=len(grown.frozen) * len(data.train) * macs)

  def emphasis(state, data):
    weights = np.full(len(data.train), 1 / len(data.train))
    if state.frozen:
      weights, _ = weigh(*answers(state, data, data.train, len(state.frozen)), num_classes)
    if options.weighting == "loss":
      return fit.Emphasis(weight=(len(data.train) * weights).astype(np.float32))
    return fit.Emphasis(draw=weights)

  def answers(state, data, which, num):
    """Logits of the first `num` members, and the labels."""
    logits = [learner.contribution(state, block, data.pool, which)["sum"] for block in range(num)]
    return logits, sharding.fetch(data.pool.y)[which]

  def finish(state, fit_state):
    state, report = learner.finish(state, fit_state)
    data = fit_state.data
    which = data.val if options.coefficients == "validation" else data.train
    _, alphas = weigh(*answers(state, data, which, len(stacked.blocks(state))), num_classes)
    return state._replace(spec={**state.spec, "alphas": alphas}), report

  def contribution(state, block, pool):
    return {f"logits{block}": learner.contribution(state, block, pool)["sum"]}

  def weights(state):
    """(the members' coefficients, what to divide by: the classes stay, the probabilities are those of a mean)."""
    alphas = state.spec["alphas"] or [1.0]  # none yet: the untrained model
    return alphas, max(sum(map(abs, alphas)), np.finfo(np.float32).tiny)

  def resolve(state, joined):
    alphas, size = weights(state)
    total = sum(alpha * joined[f"logits{block}"] for block, alpha in enumerate(alphas))
    return classification.resolve({"sum": total}, size, "logits")

  def predict(state, x):
    alphas, size = weights(state)
    first = lambda block: members.index(block, 0)
    total = sum(alpha * network.apply(first(block), x, None, train=False)[0]
                for alpha, block in zip(alphas, stacked.blocks(state)))
    return jax.nn.softmax(total / size)

  learner = stacked.make(context, network, "logits", spec={"alphas": []}, grow=grow, final=True, emphasis=emphasis)
  return learner._replace(finish=finish, contribution=contribution, resolve=resolve, predict=predict)


def weigh(logits, y_N, num_classes):
  """SAMME's weights of N examples and coefficients of models, one model after the other.

  err = sum q miss, clipped to [1/(2N), 1 - 1/(2N)];
  alpha = log((1-err)/err) + log(K-1); q <- q exp(alpha miss), normalised.

  Args:
    logits: [N, K] of each model.
    y_N: labels.
    num_classes: K.

  Returns:
    (q float64 [N], sums to 1; list of alphas, floats).
  """
  num = len(y_N)
  weights, alphas = np.full(num, 1 / num), []
  for logits_NK in logits:
    miss = logits_NK.argmax(-1) != y_N
    err = np.clip(weights[miss].sum(), 1 / (2 * num), 1 - 1 / (2 * num))
    alphas.append(float(np.log((1 - err) / err) + np.log(num_classes - 1)))
    weights = weights * np.exp(alphas[-1] * miss)
    weights /= weights.sum()
  return weights, alphas
