"""Compares flat mixtures with mixtures whose paths share experts, on seen and on unseen combinations of factors.

    python benchmarks/composition.py --workdir runs/composition --data_dir DIR

The images are digits of MNIST on coloured backgrounds, rotated; a third of the combinations of digit, colour and
rotation is held out (combinations.py). `hmoe` of k experts stands beside hard `moe` of E experts in each
of two layers, which has no more parameters and no more multiply-adds of a prediction, and beside `sm` of the width
whose prediction costs as much, and of the width that has as many parameters. `moe` with soft gates has the experts of
the hard one and computes all of them. `hmoe` trains its base and then its experts for --epochs; the others train for
twice as many. A finished run is not repeated. The table is printed, and written to table.md in the folder; runs.csv
has a line for each run.
"""
import argparse
import csv
import math
import pathlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import combinations
import numpy as np
import sklearn.metrics

import alma_jax
from alma_jax.data import datasets

WIDTH, EPOCHS = 16, 10
FLAT = (3, 7, 15)  # k; (k + 1) / 2 experts in a layer of the double width have about as many parameters


class Model(NamedTuple):
  """A learner with its sizes: k or E, and the width."""
  learner: str
  experts: int
  width: int
  gating: str = "hard"

  @property
  def name(self) -> str:
    """In tables."""
    if self.experts == 1:
      return f"{self.learner} of width {self.width}"
    paths = f"{self.learner} {self.experts} x {self.experts}, {self.gating} gates"
    return paths if self.learner == "moe" else f"{self.learner} {self.experts}"


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("--workdir", default="runs/composition")
  parser.add_argument("--name", default="mnist", help="mnist or digits")
  parser.add_argument("--data_dir", default="", help="as dataset.data_dir")
  parser.add_argument("--num_train", type=int, default=20_000)
  parser.add_argument("--epochs", type=int, default=EPOCHS)
  parser.add_argument("--flat", type=int, nargs="+", default=FLAT, help="numbers of experts of hmoe")
  parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
  args = parser.parse_args()
  root, rows = pathlib.Path(args.workdir), []
  data = datasets.load(args.name, args.data_dir)
  for seed in args.seeds:
    made = combinations.make(data, seed, args.num_train)
    for model in models_of(args.flat, made.train.x[0].size, data.num_classes):
      gating = f"-{model.gating}" if model.learner == "moe" else ""
      workdir = root / f"{model.learner}{gating}-{model.experts}-{model.width}-seed{seed}"
      rows.append(measured(run_of(model, made, workdir, seed, args.epochs), model, made, seed))
  with open(root / "runs.csv", "w", newline="") as file:
    writer = csv.DictWriter(file, rows[0])
    writer.writeheader()
    writer.writerows(rows)
  text = table(rows)
  (root / "table.md").write_text(text + "\n")
  print(text)


def models_of(flat: Sequence[int], num_inputs: int, num_classes: int) -> list[Model]:
  """hmoe of each number of experts, and what it is compared with: the widest that are no larger and no dearer."""
  found: list[Model] = []
  for k in flat:
    experts = (k + 1) // 2
    hmoe = Model("hmoe", k, WIDTH)
    params, macs = size(hmoe, num_inputs, num_classes)
    hard = widest(Model("moe", experts, 1), num_inputs, num_classes, params, macs)
    found += [hmoe, hard, hard._replace(gating="soft"), widest(Model("sm", 1, 1), num_inputs, num_classes, params)]
  return [widest(Model("sm", 1, 1), num_inputs, num_classes, most_macs=macs), *found]


def widest(model: Model, num_inputs: int, num_classes: int, most_params: float = math.inf,
           most_macs: float = math.inf) -> Model:
  """The widest model of this kind that has at most so many parameters and multiply-adds."""
  while True:
    wider = model._replace(width=model.width + 1)
    params, macs = size(wider, num_inputs, num_classes)
    if params > most_params or macs > most_macs:
      return model
    model = wider


def size(model: Model, num_inputs: int, num_classes: int) -> tuple[int, int]:
  """(parameters, multiply-adds of a prediction).

  A prediction of `hmoe` computes the base and one expert; one of hard `moe` the gates on the path and one expert of
  each layer. (The run folder counts all experts of `moe`, because it computes them all.)
  """
  d, k, w, e = num_inputs, num_classes, model.width, model.experts
  body, head = d * w + w * w, w * k
  params = body + head + 2 * w + k
  if model.learner == "hmoe":
    return (e + 1) * params - head - k, 2 * body + head
  gates = 2 * (e - 1)
  read, computed = (2 * (e - 1).bit_length(), 1) if model.gating == "hard" else (gates, e)
  return e * (body + 2 * w) + gates * (d + w + 2) + head + k, computed * body + head + read * (d + w)


def run_of(model: Model, made: combinations.Combinations, workdir: pathlib.Path, seed: int,
           epochs: int) -> alma_jax.Run:
  """The finished run of a model; its test set are the seen and the unseen combinations."""
  config = alma_jax.base_config(model.learner)
  config.update_from_flattened_dict({
      "seed": seed, "stream.num_megabatches": 1, "stream.waiting_time": 1, "model.width": model.width,
      "model.num_experts": model.experts, "train.epochs": epochs if model.learner == "hmoe" else 2 * epochs,
      "devices": 1, "log.tensorboard": False, "log.progress": False})
  if model.learner == "moe":
    config.learner.gating = model.gating
  x, y = (np.concatenate([getattr(made.seen, name), getattr(made.unseen, name)]) for name in ("x", "y"))
  return alma_jax.run(config, workdir, data=(made.train.x, made.train.y, x, y))


def measured(run: alma_jax.Run, model: Model, made: combinations.Combinations, seed: int) -> dict[str, Any]:
  """Errors and use of paths: a row of runs.csv."""
  row: dict[str, Any] = dict(model=model.name, seed=seed)
  row["params"], row["macs"] = size(model, made.train.x[0].size, len(made.held_out))
  assert row["params"] == run.metrics["num_params"][-1]
  for name, images in (("seen", made.seen), ("unseen", made.unseen)):
    row[name] = float((run.predict(images.x).argmax(1) != images.y).mean())
  if model.experts == 1:
    return row | dict.fromkeys(("paths", "effective", "digit", "colour", "rotation"), "")
  paths = np.stack([found.argmax(1) for found in run.routes(made.unseen.x).values()], 1)  # [N, layers]
  _, number = np.unique(paths, axis=0, return_inverse=True)
  shares = np.bincount(number.reshape(-1)) / len(number)
  row["paths"], row["effective"] = len(shares), float(np.exp(-(shares * np.log(shares)).sum()))
  for name, factor in (("digit", made.unseen.y), ("colour", made.unseen.colour), ("rotation", made.unseen.rotation)):
    entropy = sklearn.metrics.mutual_info_score(factor, factor)
    row[name] = max(sklearn.metrics.mutual_info_score(factor, layer) / entropy for layer in paths.T)
  return row


def table(rows: Sequence[dict[str, Any]]) -> str:
  """Means and standard deviations over seeds, as Markdown."""
  lines = ["| model | parameters | multiply-adds | error, seen | error, unseen | paths used (effective) | "
           "digit | colour | rotation |", "| --- " * 9 + "|"]
  for name in dict.fromkeys(row["model"] for row in rows):
    mine = [row for row in rows if row["model"] == name]
    mean = lambda key, mine=mine: np.mean([row[key] for row in mine])
    spread = lambda key, mine=mine: np.std([row[key] for row in mine], ddof=1) if len(mine) > 1 else 0.0
    error = lambda key, mean=mean, spread=spread: f"{mean(key):.2%} ± {spread(key):.2%}"
    bits, used = " | | ", ""
    if mine[0]["paths"]:
      bits = " | ".join(f"{mean(key):.2f}" for key in ("digit", "colour", "rotation"))
      used = f"{mean('paths'):.0f} ({mean('effective'):.1f})"
    lines.append(f"| {name} | {mean('params'):,.0f} | {mean('macs'):,.0f} | {error('seen')} | {error('unseen')} | "
                 f"{used} | {bits} |")
  return "\n".join(lines)


if __name__ == "__main__":
  main()
