"""Draws a picture of every learner: its test error and its parameters over the stream, beside those of `sm`.

    python benchmarks/learners.py --workdir runs/learners
    python benchmarks/pictures.py runs/learners docs/images/learners
"""
import argparse
import pathlib

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

import alma_jax
from alma_jax.reports import drawing

SIZE, DPI = (7.2, 2.6), 110


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("runs", type=pathlib.Path, help="folder with a run folder for each learner, named like it")
  parser.add_argument("out", type=pathlib.Path, help="folder for NAME.png")
  args = parser.parse_args()
  args.out.mkdir(parents=True, exist_ok=True)
  reference = alma_jax.load_run(args.runs / "sm")
  for name in sorted(place.parent.name for place in args.runs.glob("*/config.json")):
    draw(name, alma_jax.load_run(args.runs / name), reference, args.out / f"{name}.png")


def draw(name: str, run: alma_jax.Run, reference: alma_jax.Run, path: pathlib.Path) -> None:
  """Writes the picture of one learner."""
  edges = range(len(run.metrics["t"]) + 1)  # a bar for every mega-batch
  figure, axes = plt.subplots(1, 2, figsize=SIZE, layout="constrained")
  for axis, column, label in zip(axes, ("error", "num_params"), ("test error", "parameters held")):
    if name != "sm":
      axis.stairs(reference.metrics[column], edges, baseline=None, color="#767676", label="sm")
    color, _ = drawing.STYLES[name]
    axis.stairs(run.metrics[column], edges, baseline=None, color=color, linewidth=2, label=name)
    axis.set(xlabel="mega-batches", ylabel=label, ylim=(0, None))
    axis.spines[["top", "right"]].set_visible(False)
    axis.xaxis.get_major_locator().set_params(integer=True)
  axes[0].legend(frameon=False)
  axes[1].yaxis.set_major_formatter(matplotlib.ticker.FuncFormatter(lambda value, _: f"{value:,.0f}"))
  figure.savefig(path, dpi=DPI)
  plt.close(figure)


if __name__ == "__main__":
  main()
