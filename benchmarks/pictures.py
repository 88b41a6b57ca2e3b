"""Draws the pictures of the learners on the digits: the one on the first page, and one of each learner beside `sm`.

    python benchmarks/learners.py --workdir runs/learners
    python benchmarks/pictures.py runs/learners docs/images

Writes digits-stream.svg, the figure `stream` of `alma report` for four learners, learners/NAME.svg, the test error and
the parameters of a learner over the stream, and learners/summary.csv, from which drawings.py draws all learners in one
plane. Each picture also stores the numbers it shows, so that tests/studies/test_pictures.py can compare it with today's
runs: its description is JSON, {learner: {column of metrics.jsonl: values}}.
"""
import argparse
import colorsys
import io
import json
import pathlib
import re
from collections.abc import Sequence

import matplotlib
import pandas as pd
from matplotlib.figure import Figure

import alma_jax
from alma_jax.reports import collect, drawing, figures
from alma_jax.reports.drawing import Line, Panel, Plot

SIZE = (5.4, 2.2)
PAPER, DARK = "#ffffff", "#1e2129"  # of light and dark pages
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
  file = io.StringIO()
  with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "alma_jax"}):
    figure.savefig(file, format="svg", metadata={
        "Date": None, "Creator": None, "Description": json.dumps(shown, default=float)})
  path.write_text(themed(file.getvalue()), encoding="utf-8")


def themed(svg: str) -> str:
  """An SVG file of matplotlib whose colours follow the theme of the page."""
  colours = sorted(set(re.findall(r"(?<=[:\"] )#[0-9a-f]{6}", svg)) | {"#000000"})
  values = lambda theme: " ".join(f"--{colour[1:]}: {theme(colour)};" for colour in colours)
  style = (f"<style>svg {{ {values(str)} }} text {{ fill: var(--000000); }}\n"
           f"@media (prefers-color-scheme: dark) {{ svg {{ {values(dark)} }} }}</style>")
  svg = re.sub(r"(?<=[:\"] )#([0-9a-f]{6})", r"var(--\1)", svg)
  return re.sub(r"(<svg [^>]*>)", lambda match: f"{match[1]}\n {style}", svg, count=1)


def dark(colour: str) -> str:
  """The colour of a light page, on a dark one: its lightness is turned round."""
  if colour == PAPER:
    return DARK
  hue, lightness, saturation = colorsys.rgb_to_hls(*(int(colour[i:i + 2], 16) / 255 for i in (1, 3, 5)))
  parts = colorsys.hls_to_rgb(hue, max(0.92 - 0.8 * lightness, 0.25), saturation)
  return "#" + "".join(f"{round(255 * part):02x}" for part in parts)


if __name__ == "__main__":
  main()
