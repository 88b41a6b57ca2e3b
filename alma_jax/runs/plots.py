"""Pictures of one run: the curve of its error, and the gate tree of a mixture."""
import io
import itertools
from collections.abc import Sequence
from typing import Any

import matplotlib
from matplotlib.axes import Axes

from alma_jax.protocols.contract import Protocol
from alma_jax.store.metrics import Measure

COLOUR = "#0072B2"  # blue of the Okabe-Ito palette, distinct for colour-blind readers
_LARGEST, _SMALLEST = 0.45, 0.28  # radii of the circles of a gate tree; neighbouring leaves have the distance 1


def curve(lines: Sequence[dict[str, Any]], measure: Measure, title: str,
          chance: float | None = None, labels: tuple[str, str] = Protocol.labels) -> bytes:
  """A PNG of error or perplexity over the stream, as the paper's Figure 1; the area below the error is the CER.

  For a stream of tasks it draws the error on each task when it was learned. For a live stream without a test set it
  draws the prequential metric, from the first mega-batch that has one.

  Args:
    lines: entries of metrics.jsonl.
    measure: what the metric of the lines is measured on.
    title: text above the picture.
    chance: error of guessing, drawn as a dotted line; None: no line.
    labels: of the run's protocol.
  """
  from matplotlib.backends.backend_agg import FigureCanvasAgg
  from matplotlib.figure import Figure
  from matplotlib.ticker import MaxNLocator

  with matplotlib.rc_context({"font.size": 11, "axes.spines.top": False, "axes.spines.right": False}):
    figure = Figure(figsize=(7, 4.2), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    # Around every t a bar of width 1: their area is the CER. Perplexity is None before the first update.
    total, key = len(lines), measure.key
    lines = [entry for entry in lines if entry.get(key) is not None]
    errors = [entry[key] for entry in lines]
    if lines:
      edges = [entry["t"] - 0.5 for entry in lines] + [lines[-1]["t"] + 0.5]
      axes.stairs(errors, edges, color=COLOUR, linewidth=2, baseline=None)
      axes.stairs(errors, edges, color=COLOUR, alpha=0.12, fill=True)
      axes.annotate(f"{errors[-1]:.4f}" if measure.metric == "error" else f"{errors[-1]:.1f}", (edges[-1], errors[-1]),
                    xytext=(5, 0), textcoords="offset points", va="center", color=COLOUR, annotation_clip=False)
    updates = [(entry["t"], entry[key]) for entry in lines if entry["updated"]]
    if 0 < len(updates) <= 60:
      axes.plot(*zip(*updates), "o", color=COLOUR, markersize=4,
                label="before an update" if measure.is_prequential else "after an update")
    if chance is not None:
      axes.axhline(chance, color="0.5", linestyle=":", linewidth=1, label="guessing")
    axes.set(xlabel=labels[0], ylabel=measure.name + labels[1], xlim=(0.5, total + 0.5),
             ylim=(0, max([chance or 0, *errors]) * 1.08 or 1))
    axes.set_title(title, fontsize=11)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    if axes.get_legend_handles_labels()[0]:  # a long stream of tasks has nothing to explain
      axes.legend(frameon=False, loc="best")
    picture = io.BytesIO()
    figure.savefig(picture, format="png", dpi=150, metadata={"Software": None})
  return picture.getvalue()


def gate_tree(splits: Sequence[int], axes: Axes, sizes: Sequence[float] | None = None) -> None:
  """Draws the binary tree of a mixture's gates. The leaves are experts, drawn as circles.

  The circles have the units of the axes. They stay round, and do not touch, if the figure is resized.

  Args:
    splits: of a layer, as in `Run.spec(stage)["splits"][layer]`: the i-th entry
      is the expert that the i-th growth has split.
    axes: matplotlib Axes.
    sizes: share (0 to 1) of each expert, shown by the area of its circle; None:
      all circles are equal.
  """
  from matplotlib.patches import Circle

  from alma_jax.models import moe
  num, leaves = len(splits) + 1, itertools.count()
  sizes = [1] * num if sizes is None else sizes

  def draw(node: Any, level: int) -> tuple[float, int]:
    """Draws a node and all below it; returns its x, and the lowest level."""
    if isinstance(node, int):
      x = next(leaves)
      radius = (_SMALLEST**2 + (_LARGEST**2 - _SMALLEST**2) * min(max(sizes[node], 0), 1)) ** 0.5
      axes.add_patch(Circle((x, -level), radius, color=COLOUR, linewidth=0, zorder=2))
      axes.annotate(str(node), (x, -level), color="white", ha="center", va="center", fontsize=7, zorder=3)
      return x, level
    ends, lowest = zip(*(draw(child, level + 1) for child in node[1:]))
    middle = sum(ends) / 2
    for end in ends:
      axes.plot([middle, end], [-level, -level - 1], color="0.6", linewidth=1.2, zorder=1)
    axes.add_patch(Circle((middle, -level), 0.1, color="0.6", linewidth=0, zorder=2))
    return middle, max(lowest)

  _, lowest = draw(moe.nested(splits), 0)
  middle, half = (num - 1) / 2, max(num, 4) / 2
  axes.set(xticks=[], yticks=[], xlim=(middle - half, middle + half), ylim=(-lowest - 0.5, 0.5))
  axes.set_aspect("equal")
  axes.set_frame_on(False)
