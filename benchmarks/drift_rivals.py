"""The prequential errors of learners of scikit-learn and river on a stream that changes.

    python benchmarks/drift_rivals.py --config=configs/drift.py:anytime,relabel --config.seed=10 --out=errors.csv
    python benchmarks/drift_rivals.py --config=configs/drift.py:anytime,river:Agrawal --out=errors.csv

They see the mega-batches that `alma run` sees with this config, each before they learn it: a linear classifier and a
perceptron of two layers of 98 neurons, which take 20 passes over a mega-batch (`partial_fit`), and the 3 nearest
neighbours in the last 8 mega-batches. On tables there are also gradient-boosted trees that are trained again on the
last 5 and the last 20 mega-batches, and river's adaptive Hoeffding tree and forest. Inputs are divided by the
deviations of the first mega-batch. Prints a row for each, and appends it to --out.
"""
import pathlib
import sys
from collections.abc import Callable, Iterator
from typing import Any

import der
import drift_study
import numpy as np
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.linear_model import SGDClassifier
from sklearn.neighbors import KNeighborsClassifier
from sklearn.neural_network import MLPClassifier

from alma_jax import commands, extras, protocols
from alma_jax import main as command

PASSES = 20
Data = tuple[np.ndarray, np.ndarray]
Learn = Callable[[Data], Callable[[np.ndarray], np.ndarray]]  # new data -> a predictor of classes


def passes(model: Any, classes: np.ndarray, seed: int) -> Learn:
  """Trains a model further, by PASSES passes over the new data."""
  rng = np.random.default_rng(seed)

  def learn(new: Data) -> Any:
    for _ in range(PASSES):
      order = rng.permutation(len(new[1]))
      model.partial_fit(new[0][order], new[1][order], classes=classes)
    return model.predict

  return learn


def again(make: Callable[[], Any], window: int) -> Learn:
  """Trains a new model on the newest mega-batches."""
  held: list[Data] = []

  def learn(new: Data) -> Any:
    held.append(new)
    del held[:-window]
    x, y = map(np.concatenate, zip(*held))
    if len(np.unique(y)) == 1:
      return lambda rows: np.full(len(rows), y[0])
    return make().fit(x, y).predict

  return learn


def one_by_one(model: Any) -> Learn:
  """Trains a model of river example by example."""
  def rows(x: np.ndarray) -> Iterator[dict[int, float]]:
    return (dict(enumerate(row)) for row in x.tolist())

  def learn(new: Data) -> Any:
    for row, label in zip(rows(new[0]), new[1].tolist()):
      model.learn_one(row, label)
    return lambda x: np.array([model.predict_one(row) for row in rows(x)])

  return learn


def rivals(classes: np.ndarray, is_table: bool, seed: int) -> dict[str, Learn]:
  """{name: Learn}."""
  found = {
      "linear, partial_fit": passes(SGDClassifier(loss="log_loss", random_state=seed), classes, seed),
      "perceptron, partial_fit": passes(MLPClassifier((98, 98), batch_size=32, random_state=seed), classes, seed),
      "3 nearest neighbours": again(lambda: KNeighborsClassifier(3), 8)}
  if is_table:
    extras.need("river's trees", "river")
    from river import forest, tree

    found |= {f"boosted trees, {window} mega-batches": again(
        lambda: HistGradientBoostingClassifier(random_state=seed), window) for window in (5, 20)}
    found |= {"adaptive Hoeffding tree": one_by_one(tree.HoeffdingAdaptiveTreeClassifier(seed=seed)),
              "adaptive random forest": one_by_one(forest.ARFClassifier(seed=seed))}
  return found


def main() -> None:
  parser = commands.Parser("benchmarks/drift_rivals.py", __doc__)
  parser.add_argument("--out", default="errors.csv", help="CSV file that gets further rows")
  options, flags = parser.parse_known_args()
  _, config = command._parse(flags)
  stream = [(arrays["x"].reshape(len(arrays["x"]), -1).astype(np.float64), arrays["y"])
            for name, arrays in protocols.of(config).entries(config) if name.startswith("stream/")]
  (first, _), is_table = stream[0], stream[0][0].shape[1] < 64
  mean = first.mean(0) if is_table else first.mean()
  std = np.where(first.std(0) > 0, first.std(0), 1) if is_table else first.std()
  stream = [((x - mean) / std, y) for x, y in stream]
  classes = np.unique(np.concatenate([y for _, y in stream]))
  for name, learn in rivals(classes, is_table, config.seed).items():
    errors: list[float] = []
    predict: Any = None
    for x, y in stream:
      if predict is not None:
        errors.append(float((predict(x) != y).mean()))
      predict = learn((x, y))
    row = drift_study.row(config, name, errors)
    print(f"{row['data']} {row['stream']} {name}: {np.mean(errors):.4f}, last ten {np.mean(errors[-10:]):.4f}",
          flush=True)
    der.append(pathlib.Path(options.out), row)


if __name__ == "__main__":
  sys.exit(commands.exit_code(main))
