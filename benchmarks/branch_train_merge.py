"""Compares Branch-Train-Merge with one dense model and with random domains, at equal training steps.

    python benchmarks/branch_train_merge.py --text books --workdir runs/branch_train_merge

Four runs of the size `tiny` train for the same number of steps: `btm` on domains of tf-idf, `btm` on random domains,
`btm` with one domain (a dense model with the same two learning-rate schedules), and `sm` (with one schedule). `btm` is
trained with each factor of the experts' learning rate (--restart), and the best on the validation text is kept. Each
run resumes if it is stopped, and a finished one is not repeated. Then the experts predict the test text in several
ways:

  uniform   a mixture by the posterior after the context of the window; the prior is uniform
  moving    the same, where the prior is a moving average of the posteriors of the windows before (--decay)
  mean      the mean of the experts' probabilities, whatever the context is
  best      the best single expert of each window, in hindsight: a bound, no predictor
  weights   one network with the mean of the experts' weights

The table is printed, and written to table.md in the folder. benchmarks/part.py makes a small part of a text.
"""
import argparse
import pathlib
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

import alma_jax
from alma_jax.learners import prediction, stacked
from alma_jax.problems.language_modeling import score_windows
from alma_jax.runs import settings, snapshot

WAYS = {"uniform": "posterior, uniform prior", "moving": "posterior, moving prior", "mean": "mean of probabilities",
        "best": "best expert of each window, in hindsight", "weights": "mean of weights"}


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("--text", required=True, help="folder of the text, as in dataset.name=text:DIR")
  parser.add_argument("--workdir", default="runs/branch_train_merge")
  parser.add_argument("--steps", type=int, default=480, help="training steps of each run")
  parser.add_argument("--domains", type=int, default=4)
  parser.add_argument("--restart", type=float, nargs="+", default=[1.0, 0.25], help="values of train.restart")
  parser.add_argument("--decay", type=float, default=0.9, help="of the moving average of the posteriors")
  parser.add_argument("--seed", type=int, default=0)
  parser.add_argument("--runs", nargs="+", choices=list(runs(1)), default=list(runs(1)))
  parser.add_argument("--set", nargs="*", default=[], metavar="FIELD=VALUE", help="further fields, e.g. model.width=64")
  args = parser.parse_args()
  root, lines = pathlib.Path(args.workdir), [
      "| training | restart | prediction | perplexity | parameters | multiply-adds of a window |", "| --- " * 6 + "|"]
  changes = {"dataset.name": f"text:{args.text}", "train.steps": args.steps, "seed": args.seed}
  changes |= {name: _number(value) for name, value in (each.split("=") for each in args.set)}
  for name in args.runs:
    learner, own = runs(args.domains)[name]
    rates = args.restart if learner == "btm" else [1.0]
    found = {rate: trained(learner, changes | own | {"train.restart": rate}, root / f"{name}-restart{rate:g}")
             for rate in rates}
    judged = {rate: next(iter(perplexities(run, "valid", args.decay).values()))[0] for rate, run in found.items()}
    print(f"{name}: validation perplexity", *(f"{judged[rate]:.2f} (restart {rate:g})" for rate in rates))
    best = min(rates, key=lambda rate: judged[rate])
    for way, (perplexity, num_params, macs) in perplexities(found[best], "test", args.decay).items():
      lines.append(f"| {name} | {best:g} | {WAYS.get(way, way)} | {perplexity:.2f} | {num_params:,} | {macs:,} |")
  text = "\n".join(lines)
  (root / "table.md").write_text(text + "\n")
  print(text)


def runs(num_domains: int) -> Mapping[str, tuple[str, dict[str, Any]]]:
  """{name: (learner, changes of its config)}."""
  branched = lambda num, by: ("btm", {"learner.num_domains": num, "learner.domains": by})
  return {"tfidf": branched(num_domains, "tfidf"), "random": branched(num_domains, "random"),
          "one": branched(1, "random"), "dense": ("sm", {})}


def trained(learner: str, changes: Mapping[str, Any], workdir: pathlib.Path) -> alma_jax.Run:
  """The finished run of a learner on the whole text as one mega-batch."""
  config = alma_jax.language_config(learner, "tiny")
  config.update_from_flattened_dict({"stream.num_megabatches": 1, "train.eval_every": 0, "devices": 1,
                                     "log.tensorboard": False, **changes})
  return alma_jax.run(config, workdir)


def perplexities(run: alma_jax.Run, split: str, decay: float) -> dict[str, tuple[float, int, int]]:
  """{way of predicting: (perplexity, parameters, multiply-adds of a window)}.

  A single network has one way, "one network"; otherwise the first is "uniform".
  """
  setting = settings.prepare(run.config)
  opened, learner = run.open()
  state, source = snapshot.restore_learner(learner, opened), setting.protocol.source
  pool = (source.test_pool(learner.mesh) if split == "test" else
          source.load(source.memory.stage((1,)), learner.mesh).val_pool)
  length, cost = np.asarray(pool.length), setting.learner.cost(state)
  network, task = learner.network(state.spec), source.problem

  def scored(variables: Any) -> np.ndarray:
    """Log-probabilities [N, L] of the targets by one network, of variables [1, ...]."""
    one = lambda inputs: stacked.contribute(network, task, learner.mesh, "probabilities", variables, inputs)
    return prediction.in_batches(one, task, learner.mesh, pool)["log_sum"]

  num = learner.num_members(state.spec)
  members = [jax.tree.map(lambda leaf, i=i: leaf[i:i + 1], state.predicting) for i in range(num)]
  each = np.stack([scored(member) for member in members]).astype(np.float64)
  perplexity = lambda log_probs: score_windows(log_probs, length)[0]
  if num == 1:
    return {"one network": (perplexity(each[0]), cost.num_params, cost.fwd_macs)}
  all_of, one_of = (cost.num_params, num * cost.fwd_macs), (cost.num_params // num, cost.fwd_macs)
  best = each[each.sum(2).argmax(0), np.arange(each.shape[1])]
  mean = jax.tree.map(lambda leaf: leaf.mean(0, keepdims=True), state.predicting)
  return {"uniform": (perplexity(with_moving_prior(each, 1.0)[0]), *all_of),
          "moving": (perplexity(with_moving_prior(each, decay)[0]), *all_of),
          "mean": (perplexity(np.logaddexp.reduce(each, 0) - np.log(num)), *all_of),
          "best": (perplexity(best), *all_of), "weights": (perplexity(scored(mean)), *one_of)}


def _number(text: str) -> Any:
  try:
    return int(text)
  except ValueError:
    return float(text)


def with_moving_prior(log_probs_MNL: np.ndarray, decay: float) -> tuple[np.ndarray, np.ndarray]:
  """The mixture on windows that are read one after the other.

  The prior of the first window is uniform. After every window π becomes decay π + (1 - decay) p(d | window).

  Args:
    log_probs_MNL: log-probabilities that each model gives to the targets of N windows in their order; 0 where none
      counts.
    decay: from 0 to 1; 1: the prior stays uniform.

  Returns:
    (log-probabilities of the targets by the mixture float64 [N, L], priors float64 [N, M]).
  """
  each_NML = np.moveaxis(np.asarray(log_probs_MNL, np.float64), 1, 0)
  prior, mixed, priors = np.full(each_NML.shape[1], 1 / each_NML.shape[1]), [], []
  for each_ML in each_NML:
    log_prior_M = np.log(np.maximum(prior, np.finfo(np.float64).tiny))
    joint_ML = log_prior_M[:, None] + np.cumsum(each_ML, 1)  # ln π_d p_d(the targets so far)
    likelihood = np.logaddexp.reduce(joint_ML, 0)
    mixed.append(np.diff(likelihood, prepend=0.0))
    priors.append(prior)
    prior = decay * prior + (1 - decay) * np.exp(joint_ML[:, -1] - likelihood[-1])
  return np.array(mixed), np.array(priors)


if __name__ == "__main__":
  main()
