"""Draws the figures of a study's page from the runs that the repository keeps.

    python benchmarks/study_figures.py docs/results/mnist

The argument is the folder of a study of benchmarks/claims.py, or docs/results/anytime. The figures are those of
`alma report`, as PNG. Their captions are printed. A figure that the runs do not suffice for is removed.
"""
import pathlib
import sys

import pandas as pd
from claim_list import STUDIES
from claims import RUNS, STREAM

from alma_jax import commands
from alma_jax.errors import BadInput
from alma_jax.reports import drawing, figures, page, read, studies
from alma_jax.reports.studies import Study

# {study: {figure of its page: the waiting times of its panels; empty: all, or as many as fit}}
PAGES: dict[str, dict[str, tuple[int, ...]]] = {
    "mnist": {"stream": (1, 50), "waiting": (), "compute": (1, 5, 50, 250), "parameters": (1, 5, 50, 250)},
    "mnist_replay": {"replay": (), "growth": ()},
    "mnist_authors": {"waiting": (), "compute": (), "parameters": ()},
    "text": {"compute": (), "experts": (), "stream-compute": ()},
    "anytime": {"pareto": ()}}
# {study: pattern for the names of the runs that are shown}; other studies show all.
SHOWN = {"anytime": r".*/seed\d-(sm|ens|umix|gens|(warm|retrain|shrink_perturb)-epochs20|anytime(-steps\d+)?)"}
PAGES["cifar"] = PAGES["cifar-full"] = {
    "stream": (10, 50), "waiting": (), "compute": (), "parameters": (), "replay": ()}


def main() -> None:
  parser = commands.Parser("benchmarks/study_figures.py", __doc__)
  parser.add_argument("study", type=pathlib.Path, help="folder of the study")
  for name, caption in draw(parser.parse_args().study).items():
    print(f"{name}.png: {caption}")


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
      (folder / f"{name}.png").unlink(missing_ok=True)  # of other runs
    else:
      captions[name] = plot.caption
      (folder / f"{name}.png").write_bytes(page.png(drawing.draw(plot)))
  return captions


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
