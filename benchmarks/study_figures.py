"""Draws the figures of a study's page from the runs that the repository keeps.

    python benchmarks/study_figures.py docs/results/mnist

The argument is the folder of a study of benchmarks/claims.py, or docs/results/anytime. The figures are those of
`alma report`, as SVG in the width of a phone. Their captions are printed. A figure that the runs do not suffice for is
removed.
"""
import pathlib
import sys

import numpy as np
import pandas as pd
import themes
from claim_list import STUDIES
from claims import RUNS, STREAM

from alma_jax import commands
from alma_jax.errors import BadInput
from alma_jax.reports import drawing, figures, read, studies
from alma_jax.reports.drawing import Line, Plot
from alma_jax.reports.studies import Study

# {study: {figure of its page: the waiting times of its panels; empty: all, or as many as fit}}
PAGES: dict[str, dict[str, tuple[int, ...]]] = {
    "mnist": {"stream": (1, 50), "waiting": (), "compute": (1, 5, 50, 250), "parameters": (1, 5, 50, 250)},
    "mnist_replay": {"replay": (), "growth": ()},
    "replay": {"replay": (1, 2, 5, 10), "waiting": ()},
    "mnist_authors": {"waiting": (), "compute": (), "parameters": ()},
    "text": {"compute": (), "experts": (), "stream-compute": ()},
    "anytime": {"pareto": (), "stream": (), "stream-compute": ()}}
# {study: pattern for the names of the runs that are shown}; other studies show all.
SHOWN = {"anytime": r".*/seed\d-(sm|ens|umix|gens|(warm|retrain|shrink_perturb)-epochs20|anytime(-steps\d+)?)"}
PAGES["cifar"] = PAGES["cifar-full"] = {
    "stream": (10, 50), "waiting": (), "compute": (), "parameters": (), "replay": ()}
_STEPS = 150  # of a curve: more are closer than a pixel
_HIGH = 2.2  # inches, the most of a panel with lines


def main() -> None:
  parser = commands.Parser("benchmarks/study_figures.py", __doc__)
  parser.add_argument("study", type=pathlib.Path, help="folder of the study")
  for name, caption in draw(parser.parse_args().study).items():
    print(f"{name}.svg: {caption}")


def draw(folder: pathlib.Path) -> dict[str, str]:
  """Writes the figures of a study into its folder; returns {name: caption}.

  Raises:
    BadInput: the folder is not that of a study.
  """
  if folder.name not in PAGES:
    raise BadInput(f"{folder} is not the folder of a study; the studies are {', '.join(PAGES)}.")
  study, captions = study_of(folder), {}
  for name, waits in PAGES[folder.name].items():
    plot = figures.plots(study, waits).get(name)
    if plot is None:
      (folder / f"{name}.svg").unlink(missing_ok=True)  # of other runs
    else:
      captions[name] = plot.caption
      themes.write(drawing.draw(for_pages(plot)), folder / f"{name}.svg")
  return captions


def for_pages(plot: Plot) -> Plot:
  """A figure in the width of a phone, without the steps of curves that nobody can see."""
  panels = [panel._replace(lines=[_thinned(line) for line in panel.lines]) for panel in plot.panels]
  if not plot.size:
    return plot._replace(panels=panels, across=min(plot.across, 2))
  wide, high = plot.size
  size = (min(wide, drawing.COLUMN), high if panels[0].grid else min(high, _HIGH))
  return plot._replace(panels=panels, size=size, across=min(plot.across, max(1, int(drawing.COLUMN / wide))))


def _thinned(line: Line) -> Line:
  """A curve of the ends of its steps; of many steps every k-th one."""
  if line.form not in ("middle", "after"):
    return line
  changes = np.any(np.diff([line.y, line.low, line.high]), axis=0)  # between neighbours
  ends = np.flatnonzero(np.append(changes, True) | np.insert(changes, 0, True))
  shown = np.unique(np.append(ends[::-(-len(ends) // _STEPS)], ends[-1]))
  return line._replace(**{name: getattr(line, name)[shown] for name in ("x", "y", "low", "high")})


def study_of(folder: pathlib.Path) -> Study:
  """The Study of the runs that a folder keeps."""
  if not (folder / RUNS).is_file():
    sweep = STUDIES[folder.name].sweep if folder.name in STUDIES else f"sweeps/{folder.name}"
    raise BadInput(f"there is no {folder / RUNS}; `alma sweep --config={sweep}` makes the runs.")
  runs = pd.read_csv(folder / RUNS)
  runs = runs[runs["run"].astype(str).str.fullmatch(SHOWN.get(folder.name, ".*"))]
  scored = read.PERPLEXITY if "average_perplexity" in runs else read.ERROR
  kept = pd.read_csv(folder / STREAM) if (folder / STREAM).is_file() else pd.DataFrame(
      {name: [] for name in ("run", "t", "stage", "updated", scored.metric, "cumulative_fwd_macs")})
  kept = kept[kept["run"].astype(str).isin(runs["run"].astype(str))]
  stream = kept if scored.averages else _whole(kept, runs)
  fields = runs[[column for column in runs if column == "seed" or "." in column]]
  return Study(folder.name, scored, runs, stream, studies.factors(fields), runs.iloc[:0])


def _whole(kept: pd.DataFrame, runs: pd.DataFrame) -> pd.DataFrame:
  """The stream with all mega-batches: an error stays until the next training; the first one follows from the CER."""
  found = []
  for run, mine in kept.groupby("run", sort=False):
    row = runs.loc[runs["run"].astype(str) == str(run)].iloc[0]
    whole = mine.set_index("t").reindex(range(1, int(row["stream.num_megabatches"]) + 1))
    whole["updated"] = whole["updated"].notna()
    whole = whole.ffill()
    before = int(whole["error"].isna().sum())
    if before:
      whole["error"] = whole["error"].fillna((row["cer"] - whole["error"].sum()) / before)
    found.append(whole.fillna({"run": run, "cumulative_fwd_macs": 0.0}).reset_index())
  return pd.concat(found) if found else kept


if __name__ == "__main__":
  sys.exit(commands.exit_code(main))
