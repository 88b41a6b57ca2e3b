"""Draws the pictures of the learners on the digits: the one on the first page, and one of each learner beside `sm`.

    python benchmarks/learners.py --workdir runs/learners
    python benchmarks/pictures.py runs/learners docs/images

Writes digits-stream.svg, the figure `stream` of `alma report` for four learners, learners/NAME.svg, the test error and
the parameters of a learner over the stream, and learners/summary.csv, from which drawings.py draws all learners in one
plane. Each picture also stores the numbers it shows, so that tests/studies/test_pictures.py can compare it with today's
runs: its description is JSON, {learner: {column of metrics.jsonl: values}}.
"""
import argparse
import json
import pathlib
from collections.abc import Sequence

import pandas as pd
import themes
from matplotlib.figure import Figure

import alma_jax
from alma_jax.reports import collect, drawing, figures
from alma_jax.reports.drawing import Line, Panel, Plot

SIZE = (drawing.COLUMN, 1.6)
FIRST, FIRST_PAGE = "digits-stream.svg", ("sm", "ens", "gmoe", "anytime")
COLUMNS = {"error": "test error", "num_params": "parameters held"}


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("runs", type=pathlib.Path, help="folder with a run folder for each learner, named like it")
  parser.add_argument("out", type=pathlib.Path, help="folder for the pictures")
  args = parser.parse_args()
  (args.out / "learners").mkdir(parents=True, exist_ok=True)
  (study,), _ = collect.collect([str(args.runs / name) for name in FIRST_PAGE])
  save(drawing.draw(figures.plots(study)["stream"]), args.out / FIRST, args.runs, FIRST_PAGE, ["error"])
  names = sorted(place.parent.name for place in args.runs.glob("*/config.json"))
  summaries = {name: alma_jax.load_run(args.runs / name).summary for name in names}
  pd.DataFrame([{"learner": name, "cer": its["cer"], "cumulative_fwd_macs": its["cumulative_fwd_macs"]}
                for name, its in summaries.items()]).to_csv(args.out / "learners/summary.csv", index=False)
  for name in names:
    save(figure(name, args.runs), args.out / "learners" / f"{name}.svg", args.runs, sorted({"sm", name}), [*COLUMNS])


def figure(name: str, runs: pathlib.Path) -> Figure:
  """The picture of one learner."""
  keys = {each: drawing.key(each, each, marked=False) for each in ("sm", name)}
  metrics = {each: alma_jax.load_run(runs / each).metrics for each in keys}
  panels = [Panel("", [Line(keys[each], run["t"], run[column], run[column], run[column], "middle")
                       for each, run in metrics.items()], x="mega-batches", y=label)
            for column, label in COLUMNS.items()]
  return drawing.draw(Plot("", panels, [*keys.values()], 2, (SIZE[0] / 2, SIZE[1]), (False, False), "none"))


def save(figure: Figure, path: pathlib.Path, runs: pathlib.Path, names: Sequence[str], columns: Sequence[str]) -> None:
  """Writes a picture and stores the data of these learners in it."""
  metrics = {name: alma_jax.load_run(runs / name).metrics for name in names}
  shown = {name: {column: list(its[column]) for column in columns} for name, its in metrics.items()}
  themes.write(figure, path, json.dumps(shown, default=float))


if __name__ == "__main__":
  main()
