"""Prints the tables of docs/results/drift and draws its figures.

    python benchmarks/drift_study.py docs/results/drift
    python benchmarks/drift_study.py docs/results/drift --runs runs/drift runs/drift_cifar10

The folder has errors.csv, a row for each stream, learner and seed; rivals.csv, the same from drift_rivals.py and
drift_reset.py; and stream.csv, the mean error on each mega-batch, of the learners that figures show. --runs makes the
first and the last again from the runs of configs/sweeps/drift.py. All errors are prequential: of each mega-batch before
it is trained on. The first mega-batch, before which nothing is known, does not count.
"""
import pathlib
import sys
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
FIXED = {UNIFORM: "all", "none": "none", **{f"h{half}": f"half-life {half}" for half in (1, 2, 4, 8, 16)},
         "reset": "reset at alarms"}
ERRORS, RIVALS, STREAM = "errors.csv", "rivals.csv", "stream.csv"
KEY = ["data", "stream", "learner", "seed"]
_LAST = 10  # mega-batches
_DIGITS = 4


def main() -> None:
  parser = commands.Parser("benchmarks/drift_study.py", __doc__)
  parser.add_argument("study", type=pathlib.Path, help="folder of the study")
  parser.add_argument("--runs", nargs="+", default=[], type=pathlib.Path, help="folders of the sweeps' runs")
  options = parser.parse_args()
  if options.runs:
    gather(options.study, [path for folder in options.runs for path in sorted(folder.glob("seed*"))])
  for title, table in tables(options.study):
    print(f"{title}\n\n{table}\n")
  draw(options.study)


def gather(folder: pathlib.Path, paths: list[pathlib.Path]) -> None:
  """Writes the CSV files of finished runs."""
  rows, curves = list[dict[str, Any]](), list[dict[str, Any]]()
  for record in filter(lambda record: record.is_finished, map(Record, paths)):
    config = record.config
    change = getattr(getattr(config.dataset, "change", None), "name", "")
    learner = OURS if config.learner.name == "dual" else config.log.label
    kind = {"data": config.dataset.name, "stream": change, "learner": learner, "seed": config.seed}
    found = record.values("prequential_error")
    errors = np.array([error for _, error in found])
    rows.append(kind | {"error": errors.mean(), "last_10": errors[-_LAST:].mean(),
                        "macs": record.summary["cumulative_fwd_macs"]})
    curves += [kind | {"t": t, "error": error} for t, error in found]
  folder.mkdir(parents=True, exist_ok=True)
  pd.DataFrame(rows).sort_values(KEY).to_csv(folder / ERRORS, index=False, float_format="%.6g")
  table = read(folder)
  drawn = table[table["learner"] != "reset"]  # whose errors on each mega-batch are not kept
  means = named(pd.DataFrame(curves)).groupby(["data", "stream", "learner", "t"])["error"].mean().reset_index()
  shown = [part for (data, stream), part in means.groupby(["data", "stream"])
           for part in [part[part["learner"].isin({OURS, UNIFORM, best(drawn, data, stream)})]]]
  pd.concat(shown).to_csv(folder / STREAM, index=False, float_format="%.4g")


def read(folder: pathlib.Path) -> pd.DataFrame:
  """The rows of errors.csv and rivals.csv."""
  return named(pd.concat([pd.read_csv(path) for path in (folder / ERRORS, folder / RIVALS) if path.exists()]))


def named(table: pd.DataFrame) -> pd.DataFrame:
  """Rows with what "drift:mnist" or "river:Agrawal" says: the data mnist, or the data river and the stream Agrawal."""
  kind = table["data"].str.split(":", n=1, expand=True)
  is_river = kind[0] == "river"
  return table.assign(data=kind[1].mask(is_river, "river"), stream=table["stream"].mask(is_river, kind[1]))


def best(table: pd.DataFrame, data: str, stream: str) -> str:
  """The fixed memory with the lowest mean error on a stream, in hindsight; "" if none was measured."""
  mine = table[(table["data"] == data) & (table["stream"] == stream) & table["learner"].isin(FIXED)]
  return str(mine.groupby("learner")["error"].mean().idxmin()) if len(mine) else ""


def tables(folder: pathlib.Path) -> list[tuple[str, str]]:
  """(title, Markdown) of the tables of each data set."""
  table, made = read(folder), list[tuple[str, str]]()
  for data, mine in table.groupby("data", sort=False):
    streams = [stream for stream in in_order(mine["stream"]) if best(table, str(data), stream)]
    mine = mine.set_index(["learner", "stream", "seed"]).sort_index()
    means = mine[["error", "last_10"]].groupby(["learner", "stream"]).mean()
    cell = lambda learner, stream, column="error", means=means: (
        f"{means[column][learner, stream]:.{_DIGITS}f}" if (learner, stream) in means.index else "")
    rows = [["", "`anytime`", "best fixed memory", "which", "`anytime` / best", "all data", "last ten"]]
    for stream in streams:
      which = best(table, str(data), stream)
      ratio = (mine["error"].loc[OURS, stream] / mine["error"].loc[which, stream]).dropna()
      rows.append([f"`{stream}`", spread(mine["error"].loc[OURS, stream]), spread(mine["error"].loc[which, stream]),
                   FIXED[which], f"{ratio.mean():.2f}", cell(UNIFORM, stream), cell(OURS, stream, "last_10")])
    made.append((f"{data}: against the best fixed memory", results.markdown(rows, [])))
    made.append((f"{data}: fixed memories", results.markdown(
        [["", *FIXED.values()], *([f"`{stream}`", *(cell(name, stream) for name in FIXED)] for stream in streams)],
        [])))
    others = [name for name in dict.fromkeys(mine.index.get_level_values(0)) if name not in FIXED]
    made.append((f"{data}: other learners", results.markdown(
        [["", *streams], *([f"`{OURS}`" if name == OURS else name, *(cell(name, stream) for stream in streams)]
                           for name in others)], [])))
  return made


def in_order(streams: pd.Series) -> list[str]:
  """Each stream once, those of STREAMS first."""
  return sorted(set(streams), key=lambda name: (STREAMS.index(name) if name in STREAMS else len(STREAMS), name))


def spread(values: pd.Series) -> str:
  """Mean ± sample standard deviation."""
  return f"{values.mean():.{_DIGITS}f}" + (f" ± {values.std():.{_DIGITS}f}" if len(values) > 1 else "")


def draw(folder: pathlib.Path) -> None:
  """Writes DATA.svg for each data set: a panel for each stream."""
  table, curves = read(folder), pd.read_csv(folder / STREAM)
  keys = {OURS: drawing.key("anytime", "anytime", marked=False), "best": drawing.key(
      "best fixed memory", "ens", marked=False), UNIFORM: drawing.key("all data", "sm", marked=False)}
  for data, mine in curves.groupby("data"):
    panels = []
    for stream in in_order(mine["stream"]):
      part = mine[mine["stream"] == stream]
      which = best(table[table["learner"] != "reset"], str(data), stream)
      lines = []
      for learner, key in ((UNIFORM, UNIFORM), (which, "best"), (OURS, OURS)):
        if learner != UNIFORM or key == UNIFORM:  # where the best memory keeps all data, there is one line
          curve = part[part["learner"] == learner]
          y = curve["error"].to_numpy()
          lines.append(Line(keys[key], curve["t"].to_numpy(), y, y, y, "middle"))
      panels.append(Panel(f"{stream} (best: {FIXED[which]})", lines, x="mega-batch", y="prequential error"))
    plot = Plot("", panels, list(keys.values()), across=2, size=(drawing.COLUMN / 2 + 0.35, 1.5), log=(False, False),
                shared="none")
    themes.write(drawing.draw(plot), folder / f"{data}.svg")


if __name__ == "__main__":
  sys.exit(commands.exit_code(main))
