"""Figures of a study, as in the paper. A learner has one colour and one marker everywhere."""
import itertools
import math

import matplotlib
import numpy as np
from matplotlib import patheffects
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from alma_jax.reports import collect, tables
from alma_jax.reports.collect import LEARNER, WAITING

# Okabe-Ito and relatives, dark enough on white and apart for colour-blind readers; markers tell them apart without.
STYLES = {
    "sm": ("#4D4D4D", "o"), "ens": ("#0072B2", "s"), "umix": ("#56B4E9", "D"), "gens": ("#E69F00", "^"),
    "gmoe": ("#009E73", "v"), "moe": ("#8C6D00", "P"), "ff": ("#D55E00", "X"), "bagging": ("#CC79A7", "<"),
    "boosting": ("#7A3E9D", ">"), "hmoe": ("#7F3B08", "*"),
}
_OTHER = ("#A0522D", "h")
EXPERTS = "experts_in_the_end"
_RC = {"font.size": 10, "axes.spines.top": False, "axes.spines.right": False, "axes.titlesize": 10,
       "svg.hashsalt": "alma_jax"}
_HALO = patheffects.withStroke(linewidth=2, foreground="white")  # of text on lines
_MOST_PANELS = 5  # in a row or a column
_COSTS = {"cumulative_fwd_macs": "cumulative compute (multiply-adds)", "cumulative_params": "cumulative parameters"}


def all_of(study):
  """Every figure that the study has the runs for.

  Returns:
    Dict of name to (caption, matplotlib Figure).
  """
  found = {}
  with matplotlib.rc_context(_RC):
    found["stream"] = (
        f"Test {study.metric} over the stream: the mean, and a band that spans the seeds. As the paper's Figures 1, 3 "
        f"and 9.{_left_out(study)}", over_the_stream(study))
    for column, name in (("cumulative_fwd_macs", "compute"), ("cumulative_params", "parameters")):
      what = "Average perplexity" if study.is_language else "CER"
      size = _size(study)
      joins = f", a line joins the sizes of a learner (numbers: {collect.short(size)})" if size else ""
      found[name] = (
          f"{what} against {_COSTS[column]}: mean and deviation over seeds{joins}; "
          f"ringed and dotted: the Pareto front of all runs{' that wait as long' if study.is_language else ''}. As "
          f"the paper's Figure{' 5' if study.is_language else 's 2 and 7'}.{_left_out(study, rows=False)}",
          against(study, column))
    if study.is_language:
      found["experts"] = ("Average perplexity against the experts of all members at the end of the stream. As the "
                          f"paper's Figure 5.{_left_out(study, rows=False)}", against(study, EXPERTS))
    if _replay_pairs(study):
      most = study.runs["stream.replay"].max()
      found["replay"] = (f"From no replay to replay of {'everything' if most == 1 else f'up to {most:.0%}'}. As the "
                         "paper's Figures 4 and 8.", replay(study))
  return found


def over_the_stream(study):
  """Error or perplexity against mega-batches: columns are waiting times, rows what else all learners differ in.

  What only some learners have (members, growth) makes lines of its own in the learner's colour.
  """
  runs = study.runs
  shared, own = _split_factors(study)
  columns = _levels(runs, WAITING)
  rows = set(map(tuple, runs[shared].itertuples(index=False)))
  rows = sorted(rows, key=lambda row: [(isinstance(value, str), value) for value in row])
  rows = [rows[i] for i in _some(len(rows))]
  figure = _figure(3.1 * len(columns) + 0.7, 2.5 * len(rows) + 0.5)
  grid = figure.subplots(len(rows), len(columns), sharex=True, sharey=True, squeeze=False)
  stream = study.stream.merge(runs[["run", LEARNER, WAITING, *shared, *own]], on="run", suffixes=("", "_"))
  for axes_row, row in zip(grid, rows):
    for axes, wait in zip(axes_row, columns):
      mine = stream[stream[WAITING] == wait]
      for field, value in zip(shared, row):
        mine = mine[mine[field] == value]
      ends = []
      if mine.empty:
        axes.text(0.5, 0.5, "no runs", transform=axes.transAxes, ha="center", color="0.4")
      for name, colour, _, lines in _lines(mine, own):
        table = lines.groupby("t")[study.metric].agg(["mean", "min", "max"]).dropna()
        if table.empty:
          continue
        axes.plot(table.index, table["mean"], color=colour, linewidth=1.4, drawstyle="steps-mid",
                  marker="o" if len(table) == 1 else None)
        axes.fill_between(table.index, table["min"], table["max"], color=colour, alpha=0.2, linewidth=0, step="mid")
        ends.append((name, table.index[-1], table["mean"].iloc[-1], colour))
      fields = [f"{collect.short(field)} = {collect._plain(value)}" for field, value in zip(shared, row)]
      axes.set_title(", ".join([f"w = {wait}", *fields]))
      axes.set_yscale("log")
      axes.xaxis.set_major_locator(MaxNLocator(4, integer=True))
      axes._ends = ends
  for axes in grid[-1]:
    axes.set_xlabel("mega-batches seen")
  for axes in grid[:, 0]:
    axes.set_ylabel(f"test {study.metric}")
  _plain_log(grid.flat)
  for axes in grid.flat:
    label_ends(axes, axes._ends)
  return figure


def against(study, column):
  """What sums a run up against a cost, or the experts held in the end, a panel for every waiting time."""
  judged = study.judged
  if column == EXPERTS:
    held = [experts * members for experts, members in (tables.experts(row)[1] for _, row in study.runs.iterrows())]
    study = study._replace(runs=study.runs.assign(**{EXPERTS: held}))
  table = collect.means(study, judged, column)
  columns, front = _levels(study.runs, WAITING), pareto(table[column], table[judged])
  table[WAITING] = table[WAITING] if WAITING in table else columns[0]
  across = len(columns) if len(columns) < 3 else 2
  down = -(-len(columns) // across)
  figure = _figure(4.8 * across + 0.7, 3.6 * down + 0.3)
  grid = figure.subplots(down, across, sharex=True, sharey=True, squeeze=False)
  for axes in grid.flat[len(columns):]:
    axes.remove()
  panels = list(grid.flat[:len(columns)])
  size = _size(study)
  others = [f for f in study.factors if f not in (WAITING, size)]
  for axes, wait in zip(panels, columns):
    mine, ends, sizes = table[table[WAITING] == wait], [], []
    if study.is_language:  # who waits is judged by fewer and later perplexities
      front = pareto(mine[column], mine[judged])
    axes.step(*zip(*front), where="post", color="0.6", linestyle=":", linewidth=1.2, zorder=1)
    for name, colour, marker, line in _lines(mine, others):
      line = line.sort_values(column)
      axes.errorbar(line[column], line[judged], yerr=line[f"{judged}_sd"].fillna(0), color=colour, marker=marker,
                    markersize=5, linewidth=1.2, capsize=2)
      for _, point in line.iterrows() if size and len(line) > 1 else []:
        sizes.append((collect._plain(point[size]), point[column], point[judged], colour))
      ends.append((name, line[column].iloc[-1], line[judged].iloc[-1], colour))
    on_front = mine[[(x, y) in set(front) for x, y in zip(mine[column], mine[judged])]]
    axes.scatter(on_front[column], on_front[judged], s=110, facecolors="none", edgecolors="0.35", zorder=3)
    axes.set_title(f"w = {wait}")
    if column in _COSTS:
      _cost_axis(axes, table[column])
    axes.set_yscale("log")
    axes.set_xlabel(_COSTS.get(column, "experts of all members in the end"))
    axes.tick_params(labelbottom=True)
    axes._ends, axes._sizes = ends, sizes
  for axes in grid[:, 0]:
    axes.set_ylabel("average perplexity" if study.is_language else "CER")
  _plain_log(panels)
  for axes in panels:
    label_ends(axes, axes._ends, beside=True)
    _label_sizes(axes, axes._sizes)
  return figure


def replay(study):
  """Arrows from no replay to replay of everything, CER against compute."""
  figure = _figure(6.2, 4.2)
  axes = figure.subplots()
  ends = []
  for row, before, after in _replay_pairs(study):
    colour, marker = style(row[LEARNER])
    axes.plot(*before, marker, color=colour, markerfacecolor="white", markersize=6)
    axes.plot(*after, marker, color=colour, markersize=6)
    axes.annotate("", after, before, arrowprops=dict(arrowstyle="->", color=colour, shrinkA=4, shrinkB=4))
    ends.append((collect.label(row, [f for f in study.factors if f != "stream.replay"]), *after, colour))
  axes.set(xlabel=_COSTS["cumulative_fwd_macs"], ylabel=study.judged.replace("_", " ").replace("cer", "CER"))
  _cost_axis(axes, [x for _, before, after in _replay_pairs(study) for x in (before[0], after[0])])
  label_ends(axes, ends, beside=True)
  return figure


def pareto(costs, values):
  """The (cost, value) that no other beats in both, by ascending cost."""
  front, best = [], math.inf
  for cost, value in sorted(zip(costs, values)):
    if value < best:
      front.append((cost, value))
      best = value
  return front


def label_ends(axes, ends, beside=False):
  """Writes names at the right of the axes, at the heights of their last points but apart from each other.

  Args:
    axes: matplotlib Axes whose limits and scales are final.
    ends: list of (name, x, y) or (name, x, y, colour); names alone are learners'.
    beside: right of the points themselves instead.
  """
  apart = 11 / (axes.get_position().height * axes.figure.get_figheight() * 72)  # as a share of the axes' height
  places = [axes.transAxes.inverted().transform(axes.transData.transform(end[1:3])) for end in ends]
  wide = [len(end[0]) * 5 / (axes.get_position().width * axes.figure.get_figwidth() * 72) for end in ends]
  lefts = [place[0] + 0.03 if beside else 1.02 for place in places]
  order = sorted(range(len(ends)), key=lambda i: places[i][1])
  heights = [min(max(place[1], apart / 2), 1 - apart / 2) for place in places]
  rivals = [(i, j) for i, j in itertools.combinations(order, 2)
            if lefts[i] < lefts[j] + wide[j] and lefts[j] < lefts[i] + wide[i]]
  for _ in range(200):  # names push each other away until all have room
    lacks = [(i, j, apart - (heights[j] - heights[i])) for i, j in rivals]
    if max((lack for *_, lack in lacks), default=0) <= 1e-6:
      break
    for i, j, lack in lacks:
      if lack > 0:
        heights[i] = max(heights[i] - lack / 4, apart / 2)
        heights[j] = min(heights[j] + lack / 4, 1 - apart / 2)
  for end, left, height in zip(ends, lefts, heights):
    name, _, _, *colour = end
    axes.text(left, height, name, transform=axes.transAxes, va="center", fontsize=8,
              color=ink(colour[0] if colour else style(name)[0]), zorder=5, path_effects=[_HALO])


def _size(study):
  """The field that a learner's sizes differ in, or None."""
  return next((field for field in ("model.width", "model.num_experts") if field in study.factors), None)


def _label_sizes(axes, sizes):
  """Writes sizes at the lower left of their points, but for those that would stand on another."""
  taken = []
  for size, x, y, colour in sizes:
    place = axes.transData.transform((x, y))
    if all(abs(place - other) @ (1, 0) > 14 or abs(place - other) @ (0, 1) > 12 for other in taken):
      taken.append(place)
      axes.annotate(size, (x, y), xytext=(-4, -3), ha="right", va="top", textcoords="offset points", fontsize=7,
                    color=ink(colour), path_effects=[_HALO])


def ink(colour):
  """A colour as dark as text needs to be on white: at least 4.5 to 1 (WCAG 2, 1.4.3)."""
  rgb = np.array(matplotlib.colors.to_rgb(colour))
  while contrast(rgb) < 4.5:
    rgb = rgb * 0.97
  return matplotlib.colors.to_hex(rgb)


def contrast(rgb):
  """Of a colour (0 to 1) with white (WCAG 2)."""
  light = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4) @ (0.2126, 0.7152, 0.0722)
  return 1.05 / (light + 0.05)


def _replay_pairs(study):
  """(row, (Comp, CER) without replay, the same with the most) of kinds that differ in replay alone."""
  if "stream.replay" not in study.factors:
    return []
  table = collect.means(study, study.judged, "cumulative_fwd_macs")
  others = [f for f in study.factors if f != "stream.replay"]
  pairs = []
  for _, mine in table.groupby([LEARNER, *others], dropna=False, sort=False):
    mine = mine.sort_values("stream.replay")
    if len(mine) > 1 and mine["stream.replay"].iloc[0] == 0:
      ends = [tuple(mine.iloc[i][["cumulative_fwd_macs", study.judged]]) for i in (0, -1)]
      pairs.append((mine.iloc[0], *ends))
  return pairs


def style(learner):
  """(colour, marker) of a learner; those registered by others share one."""
  return STYLES.get(learner, _OTHER)


def _lines(table, own):
  """(name, colour, marker, rows) of every learner and its own factors, in the order of STYLES."""
  found = []
  order = {name: i for i, name in enumerate(STYLES)}
  for learner in sorted(table[LEARNER].unique(), key=lambda name: (order.get(name, len(order)), name)):
    mine = table[table[LEARNER] == learner]
    mine_own = [field for field in own if mine[field].nunique() > 1]
    for _, rows in mine.groupby(mine_own, dropna=False) if mine_own else [(None, mine)]:
      told = "".join(f", {collect.short(field)} {collect._plain(rows[field].iloc[0])}" for field in mine_own)
      found.append((learner + told, *style(learner), rows))
  return found


def _split_factors(study):
  """(factors that every run has, those that only some learners have), without the waiting time."""
  others = [f for f in study.factors if f != WAITING]
  shared = [f for f in others if study.runs[f].notna().all()]
  return shared, [f for f in others if f not in shared]


def _levels(runs, field):
  """Values of a field, ascending."""
  values = sorted(runs[field].dropna().unique())
  return [values[i] for i in _some(len(values))]


def _some(num):
  """Which of `num` panels are shown: all, or as many as fit, evenly spread."""
  return np.unique(np.linspace(0, num - 1, min(num, _MOST_PANELS)).round().astype(int))


def _left_out(study, rows=True):
  """A sentence where there are more panels than are shown, or nothing."""
  shared, _ = _split_factors(study)
  told = []
  for num, what in ((study.runs[WAITING].nunique(), "waiting times"),
                    (len(study.runs[shared].drop_duplicates()) if shared and rows else 1, "kinds of networks")):
    if num > _MOST_PANELS:
      told.append(f"{_MOST_PANELS} of {num} {what}")
  return f" Shown are {' and '.join(told)}; all are in the table." if told else ""


def _plain_log(panels):
  """Few plain numbers on logarithmic axes of values."""
  from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter
  shown = FuncFormatter(lambda value, _: f"{value:g}")
  for axes in panels:
    low, high = axes.get_ylim()
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if high / low < 1000 else (1,)))
    axes.yaxis.set_major_formatter(shown)
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.grid(axis="y", color="0.9", linewidth=0.6)


def _cost_axis(axes, costs):
  """A logarithmic x axis of large numbers, with few labels."""
  from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter
  if min(costs) <= 0:  # of a learner that does not train
    return
  wide = max(costs) / min(costs) >= 10
  axes.set_xscale("log")
  axes.set_xlim(min(costs) / (1.6 if wide else 1.3), max(costs) * (2.2 if wide else 1.35))  # room for names
  axes.xaxis.set_major_locator(LogLocator() if wide else MaxNLocator(3))
  if not wide:
    axes.xaxis.set_major_formatter(FuncFormatter(_large))
  axes.xaxis.set_minor_formatter(NullFormatter())


def _large(value, _):
  """E.g. "1.6e13"."""
  mantissa, power = f"{value:.1e}".split("e")
  return f"{float(mantissa):g}e{int(power)}"


def _figure(width, height):
  figure = Figure(figsize=(width, height))
  FigureCanvasAgg(figure)
  figure.subplots_adjust(left=0.62 / width, right=1 - 0.75 / width, top=1 - 0.35 / height, bottom=0.5 / height,
                         wspace=0.35, hspace=0.28)
  return figure
