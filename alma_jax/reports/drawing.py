"""What the figures share: colours, markers, legends and labels. A learner has one colour and one marker everywhere."""
import functools
import itertools
import textwrap
import types
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ParamSpec

import matplotlib
import matplotlib.colors
import numpy as np
from matplotlib import patheffects
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.typing import FillStyleType

# The Okabe-Ito palette and similar colours: dark enough on white, and distinct for colour-blind readers. Each learner
# also has a marker of its own.
STYLES = {
    "sm": ("#4D4D4D", "o"), "ens": ("#0072B2", "s"), "umix": ("#56B4E9", "D"), "gens": ("#E69F00", "^"),
    "gmoe": ("#009E73", "v"), "moe": ("#8C6D00", "P"), "ff": ("#D55E00", "X"), "bagging": ("#CC79A7", "<"),
    "boosting": ("#7A3E9D", ">"), "hmoe": ("#7F3B08", "*"), "expert": ("#B8336A", "h"), "anytime": ("#C8102E", "p"),
    "retrain": ("#3C6E71", "d"), "warm": ("#5B7F1E", "H"), "shrink_perturb": ("#34518C", "8"),
}
# The learners of task streams, which share no figure with the others.
TASK_STYLES = {
    "independent": ("#4D4D4D", "o"), "finetune": ("#E69F00", "^"), "new_head": ("#56B4E9", "D"),
    "replay": ("#CC79A7", "<"), "oracle": ("#C8102E", "p"), "select": ("#0072B2", "s"), "mntdp": ("#009E73", "v"),
}
# Those of learners that are not part of this package, one of which the name chooses.
_OTHERS = [*itertools.product(("#A0522D", "#6B6B00", "#00696B", "#8E0152"), ("h", "d", "p", "8"))]
# Inches, as the text of a paper and as one of its two columns: a figure is drawn in the size in which it is printed.
WIDTH, COLUMN = 7.0, 3.4
LEFT, RIGHT = 0.52, 0.15  # margins
LINE = 0.12  # of a title, in inches
RC: Any = {"font.size": 7, "axes.spines.top": False, "axes.spines.right": False, "axes.titlesize": 7,
           "axes.linewidth": 0.6, "xtick.major.width": 0.6, "ytick.major.width": 0.6, "xtick.major.size": 2.5,
           "ytick.major.size": 2.5, "xtick.minor.size": 1.5, "ytick.minor.size": 1.5, "xtick.major.pad": 2.5,
           "ytick.major.pad": 2.5, "axes.labelpad": 3,
           "axes.titley": 1.0,  # otherwise every title is placed by the extents of all ticks, which is slow
           "svg.hashsalt": "alma_jax"}
_DASHES = ("-", "--", ":", "-.")
_GREY, _NEUTRAL = "0.3", "hpHd8*"  # colour and markers of what a legend says of no learner alone
_FILLS: tuple[FillStyleType, ...] = ("full", "none", "left", "bottom")
NUM_LOOKS = len(_DASHES)
_P = ParamSpec("_P")
_HALO = patheffects.withStroke(linewidth=2, foreground="white")  # keeps text on lines readable
MARKER, RING = 3.5, 42  # size of a point, in points, and of a ring around it, in square points
_SMALL = 6.3  # size of a label at a point, in points
_NEAR = 5  # points between a point and its label
# (right, up, distance in points): where a label is tried, in this order.
_PLACES = [(right, up, far) for far in (_NEAR, 12, 20, 30)
           for right, up in ((1, 0), (1, 1), (1, -1), (-1, 1), (-1, 0), (-1, -1), (0, 1), (0, -1))]
_APART = np.array([-5, 0, 5, 0])  # pixels between two texts, so that two numbers are not read as one
_MARGIN = np.array([-2, -1, 2, 1])  # pixels between a text and a line
_LETTER = 4.1  # about the width of a letter of 7 points, in points
_FEW_ROWS, _EDGE = 6, 0.05  # a legend of more rows begins this many inches from the edge of the figure
_KEY, _ROW = 0.42, 0.145  # inches: width of an entry of a legend without its name, and height of its rows
_CONTRAST = 4.5  # of text with its background, at least (WCAG 2, 1.4.3)


def styled(make: Callable[_P, Figure]) -> Callable[_P, Figure]:
  """Decorates a function that makes a figure, which then has the fonts and lines of all figures."""
  @functools.wraps(make)
  def made(*args: _P.args, **kwargs: _P.kwargs) -> Figure:
    with matplotlib.rc_context(RC):
      figure = make(*args, **kwargs)
    for axes in figure.axes:
      axes.tick_params(labelsize=RC["font.size"])  # else ticks that are made later have the size of that time
    return figure
  return made


def style(learner: str) -> tuple[str, str]:
  """(colour, marker) of a learner."""
  return (STYLES | TASK_STYLES).get(learner, _OTHERS[zlib.crc32(learner.encode()) % len(_OTHERS)])


def in_order(learners: Iterable[str]) -> list[str]:
  """Learners in the order in which figures show them: that of their styles, then by name."""
  order = {name: i for i, name in enumerate(STYLES | TASK_STYLES)}
  return sorted(learners, key=lambda name: (order.get(name, len(order)), name))


def figure(height: float, handles: Sequence[Line2D] = (), width: float = WIDTH, left: float = LEFT,
           right: float = RIGHT, above: float = 0, wspace: float = 0.1, hspace: float = 0.28) -> Figure:
  """An empty figure with a legend above the panels; the margins in inches are the same at every size.

  Args:
    height: of the figure without the legend, in inches.
    handles: of the legend, with their labels.
    width: of the figure in inches.
    left, right: margins in inches.
    above: inches of the height for titles of more than one line.
    wspace, hspace: distances between panels, as shares of their mean width and height.
  """
  names = [str(handle.get_label()) for handle in handles]
  columns, start = _columns(names, width - left), left
  if columns and -(-len(names) // columns) > _FEW_ROWS:  # a long legend has the width of the figure
    start = min(left, _EDGE)
    columns = _columns(names, width - start)
  rows = -(-len(names) // columns) if columns else 0
  height += rows * _ROW
  made = Figure(figsize=(width, height))
  FigureCanvasAgg(made)
  made.subplots_adjust(left=left / width, right=1 - right / width, top=1 - (0.22 + above + rows * _ROW) / height,
                       bottom=0.38 / height, wspace=wspace, hspace=hspace)
  if handles:
    made.legend(handles=handles, loc="upper left", bbox_to_anchor=(start / width, 1), ncols=columns, frameon=False,
                borderaxespad=0.2, borderpad=0.2, handletextpad=0.5, columnspacing=1.2, handlelength=2,
                labelspacing=0.4)
  return made


def _columns(names: Sequence[str], width: float) -> int:
  """The most columns of a legend that fit into a width in inches; its columns are filled one after the other."""
  for columns in range(len(names), 1, -1):
    rows, longer = divmod(len(names), columns)
    ends = [*itertools.accumulate([rows + 1] * longer + [rows] * (columns - longer), initial=0)]
    if sum(inches(names[a:b]) + _KEY for a, b in itertools.pairwise(ends)) <= width:
      return columns
  return min(1, len(names))


def x_label(figure: Figure, text: str) -> None:
  """Writes the label that the x axes of all panels share."""
  box = figure.subplotpars
  figure.text((box.left + box.right) / 2, 0.06 / figure.get_figheight(), text, ha="center", va="bottom")


def key(name: str, colour: str, marker: str = "", linestyle: Any = "-") -> Line2D:
  """An entry of a legend."""
  return Line2D([], [], color=colour, marker=marker, linestyle=linestyle, markersize=MARKER,
                linewidth=1, label=name)


def line_key(name: str, learner: str, i: int, marked: bool) -> Line2D:
  """An entry of a legend for the i-th line of a learner: 16 differ in dashes, filling of markers and shade."""
  colour, marker = style(learner)
  made = key(name, shade(colour, i // len(_DASHES)), marker if marked else "", _DASHES[i % len(_DASHES)])
  made.set_fillstyle(_FILLS[i % len(_FILLS)])
  return made


def look_keys(names: Sequence[str], learners: Iterable[str], marked: bool, lines: bool = True) -> list[Line2D]:
  """Entries of a legend for at most NUM_LOOKS looks that lines of several learners have: dashes and fillings.

  They are grey, with a marker that no learner of the figure has.
  """
  taken = {style(learner)[1] for learner in learners}
  marker = next((each for each in _NEUTRAL if each not in taken), _NEUTRAL[0]) if marked else ""
  found = [key(name, _GREY, marker, _DASHES[i] if lines else "") for i, name in enumerate(names)]
  for made, fill in zip(found, _FILLS):
    made.set_fillstyle(fill)
  return found


def shade(colour: str, i: int) -> str:
  """The i-th shade of a colour: itself, a darker one, a lighter one, a very dark one, and again."""
  if not i % 4:
    return colour
  rgb = np.array(matplotlib.colors.to_rgb(colour))
  return matplotlib.colors.to_hex(tuple((rgb, 0.6 * rgb, 0.55 * rgb + 0.45, 0.3 * rgb)[i % 4]))


def learner_keys(learners: Iterable[str]) -> list[Line2D]:
  """Entries of a legend for points of learners, in their order."""
  return [key(learner, *style(learner), "") for learner in in_order(learners)]


def wrapped(text: str, width: float) -> str:
  """A text in lines of at most about this width in inches."""
  return textwrap.fill(text, int(width / inches(["m"])), break_on_hyphens=False)


def inches(names: Iterable[str]) -> float:
  """About the width in inches of the longest name."""
  return max(map(len, names), default=0) * _LETTER / 72


def place_labels(axes: Axes, labels: Sequence[tuple[str, float, float, str]],
                 lines: Iterable[Sequence[tuple[float, float]]] = (), joined: bool = True,
                 sides: Mapping[str, tuple[int, int]] = types.MappingProxyType({})) -> list[str]:
  """Writes (text, x, y, colour) near points so that no text covers another text, a point or a line.

  A line joins a text with its point if it stands apart from it. A text for which there is no room is left out.

  Args:
    axes: with their final limits and scales.
    labels: one for each point of the axes, the most important first; an empty text marks a point without a label.
    lines: the (x, y) of the corners of each line.
    joined: whether a text may stand apart from its point.
    sides: {text: (right, up)}, each -1, 0 or 1: the side of its point where a text is tried first.

  Returns:
    The texts that were left out.
  """
  frame, dots = axes.get_window_extent(), [axes.transData.transform((x, y)) for _, x, y, _ in labels]
  taken = np.array([(x - 5, y - 5, x + 5, y + 5) for x, y in dots])  # boxes [N, 4]: left, bottom, right, top
  texts = np.zeros((0, 4))
  joints = np.zeros((0, 2))  # points on the lines from texts to their points
  joint_style: Any = dict(arrowstyle="-", color="0.6", linewidth=0.6, shrinkA=0, shrinkB=3)
  drawn = np.concatenate([np.zeros((0, 2)), *(_along(axes.transData.transform(line)) for line in lines if len(line))])
  left_out = []
  for (text, x, y, colour), dot in zip(labels, dots):
    size = _size_of(axes, text) if text else np.zeros(2)
    places = sorted(_PLACES, key=lambda place: (place[2], place[:2] != sides.get(text)))
    for across, up, far in [place for place in places if joined or place[2] == _NEAR] if text else []:
      corner = dot + np.array([across, up]) * far * axes.figure.dpi / 72  # of the text, where its line ends
      low = corner - size * (1 - across, 1 - up) / 2
      box = np.concatenate([low, low + size])
      if not (frame.x0 + 4 <= box[0] and box[2] <= frame.x1 - 4 and frame.y0 <= box[1] and box[3] <= frame.y1):
        continue
      joint = np.linspace(dot, corner, 12)[3:-1] if far > _NEAR else np.zeros((0, 2))
      if (_overlap(box, taken) or _overlap(box + _APART, texts) or _holds(box, joints) or _holds(box + _MARGIN, drawn)
          or any(_holds(other, joint) for other in texts)):
        continue
      texts, joints = np.concatenate([texts, box[None]]), np.concatenate([joints, joint])
      axes.annotate(
          text, (x, y), xytext=(across * far, up * far), textcoords="offset points", fontsize=_SMALL, color=ink(colour),
          ha=("right", "center", "left")[across + 1], va=("top", "center", "bottom")[up + 1], zorder=5,
          path_effects=[_HALO],
          arrowprops=dict(joint_style, relpos=((1 - across) / 2, (1 - up) / 2)) if far > _NEAR else None)
      break
    else:
      left_out += [text] if text else []
  return left_out


def _size_of(axes: Axes, text: str) -> np.ndarray:
  """Width and height [2] of a small text, in pixels."""
  canvas: Any = axes.figure.canvas
  shown = axes.text(0, 0, text, fontsize=_SMALL)
  box = shown.get_window_extent(canvas.get_renderer())
  shown.remove()
  return np.array([box.width, box.height])


def _overlap(box: np.ndarray, others: np.ndarray) -> bool:
  """Whether a box [4] overlaps or touches one of others [N, 4]."""
  return bool(((box[:2] <= others[:, 2:]) & (others[:, :2] <= box[2:])).all(1).any())


def _holds(box: np.ndarray, points: np.ndarray) -> bool:
  """Whether one of points [N, 2] is inside of a box [4]."""
  return bool(((box[:2] < points) & (points < box[2:])).all(1).any())


def _along(corners: np.ndarray) -> np.ndarray:
  """Points [N, 2], 2 apart, on the line that joins corners [C, 2]."""
  parts = [np.linspace(a, b, max(2, int(np.hypot(*(b - a)) / 2))) for a, b in itertools.pairwise(corners)]
  return np.concatenate([corners[:1], *parts])


@functools.cache
def ink(colour: str) -> str:
  """A colour, darkened until text in it is readable on white."""
  rgb = np.array(matplotlib.colors.to_rgb(colour))
  while contrast(rgb) < _CONTRAST:
    rgb = rgb * 0.97
  return matplotlib.colors.to_hex(tuple(rgb))


def contrast(rgb: np.ndarray) -> float:
  """Contrast of a colour [3], each from 0 to 1, with white (WCAG 2)."""
  light = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4) @ (0.2126, 0.7152, 0.0722)
  return float(1.05 / (light + 0.05))
