"""Pictures of one run: the curve of its error, and the gate tree of a mixture."""
import io
import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from alma_jax.store.metrics import Measure

if TYPE_CHECKING:  # slow to import
  from matplotlib.axes import Axes
  from matplotlib.figure import Figure

# The Okabe-Ito palette and similar colours: dark enough on white, and distinct for colour-blind readers. Each learner
# also has a marker of its own.
STYLES = {
    "sm": ("#4D4D4D", "o"), "ens": ("#0072B2", "s"), "umix": ("#56B4E9", "D"), "gens": ("#E69F00", "^"),
    "gmoe": ("#009E73", "v"), "moe": ("#8C6D00", "P"), "ff": ("#D55E00", "X"), "bagging": ("#CC79A7", "<"),
    "boosting": ("#7A3E9D", ">"), "hmoe": ("#7F3B08", "*"), "expert": ("#B8336A", "h"), "anytime": ("#C8102E", "p"),
    "anytime,v1": ("#A5677A", "1"), "anytime,tracking": ("#5848D9", "2"), "dual": ("#007C91", "3"),
    "retrain": ("#3C6E71", "d"), "warm": ("#5B7F1E", "H"), "shrink_perturb": ("#34518C", "8"),
}
# The learners of task streams, which share no figure with the others.
TASK_STYLES = {
    "independent": ("#4D4D4D", "o"), "finetune": ("#E69F00", "^"), "new_head": ("#56B4E9", "D"),
    "replay": ("#CC79A7", "<"), "oracle": ("#C8102E", "p"), "select": ("#0072B2", "s"), "mntdp": ("#009E73", "v"),
}
# Of runs that share a learner.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00")
_SQUEEZED = 2.5  # an axis that is this many times as high as the values after the first training squeezes them
_BESIDE, _LOW = 0.15, 0.16  # shares of an axis: half the width of a text; a curve this low leaves no room below it
_NAMED = 24  # tasks whose names have room
_LARGEST, _SMALLEST = 0.45, 0.28  # radii of the circles of a gate tree; neighbouring leaves have the distance 1


class Curve(NamedTuple):
  """A run, as a picture shows it.

  Attributes:
    name: of the run, e.g. "digits · ens".
    result: e.g. "CER 2.4250"; empty while the run is unfinished.
    lines: entries of metrics.jsonl.
    measure: what the metric of the lines is measured on.
    chance: the metric of guessing, or None.
    labels: of the run's protocol.
    label: of the learner in the config, which chooses the colour, e.g. "anytime".
  """
  name: str
  result: str
  lines: Sequence[dict[str, Any]]
  measure: Measure
  chance: float | None
  labels: tuple[str, str]
  label: str = ""


def colours(labels: Sequence[str]) -> list[str]:
  """A colour for each run: its learner's, or others if two share one."""
  known = STYLES | TASK_STYLES
  own = [known[label][0] for label in labels if label in known]
  return own if len(set(own)) == len(labels) else [*itertools.islice(itertools.cycle(COLOURS), len(labels))]


def draw(*curves: Curve) -> "Figure":
  """A matplotlib Figure of the metric over the stream, as the paper's Figure 1. The area below an error is the CER.

  A live stream without a test set shows its prequential metric. The axis is for what the learners do after their first
  training: what is higher before it is cut off, hatched, and named. Streams of tasks are drawn as a bar for each task.
  """
  import matplotlib
  from matplotlib.backends.backend_agg import FigureCanvasAgg
  from matplotlib.figure import Figure
  from matplotlib.ticker import MaxNLocator

  with matplotlib.rc_context({"font.size": 11, "axes.spines.top": False, "axes.spines.right": False}):
    figure = Figure(figsize=(7, 4.2), layout="constrained")
    FigureCanvasAgg(figure)
    axes, one = figure.subplots(), len(curves) == 1
    tops = [top for curve in curves if (top := _top(curve))]
    axes.set(xlim=(0.5, max([len(curve.lines) for curve in curves]) + 0.5), ylim=(0, max(tops, default=1.0)))
    tasks = [line["task"] for line in curves[0].lines if "task" in line]
    inks = colours([curve.label for curve in curves])
    for i, curve in enumerate(curves):
      values = [(line["t"], line[curve.measure.key]) for line in curve.lines if line.get(curve.measure.key) is not None]
      label = " · ".join(filter(None, (curve.name, curve.result)))
      if tasks:
        width = 0.8 / len(curves)
        axes.bar([t - 0.4 + (i + 0.5) * width for t, _ in values], [value for _, value in values], width,
                 color=inks[i], label=label)
      elif values:
        _draw_stair(axes, curve, values, inks[i], label, one)
    chance = curves[0].chance
    if chance is not None and chance <= axes.get_ylim()[1]:
      axes.axhline(chance, color="0.5", linestyle=":", linewidth=1)
      axes.annotate("guessing", (1, chance), (-4, -3), ("axes fraction", "data"), "offset points", ha="right", va="top",
                    color="0.4", fontsize=9)
    axes.set(xlabel=curves[0].labels[0], ylabel=curves[0].measure.name + curves[0].labels[1])
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    if 0 < len(tasks) <= _NAMED:
      axes.set_xticks(range(1, len(tasks) + 1), tasks, rotation=40, ha="right", fontsize=9)
    if one:
      axes.set_title(" · ".join(filter(None, (curves[0].name, curves[0].result))), fontsize=11)
    else:
      axes.legend(frameon=False)
  return figure


def curve(shown: Curve) -> bytes:
  """The PNG file curve.png of a run."""
  return png(draw(shown))


def png(figure: "Figure") -> bytes:
  """The PNG file of a figure. If memory runs out, Pillow reports a bad configuration, and this raises MemoryError."""
  picture = io.BytesIO()
  try:
    figure.savefig(picture, format="png", dpi=150, metadata={"Software": None})
  except OSError as error:
    if error.errno is not None:  # of a file, such as a font
      raise
    raise MemoryError(str(error)) from error
  return picture.getvalue()


def _first(curve: Curve) -> int:
  """The first mega-batch whose value follows a training; after the last one if there is none."""
  trained = next((line["t"] for line in curve.lines if line["updated"]), len(curve.lines) + 1)
  return trained + curve.measure.is_prequential  # which is measured before the training


def _top(curve: Curve) -> float:
  """Where the axis of a curve ends: above all values if that does not squeeze those that follow a training."""
  values = {line["t"]: line[curve.measure.key] for line in curve.lines if line.get(curve.measure.key) is not None}
  later = [value for t, value in values.items() if t >= _first(curve)]
  highest, most = max(values.values(), default=0.0), max(later, default=0.0)
  return 1.08 * highest if highest <= _SQUEEZED * most or not most else 1.3 * most


def _draw_stair(axes: "Axes", curve: Curve, values: Sequence[tuple[int, float]], colour: str, label: str, one: bool
                ) -> None:
  """The values as a stair; a lone curve gets its area, its last value and the part before its first training."""
  errors, top = [value for _, value in values], axes.get_ylim()[1]
  edges = [t - 0.5 for t, _ in values] + [values[-1][0] + 0.5]  # the area of bars of width 1 is the CER
  axes.stairs(errors, edges, color=colour, linewidth=2, baseline=None, label=label)
  if not one:
    return
  first = _first(curve) - 0.5
  axes.stairs(errors, edges, color=colour, alpha=0.12, fill=True)
  is_error = curve.measure.metric == "error"
  axes.annotate(f"{errors[-1]:.3f}" if is_error else f"{errors[-1]:.4g}", (edges[-1], errors[-1]),
                (5, 0), textcoords="offset points", va="center", color=colour, annotation_clip=False)
  if edges[0] < first:
    axes.axvspan(edges[0], min(first, edges[-1]), facecolor="none", edgecolor="0.75", hatch="//", linewidth=0, zorder=0)
    height = f"{errors[0]:.2f} " if is_error and errors[0] > top else ""
    axes.annotate(f"{height}before the first training", (edges[0], 0.97), (4, 0), ("data", "axes fraction"),
                  "offset points", va="top", color="0.35", fontsize=9, backgroundcolor=(1, 1, 1, 0.8))
  if curve.result.startswith("CER"):
    axes.annotate(f"area: {curve.result}", _room(values, top), (0, 8), textcoords="offset points", ha="center",
                  color=colour, fontsize=10)


def _room(values: Sequence[tuple[int, float]], top: float) -> tuple[float, float]:
  """Where a text has room in the area of a curve, near its middle; above the curve if it is low everywhere."""
  side = int(_BESIDE * len(values))
  middle = sum(t * error for t, error in values) / (sum(error for _, error in values) or 1)
  places = [(values[i][0], [error for _, error in values[i - side:i + side + 1]])
            for i in range(side, len(values) - side)]
  inside = [t for t, near in places if min(near) >= _LOW * top]
  if inside:
    return min(inside, key=lambda t: abs(t - middle)), 0.0
  t, near = min(places, key=lambda place: max(place[1]))
  return t, max(near)


def gate_tree(splits: Sequence[int], axes: "Axes", sizes: Sequence[float] | None = None) -> None:
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
      axes.add_patch(Circle((x, -level), radius, color=COLOURS[0], linewidth=0, zorder=2))
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
