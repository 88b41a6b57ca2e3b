"""Prints the tables of docs/results/drift and draws its figures.

    python benchmarks/drift_study.py docs/results/drift
    python benchmarks/drift_study.py docs/results/drift --runs runs/drift runs/drift_cifar10

The folder has errors.csv: a row for each data set, stream, learner and seed, with the prequential errors, those of each
mega-batch before it is trained on. The first mega-batch, before which nothing is known, does not count. --runs adds the
finished runs of configs/sweeps/drift.py; drift_rivals.py and drift_reset.py add rows with --out.
"""
import pathlib
import sys
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pandas as pd
import results
import themes

from alma_jax import commands
from alma_jax.reports import drawing
from alma_jax.reports.drawing import Line, Panel, Plot
from alma_jax.store.record import Record

STREAMS = ("stationary", "permute", "relabel", "rotate", "classes", "noise", "imbalance", "recur_inputs",
           "recur_labels")
OURS, UNIFORM = "anytime", "uniform"
CHOICES = {"learning rates": (OURS, "rate / 2", "rate x 2"), "numbers of steps": (OURS, "steps / 2", "steps x 2")}
FIXED = {UNIFORM: "all", "none": "none", **{f"h{half}": f"half-life {half}" for half in (1, 2, 4, 8, 16)},
         "reset": "reset at alarms"}
FILE = "errors.csv"
KEY = ["data", "stream", "learner", "seed"]
_LAST = 10  # mega-batches
_DIGITS = 4
_HALF_LIFE, _FEWEST, _WORSE = 2, 5, 3.0  # see `chosen`


def main() -> None:
  parser = commands.Parser("benchmarks/drift_study.py", __doc__)
  parser.add_argument("study", type=pathlib.Path, help="folder of the study")
  parser.add_argument("--runs", nargs="+", default=[], type=pathlib.Path, help="folders of the sweeps' runs")
  options = parser.parse_args()
  if options.runs:
    gather(options.study, [path for folder in options.runs for path in sorted(folder.glob("seed*"))])
  table = read(options.study)
  for title, each in tables(table):
    print(f"{title}\n\n{each}\n")
  for data, plot in plots(table).items():
    themes.write(drawing.draw(plot), options.study / f"{data}.svg")


def row(config: Any, learner: str, errors: Sequence[float]) -> dict[str, Any]:
  """The row of a learner on the stream of a RunConfig; `errors`: prequential, from the second mega-batch on."""
  kind, _, name = config.dataset.name.partition(":")
  data, stream = ("river", name) if kind == "river" else (name, config.dataset.change.name)
  return dict(data=data, stream=stream, learner=learner, seed=config.seed,
              errors=" ".join(f"{error:.4g}" for error in errors))


def gather(folder: pathlib.Path, paths: Iterable[pathlib.Path]) -> None:
  """Adds the rows of finished runs to the file."""
  rows = []
  for record in filter(lambda record: record.is_finished, map(Record, paths)):
    config = record.config
    is_choice = any(config.log.label in labels for labels in CHOICES.values())
    learner = OURS if config.learner.name == "dual" and not is_choice else config.log.label
    rows.append(row(config, learner, [error for _, error in record.values("prequential_error")]))
  folder.mkdir(parents=True, exist_ok=True)
  table = pd.DataFrame(rows)
  if (folder / FILE).exists():
    table = pd.concat([pd.read_csv(folder / FILE), table])
  table.drop_duplicates(KEY, keep="last").sort_values(KEY).to_csv(folder / FILE, index=False)


def read(folder: pathlib.Path) -> pd.DataFrame:
  """The rows of the file, with their `error`, the mean, that of the `last` mega-batches, and all errors as an array."""
  table = pd.read_csv(folder / FILE).drop_duplicates(KEY, keep="last")
  errors = [np.array(text.split(), float) for text in table["errors"]]
  return table.assign(errors=errors, error=[each.mean() for each in errors],
                      last=[each[-_LAST:].mean() for each in errors])


def tables(table: pd.DataFrame) -> list[tuple[str, str]]:
  """(title, Markdown) of the tables of each data set."""
  made = list[tuple[str, str]]()
  for data, mine in table.groupby("data"):
    streams = in_order(mine["stream"])
    by = mine.set_index(["learner", "stream", "seed"]).sort_index()
    mean = by[["error", "last"]].groupby(["learner", "stream"]).mean()
    cell = lambda learner, stream, column="error", mean=mean: (
        f"{mean[column][learner, stream]:.{_DIGITS}f}" if (learner, stream) in mean.index else "")
    rows = [["", "`anytime`", "best fixed memory", "which", "`anytime` / best", "all data", "last ten"]]
    for stream in streams:
      which = best(mine, stream)
      ours, other = by["error"].loc[OURS, stream], by["error"].loc[which, stream]
      rows.append([f"`{stream}`", spread(ours), spread(other), FIXED[which], f"{(ours / other).dropna().mean():.2f}",
                   cell(UNIFORM, stream), cell(OURS, stream, "last")])
    known = [name for name in FIXED if name in set(mine["learner"])]
    fixed = [["", *map(FIXED.__getitem__, known)],
             *([f"`{stream}`", *(cell(name, stream) for name in known)] for stream in streams)]
    others = sorted(set(mine["learner"]) - set(FIXED).union(*CHOICES.values()) | {OURS},
                    key=lambda name: (name != OURS, name))
    others = [[f"`{name}`" if name == OURS else name, *(cell(name, stream) for stream in streams)] for name in others]
    made += [(f"{data}: against the best fixed memory", results.markdown(rows, [])),
             (f"{data}: fixed memories", results.markdown(fixed, [])),
             (f"{data}: other learners", results.markdown([["", *streams], *others], []))]
    memories = {"memories": [name for name in FIXED if name != "reset"]}  # a rule, not a memory
    made += [(f"{data}: choosing among {what}", choices(by["errors"], streams, names))
             for what, names in (memories | CHOICES).items() if set(names) <= set(mine["learner"])]
  return made


def choices(errors: pd.Series, streams: Sequence[str], candidates: Sequence[str]) -> str:
  """A table of the errors if you choose among candidates by their prequential errors.

  `errors` has an array for each learner, stream and seed. Seeds and streams without all candidates are left out.
  """
  rows = [["", "`anytime`", "best in hindsight", "chosen, all go on", "chosen, the worse ones stop", "cost"]]
  for stream in streams:
    table = errors[:, stream].unstack("learner").reindex(columns=[*candidates, OURS]).dropna()
    if len(table):
      of_seed = [np.stack(row[:-1]) for row in table.to_numpy()]
      ours = np.mean([each.mean() for each in table.iloc[:, -1]])
      whole, _ = np.mean([chosen(each, stops=False) for each in of_seed], 0)
      raced, cost = np.mean([chosen(each, stops=True) for each in of_seed], 0)
      values = ours, np.mean(of_seed, (0, 2)).min(), whole, raced
      rows.append([f"`{stream}`", *(f"{value:.{_DIGITS}f}" for value in values), f"{cost:.1f}"])
  return results.markdown(rows, [])


def chosen(errors: np.ndarray, stops: bool) -> tuple[float, float]:
  """The mean error if each mega-batch is predicted by the candidate that has been best so far, and the cost.

  Best is the lowest mean of the earlier errors, weighted with a half-life of _HALF_LIFE mega-batches; at first it is
  the first candidate. With `stops` a candidate stops training once its mean error exceeds the best one by _WORSE
  standard errors of the difference, from the _FEWEST-th error on. The cost is the mean number of those in training.

  Args:
    errors: prequential, float [candidates, mega-batches].
    stops: whether candidates stop.
  """
  running, score, found, cost = np.ones(len(errors), bool), np.zeros(len(errors)), list[float](), 0
  for t, now in enumerate(errors.T, 1):
    best = int(np.where(running, score, np.inf).argmin())
    found.append(now[best])
    cost += running.sum()
    score += (1 - 0.5 ** (1 / _HALF_LIFE)) * (now - score)
    if stops and t >= _FEWEST:
      best = int(np.where(running, score, np.inf).argmin())
      more = errors[:, :t] - errors[best, :t]
      running &= more.mean(1) <= _WORSE * more.std(1, ddof=1) / np.sqrt(t)
  return float(np.mean(found)), cost / errors.shape[1]


def best(table: pd.DataFrame, stream: str) -> str:
  """The fixed memory with the lowest mean error on a stream, in hindsight."""
  mine = table[(table["stream"] == stream) & table["learner"].isin(FIXED)]
  return str(mine.groupby("learner")["error"].mean().idxmin())


def in_order(streams: pd.Series) -> list[str]:
  """Each stream once, those of STREAMS first."""
  return sorted(set(streams), key=lambda name: (STREAMS.index(name) if name in STREAMS else len(STREAMS), name))


def spread(values: pd.Series) -> str:
  """Mean ± sample standard deviation."""
  return f"{values.mean():.{_DIGITS}f}" + (f" ± {values.std():.{_DIGITS}f}" if len(values) > 1 else "")


def plots(table: pd.DataFrame) -> dict[str, Plot]:
  """{data: figure}, with a panel for each stream; the curves are means over the seeds."""
  made, keys = {}, {OURS: drawing.key("anytime", "anytime", marked=False), "best": drawing.key(
      "best fixed memory", "ens", marked=False), UNIFORM: drawing.key("all data", "sm", marked=False)}
  for data, mine in table.groupby("data"):
    panels = []
    for stream in in_order(mine["stream"]):
      which, part = best(mine, stream), mine[mine["stream"] == stream]
      lines = []
      for learner, key in {UNIFORM: UNIFORM, which: "best", OURS: OURS}.items():
        errors = part.loc[part["learner"] == learner, "errors"].tolist()
        if errors:
          y = np.mean(errors, axis=0)
          lines.append(Line(keys[key], np.arange(2, len(y) + 2), y, y, y, "middle"))
      panels.append(Panel(f"{stream} (best: {FIXED[which]})", lines, x="mega-batch", y="prequential error"))
    made[str(data)] = Plot("", panels, list(keys.values()), across=2, size=(drawing.COLUMN / 2 + 0.35, 1.5),
                           log=(False, False), shared="none")
  return made


if __name__ == "__main__":
  sys.exit(commands.exit_code(main))
