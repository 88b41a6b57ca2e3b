"""Figures of a study: those of the paper, and what compute buys."""
import collections
import itertools
import math
from collections.abc import Collection, Iterable, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.cm import ScalarMappable
from matplotlib.colors import LinearSegmentedColormap, Normalize
from matplotlib.lines import Line2D

from alma_jax.errors import BadInput
from alma_jax.reports import drawing, studies, trade_offs
from alma_jax.reports.drawing import Grid, Line, Panel, Plot
from alma_jax.reports.read import COMP, LEARNER, MEM, REGRET, REPLAY, SEED, TOTAL, WAITING
from alma_jax.reports.studies import Study, order, plain, short

MOST = 5  # panels in a row or a column
_COSTS = {COMP: "cumulative compute (multiply-adds)", MEM: "cumulative parameters"}  # names of axes
_EXPERTS = "last_experts"  # a column: the experts of all members at the end of the stream
_GROW = "learner.grow_every"
_FILLED = 0.75  # the least share of panels with runs in a grid of waiting times and factors
_MOST_LINES = 10  # in a panel, if factors of the study can have panels of their own
_LEAST_WAITS = 3  # waiting times of a panel against waiting time
_FAR = 1.5  # scores this many times as high as those of the learners that grow are not shown beside them
_CELLS, _MAPS = 64, 3  # weights of old mega-batches: rows of a map, and its maps, at most
_WEIGHTS = LinearSegmentedColormap.from_list("weights", ["#F0B27A", "#C9CDD6", "#0072B2"])  # left out ... replayed
_SIZES = {"model.width": ("width", "widths"), "model.num_experts": ("number of experts", "numbers of experts")}
_BAND = "mean over seeds, with a band from the lowest to the highest value."
_OVER_THE_STREAM = f"over the stream: {_BAND} A dot is the last value. As in the paper's Figures 1, 3 and 9."
_DEVIATIONS = "mean ± standard deviation over seeds"

TITLES = {  # of the figures, in the order of reports
    "pareto": "What compute and memory buy", "stream": "Over the stream", "regret": "Regret over the stream",
    "memory": "What the memory replays",
    "waiting": "How long to wait", "growth": "When to grow", "replay": "What replay costs and brings",
    "experts": "How many experts",
    "compute": "By waiting time, against compute", "parameters": "By waiting time, against memory",
    "stream-compute": "At every moment, against the compute spent"}

Place = tuple[Any, ...]  # the values of the fields that tell panels apart; NaN where no run has one


def plots(study: Study, waits: Collection[float] = ()) -> dict[str, Plot]:
  """Every figure that the study has the runs for, by name; `waits`: the waiting times that they show, see `_waits`."""
  every = {
      "stream": _curves(study, "t", waits),
      "regret": _regret(study, waits),
      "memory": _memory(study),
      "stream-compute": _curves(study, COMP, waits),
      "waiting": _waiting(study),
      "compute": _against(study, COMP, waits),
      "parameters": _against(study, MEM, waits),
      "experts": _against(_with_experts(study), _EXPERTS, waits) if study.scoring.counts_experts else None,
      "pareto": _pareto(study),
      "growth": _growth(study, waits),
      "replay": _replay(study, waits)}
  return {name: plot for name in TITLES if (plot := every[name])}


def check(waits: Collection[float], all_studies: Iterable[Study]) -> None:
  """Raises BadInput if a waiting time is in none of some studies, or if they are too many for a figure."""
  there = sorted({wait for study in all_studies if not study.tasks for wait in study.runs[WAITING].dropna()})
  for wait in waits:
    if wait not in there:
      others = f"those of the runs are {', '.join(map(plain, there))}" if there else "no run has one"
      raise BadInput(f"--waiting_times: no run has the waiting time {plain(wait)}; {others}.")
  if len(set(waits)) > MOST:
    raise BadInput(f"--waiting_times names {len(set(waits))} panels in a row; name at most {MOST}.")


# --------------------------------------------------------------------------------------------------------- figures

def _curves(study: Study, x: str, waits: Collection[float]) -> Plot | None:
  """Error or perplexity against mega-batches, or against the compute that was spent before.

  The columns are waiting times; runs whose schedule has none are in all columns. The rows are the values of the factors
  with panels of their own. If many of these panels had no runs, they are left out, and the others stand one after the
  other. Other factors, for example the number of members, give lines of their own in the learner's colour.
  """
  if not (study.stream[COMP] > 0).any() if x == COMP else study.stream.empty:
    return None
  shared, own = _split_factors(study)
  columns, (rows, num_rows) = _waits(study, waits), _rows(study, shared)
  stream = study.stream.merge(study.runs[["run", LEARNER, WAITING, *shared, *own]], on="run", suffixes=("", "_"))
  places = [(wait, *row) for row, wait in itertools.product(rows, columns)]
  tables, across = _divided(stream, [WAITING, *shared], places), len(columns)
  filled = {place: table for place, table in tables.items() if len(table)}
  if len(filled) < _FILLED * len(tables):
    tables, across = filled, _across(len(filled))
  keys, lines = _lines(study, tables.values(), own, marked=False)
  panels = []
  for (place, table), parts in zip(tables.items(), lines):
    curves = [(key, mean_curve(part, x, study.scoring.metric)) for key, part in parts]
    form: Any = "middle" if x == "t" else "after"
    panels.append(Panel(
        _title([WAITING, *shared], place, table, across),
        [_banded(key, curve, form) for key, curve in curves if len(curve)],
        x="mega-batches seen" if x == "t" else "multiply-adds spent", y=study.scoring.label))
  caption = (_OVER_THE_STREAM if x == "t" else
             f"at every moment, against the multiply-adds spent until then: {_BAND}")
  fields = f"{'combinations' if len(shared) > 1 else 'values'} of {', '.join(map(short, shared))}"
  return Plot(f"{study.scoring.label.capitalize()} {caption}{_left_out(study, columns, (len(rows), num_rows, fields))}",
              panels, keys, across, log=(x == COMP, True))


def _regret(study: Study, waits: Collection[float]) -> Plot | None:
  """The regret over the stream, in panels as those of `_curves`."""
  if REGRET not in study.stream:
    return None
  scoring = study.scoring._replace(metric=REGRET, label=REGRET)
  curves = _curves(study._replace(scoring=scoring, stream=study.stream.dropna(subset=[REGRET])), "t", waits)
  return curves and curves._replace(log=(False, False), caption=curves.caption.replace(
      f" {_OVER_THE_STREAM}", ": the errors so far, minus the errors of a learner that trains from scratch on all "
      f"data after every mega-batch, summed: {_BAND} A dot is the last value."))


def mean_curve(stream: pd.DataFrame, x: str, metric: str) -> pd.DataFrame:
  """Mean, lowest and highest value over runs as a function of x.

  Args:
    stream: rows of the runs' streams.
    x: "t", or COMP: then the value of a run is a step function of its compute. It begins when all runs were trained;
      the last value of a run counts from its end on.
    metric: error or perplexity.

  Returns:
    DataFrame with the index x and the columns mean, min, max.
  """
  stream = stream.dropna(subset=[metric])
  if x == COMP:
    stream = stream[stream[COMP] > 0]
  values = stream.groupby([x, "run"])[metric].last().unstack("run")
  if x == COMP:
    values = values.ffill().dropna()
  return pd.DataFrame({"mean": values.mean(axis=1), "min": values.min(axis=1), "max": values.max(axis=1)})


def _memory(study: Study) -> Plot | None:
  """The prequential error of each kind of run, and below it what the memories replayed, by the weights in their lines.

  Of each kind the lowest seed is shown. Kinds without weights are left out if there are many.
  """
  metric, fields = f"prequential_{study.scoring.metric}", list(study.factors)
  rows = study.runs.sort_values(SEED, kind="stable").drop_duplicates([LEARNER, *fields])
  rows = rows if len(rows) <= _MOST_LINES else rows[rows["run"].isin(study.replayed)]
  if not rows["run"].isin(study.replayed).any() or metric not in study.stream:
    return None
  keys, (kinds,) = _lines(study, [rows], fields, marked=False)
  curves = [(key, mean_curve(study.stream[study.stream["run"].isin(kind["run"])], "t", metric)) for key, kind in kinds]
  maps = {key: study.replayed[kind["run"].iloc[0]] for key, kind in kinds if kind["run"].iloc[0] in study.replayed}
  total = max(map(len, maps.values()))
  step = -(-total // _CELLS)
  names = [str(t) for t in range(step, total + step, step)]
  colours, panels = ScalarMappable(Normalize(0, 1), _WEIGHTS), []
  for key, replayed in itertools.islice(maps.items(), _MAPS):
    cells = weight_cells(replayed, step)[::-1]
    panels.append(Panel(f"what {key.get_label()} replays", grid=Grid(
        names[::-1], names, np.where(np.isnan(cells)[..., None], 1, colours.to_rgba(cells)),
        tips=[[f"weight: {value:.2g}" for value in row] for row in cells]), x="mega-batch", y="old mega-batch"))
  return Plot("".join([
      f"After a change the {metric.replace('_', ' ')} rises, and old mega-batches that contradict the new ones turn "
      "from blue (replayed) to orange (left out), until later data agree with them again.",
      f" A cell stands for {step} mega-batches." if step > 1 else "",
      " Of each kind of run the lowest seed is shown." if study.runs[SEED].nunique() > 1 else "",
      _shows(len(panels), len(maps), "kinds of runs with weights"), _without_diverged(study)]),
      [Panel("", [_banded(key, curve, "middle") for key, curve in curves if len(curve)], x="mega-batch",
             y=metric.replace("_", " "), limits=(0.5, len(names) * step + 0.5)), *panels], keys,
      log=(False, False), shared="none", bar=(colours, "weight"))


def weight_cells(replayed: Sequence[Sequence[float]], step: int) -> np.ndarray:
  """Float [N, N]: row i, column j: the mean weight of the i-th `step` old mega-batches after the j-th `step` ones.

  Args:
    replayed: for each mega-batch, the weights of the old ones; empty: those of the training before.
    step: mega-batches of a cell.

  Returns:
    The cells; NaN where a mega-batch is not old yet.
  """
  num = -(-len(replayed) // step)
  cells = np.full((num, num), np.nan)
  for column in range(num):
    weights = next(filter(None, reversed(replayed[:(column + 1) * step])), ())
    means = [np.mean(weights[i:i + step]) for i in range(0, len(weights), step)]
    cells[:len(means), column] = means
  return cells


def _against(study: Study, column: str, waits: Collection[float]) -> Plot | None:
  """The score against a cost, or against _EXPERTS, with a panel for every waiting time."""
  if column != _EXPERTS and not _varies(study, column):
    return None
  columns, size = _waits(study, waits), studies.size_field(study)
  table = _means(study, study.scoring.score, column)
  tables = _divided(table, [WAITING], [(wait,) for wait in columns])
  keys, lines = _lines(study, tables.values(), [field for field in study.factors if field not in (WAITING, size)])
  across, panels = _across(len(columns)), []
  for (place, part), of_panel in zip(tables.items(), lines):
    # The average perplexities of other waiting times are over other mega-batches.
    rivals = part if study.scoring.averages else table
    numbered = size if column != _EXPERTS else None
    panels.append(Panel(
        _title([WAITING], place, part, across), _points(of_panel, column, study.scoring.score, numbered),
        trade_offs.front(rivals[column], rivals[study.scoring.score]),
        x=_COSTS.get(column, "experts of all members at the end"), y=study.scoring.score_name))
  joins = ""
  if size and _varies(study, column, LEARNER, *(field for field in study.factors if field != size)):
    joins = " A line joins the sizes of a learner" + (
        "." if column == _EXPERTS else f" (numbers at one of the lines, where there is room: {short(size)}).")
  what = _COSTS.get(column, "the experts of all members at the end of the stream")
  rivals_of = " with the same waiting time" if study.scoring.averages else ""
  return Plot(
      f"{_score_title(study)} against {what}: {_DEVIATIONS}.{joins} Rings and the dotted line show the Pareto front of "
      f"all runs{rivals_of}. As in the paper's {study.scoring.source}.{_left_out(study, columns)}",
      panels, keys, across, log=(column != _EXPERTS, True))


def _waiting(study: Study) -> Plot | None:
  """The score against the waiting time, with a panel for each size of networks with at least three waiting times.

  Runs with replay are left out, and those in which a switch is on that another run of the learner has off. There is
  none if the score is a mean over the trainings, which are after other mega-batches at other waiting times.
  """
  size, waiting = studies.size_field(study), studies.without_replay(study).runs.dropna(subset=[WAITING])
  runs = waiting
  for field, (_, part) in itertools.product(study.factors, waiting.groupby(LEARNER)):
    if part[field].nunique() > 1 and studies.is_switch(part[field]):
      runs = runs.drop(part.index[part[field].astype(bool)], errors="ignore")
  groups = runs.groupby(size) if size else [(None, runs)]
  every = sorted((value for value, part in groups if part[WAITING].nunique() >= _LEAST_WAITS), key=order)
  shown = _some(every)
  if study.scoring.averages or not shown:
    return None
  table = studies.means(study._replace(runs=runs), study.scoring.score)
  tables = _divided(table, [size], [(value,) for value in shown]) if size else {(): table}
  keys, lines = _lines(study, tables.values(), [f for f in study.factors if f not in (WAITING, size)])
  across = _across(len(shown))
  panels = [Panel(_title([size], place, part, across) if size else "",
                  _points(of_panel, WAITING, study.scoring.score), x="waiting time w (mega-batches)",
                  y=study.scoring.score_name)
            for (place, part), of_panel in zip(tables.items(), lines)]
  which = f": those with at least {_LEAST_WAITS} waiting times" if len(shown) == len(every) else ""
  return Plot("".join([
      f"{_score_title(study)} against the waiting time w: {_DEVIATIONS}. This is the question of the paper's Figure 3.",
      " Runs with replay are not shown." if REPLAY in study.factors else "",
      " Runs with a switch on that other runs of the learner have off are not shown."
      if len(runs) < len(waiting) else "",
      " Runs of other schedules, which have no waiting time, are not shown."
      if study.runs[WAITING].isna().any() else "",
      _shows(len(shown), study.runs[size].nunique(), f"values of {short(size)}{which}") if size else "",
      _without_diverged(study)]), panels, keys, across)


def _pareto(study: Study) -> Plot | None:
  """The overall score against compute and against memory, with all kinds of runs.

  Names are written at the points on the front, where there is room.
  """
  table, score = trade_offs.points(study), study.scoring.overall
  if len(table) < 2:
    return None
  table["label"] = studies.brief_labels(table, study.factors)
  keys = {learner: drawing.key(learner, learner, joined=False) for learner in drawing.in_order(table[LEARNER].unique())}
  panels = []
  for cost, column in trade_offs.FRONTS.items():
    texts = table["label"].where(table[column], "")
    lines = [line_of(keys[learner], part, cost, score, texts[part.index]) for learner, part in table.groupby(LEARNER)]
    panels.append(Panel("", lines, trade_offs.front(table[cost], table[score]), x=_COSTS[cost],
                        y=study.scoring.overall_name))
  return Plot(
      f"{study.scoring.overall_name[0].upper()}{study.scoring.overall_name[1:]} against compute and against memory, of "
      f"all kinds of runs: {_DEVIATIONS}. Rings and the line show the Pareto front: no other kind is better in both. A "
      "name gives the learner and the fields in which its kinds differ; the names of the other kinds, and of those "
      f"without room, are in pareto.csv.{_without_diverged(study)}",
      panels, [*keys.values()] if len(keys) > 1 else [], 2, (drawing.WIDTH / 2, 3), shared="y")


def _growth(study: Study, waits: Collection[float]) -> Plot | None:
  """The score against compute, of learners that grow at several intervals and of the other learners.

  There is a panel for each waiting time and first size at which a learner that is otherwise the same grows at several
  intervals, with axes of its own. A line of such a learner joins its intervals, one of another learner its sizes. Runs
  with replay are left out, because their compute grows with the stream, and so are learners without intervals that have
  much higher scores.
  """
  if _GROW not in study.factors:
    return None
  size, score = studies.size_field(study), study.scoring.score
  by = [WAITING, *([size] if size else [])]
  table = _means(studies.without_replay(study), score, COMP)
  own = [field for field in study.factors if field not in (*by, _GROW)]
  every = _places(table, by, [LEARNER, *own], _GROW)
  shown = _shown(every, waits)
  tables = {}
  for place in shown:
    part = table[_is_at(table, by[:1], place[:1])]
    grows = part[_GROW].notna()
    part = part[~grows | _is_at(part, by, place)]
    tables[place] = part[part[_GROW].notna() | (part[score] <= _FAR * part.loc[part[_GROW].notna(), score].max())]
  if not tables:
    return None
  keys, lines = _lines(study, tables.values(), own)
  across, panels = 1 if len(shown) < 3 else _across(len(shown)), []
  for (place, part), of_panel in zip(tables.items(), lines):
    grown = [(key, rows.sort_values(COMP)) for key, rows in of_panel if rows[_GROW].notna().all()]
    points = [line_of(key, rows, COMP, score, [f"every {plain(every)}" if every == rows[_GROW].min() else ""
                                               for every in rows[_GROW]]) for key, rows in grown]
    others = [(key, rows) for key, rows in of_panel if rows[_GROW].isna().any()]
    panels.append(Panel(_title(by, place, part, across), [*_points(others, COMP, score, size), *points], x=_COSTS[COMP],
                        y=study.scoring.score_name))
  one, several = _SIZES[size] if size else ("", "")
  return Plot("".join([
      f"{_score_title(study)} against cumulative compute: {_DEVIATIONS}. A line joins the growth intervals of a learner"
      f"{f' from the {one} in the title' if size else ''}; its shortest one is named (“every 2”: before every second "
      "stage).",
      f" Learners without an interval are shown in all {several} (numbers) whose {study.scoring.score_name} is near "
      "theirs, or lower." if size else " Points are learners without an interval.",
      " Runs with replay are not shown." if REPLAY in study.factors else "",
      _shows(len(shown), len(every), f"pairs of waiting time and {one}" if size else "waiting times"),
      _without_diverged(study)]), panels, keys, across, shared="none")


def _replay(study: Study, waits: Collection[float]) -> Plot | None:
  """An arrow for each kind of run, from its score and compute without replay to those with its most replay.

  There is a panel for each waiting time and size with such kinds. Dashes tell the other kinds of a learner apart.
  """
  if REPLAY not in study.factors:
    return None
  size, score = studies.size_field(study), study.scoring.score
  by = [WAITING, *([size] if size else [])]
  own = [field for field in study.factors if field not in (*by, REPLAY)]
  table = _means(study, score, COMP).sort_values(REPLAY)
  groups = [rows for _, rows in table.groupby([LEARNER, *by, *own], dropna=False, sort=False)]
  pairs = [rows.iloc[[0, -1]] for rows in groups if len(rows) > 1 and rows[REPLAY].iloc[0] == 0]
  if not pairs:
    return None
  table = pd.concat(pairs)
  every = sorted({tuple(row) for row in table[by].itertuples(index=False)}, key=lambda place: [*map(order, place)])
  shown = _shown(every, waits)
  tables = {place: table[_is_at(table, by, place)] for place in shown}
  keys, lines = _lines(study, tables.values(), own)
  titled = by[:1] if size and len({place[1] for place in shown}) == 1 else by
  across = _across(len(shown))
  panels = [Panel(_title(titled, place, part, across),
                  [line_of(key, rows, COMP, score, form="arrow") for key, rows in of_panel], x=_COSTS[COMP],
                  y=study.scoring.score_name)
            for (place, part), of_panel in zip(tables.items(), lines)]
  rows = " Each row of panels has a y axis of its own." if len(shown) > across else ""
  what = f"pairs of waiting time and {short(size)}" if size else "waiting times"
  return Plot(
      f"{_score_title(study)} against compute: an arrow leads from a learner without replay (filled marker) to the "
      f"same learner with the most replay (open marker, stream.replay up to {study.runs[REPLAY].max():g}). Means over "
      f"seeds.{rows} As in the paper's Figures 4 and 8.{_shows(len(shown), len(every), what)}"
      f"{_without_diverged(study)}", panels, keys, across, shared="row")


# ----------------------------------------------------------------------------------------------------------- lines

def _lines(study: Study, tables: Iterable[pd.DataFrame], fields: Sequence[str],
           marked: bool = True) -> tuple[list[Line2D], list[list[tuple[Line2D, pd.DataFrame]]]]:
  """(entries of the legend, for each panel the rows of its lines with their entries).

  There is a line for every learner, and for every value of the fields that vary for it within a panel. It looks the
  same in every panel.

  Args:
    study: Study.
    tables: the rows of each panel.
    fields: those that have no panels of their own.
    marked: whether lines have the markers of the learners.
  """
  tables = list(tables)
  every, keys = pd.concat(tables), dict[studies.Key, Line2D]()
  varying: dict[str, list[str]] = {}
  looks = collections.Counter[tuple[str, str]]()  # so far; learners of other packages may share theirs
  learners = drawing.in_order(every[LEARNER].unique())
  for learner in learners:
    parts = [table[table[LEARNER] == learner] for table in tables]
    varying[learner] = [f for f in fields if any(part[f].nunique(dropna=False) > 1 for part in parts)]
    rows = every[every[LEARNER] == learner].drop_duplicates([LEARNER, *varying[learner]])
    if varying[learner]:
      rows = rows.sort_values(varying[learner], key=lambda column: column.map(dict(zip(
          sorted(column.unique(), key=order), range(len(column))))))
    named = zip(studies.brief_labels(rows.reset_index(), varying[learner]), rows.iloc)
    for name, row in sorted(named, key=lambda item: "," in item[0]):  # first one without fields
      keys[studies.key(row, varying[learner])] = drawing.key(name, learner, looks[drawing.style(learner)], marked)
      looks[drawing.style(learner)] += 1
  return [*keys.values()], [
      [(keys[studies.key(rows.iloc[0], varying[learner])], rows) for learner in learners
       for _, rows in table[table[LEARNER] == learner].groupby([LEARNER, *varying[learner]], dropna=False, sort=False)]
      for table in tables]


def line_of(key: Line2D, rows: pd.DataFrame, x: str, y: str, texts: Iterable[str] = (), form: Any = "points") -> Line:
  """The line through rows of studies.means, with their deviations."""
  deviation = rows[f"{y}_sd"].fillna(0).to_numpy()
  values = rows[y].to_numpy()
  fields = [column for column in rows if studies.identifies(column) and column != LEARNER]
  return Line(key, rows[x].to_numpy(), values, values - deviation, values + deviation, form, [*texts],
              names=[studies.label(row, fields) for _, row in rows.iterrows()])


def _banded(key: Line2D, curve: pd.DataFrame, form: Any) -> Line:
  """The line of a mean_curve."""
  return Line(key, curve.index.to_numpy(), curve["mean"].to_numpy(), curve["min"].to_numpy(), curve["max"].to_numpy(),
              form)


def _points(lines: Iterable[tuple[Line2D, pd.DataFrame]], x: str, y: str, size: str | None = None) -> list[Line]:
  """Lines by ascending x; sizes of networks are written at the first line that has them."""
  points, said = [], set[tuple[str, ...]]()
  for key, rows in lines:
    rows = rows.sort_values(x)
    texts = tuple(map(plain, rows[size])) if size and rows[x].max() > 1.01 * rows[x].min() else ()
    points.append(line_of(key, rows, x, y, () if tuple(sorted(texts)) in said else texts))
    said.add(tuple(sorted(texts)))
  return points


def _means(study: Study, *columns: str) -> pd.DataFrame:
  """studies.means with the waiting time in every row, also if it does not vary."""
  return studies.means(study._replace(factors=tuple(dict.fromkeys((*study.factors, WAITING)))), *columns)


def _with_experts(study: Study) -> Study:
  """The study with the column _EXPERTS."""
  totals = [studies.experts(row)[1].total for _, row in study.runs.iterrows()]
  return study._replace(runs=study.runs.assign(**{_EXPERTS: totals}))


def _varies(study: Study, column: str, *by: str) -> bool:
  """Whether kinds of runs, or those with one value of each of `by`, differ by more than 1 % in a cost."""
  table = _means(study, column)
  costs = table.groupby([*by], dropna=False)[column] if by else [("", table[column])]
  return any(part.max() > 1.01 * part.min() for _, part in costs)


# ---------------------------------------------------------------------------------------------------------- panels

def _split_factors(study: Study) -> tuple[list[str], list[str]]:
  """(factors whose values have panels of their own, others), without the waiting time.

  The first ones are those that vary for several learners. Further ones join them if a panel had too many lines.
  """
  others = [f for f in study.factors if f != WAITING]
  complete = [f for f in others if study.runs[f].notna().all()]
  shared = [f for f in complete if (study.runs.groupby(LEARNER)[f].nunique() > 1).sum() > 1]
  for field in complete:
    kinds = study.runs[[LEARNER, WAITING, *others]].drop_duplicates()
    if len(shared) == len(others) or kinds.groupby([WAITING, *shared], dropna=False).size().max() <= _MOST_LINES:
      break
    shared += [field] if field not in shared else []
  return shared, [f for f in others if f not in shared]


def _waits(study: Study, chosen: Collection[float]) -> list[Any]:
  """The waiting times that figures show, ascending; [NaN] if no run has one.

  Args:
    study: Study.
    chosen: those that the study has runs of are shown; empty: all, or as many as fit. Those that do not fit are first
      the whole stream, because its only training ends it.
  """
  values = sorted(study.runs[WAITING].dropna().unique()) or [math.nan]
  if any(value in chosen for value in values):
    return [value for value in values if value in chosen]
  if len(values) > MOST:
    values = [value for value in values if value < study.runs[TOTAL].max()]
  return _some(values)


def _rows(study: Study, shared: list[str]) -> tuple[list[Place], int]:
  """(values of the factors with panels of their own, for each row of panels that is shown; number of all rows).

  If there are more than fit, those of a single learner are left out first: they compare nothing.
  """
  learners = collections.defaultdict[Place, set[str]](set)
  for *values, learner in study.runs[[*shared, LEARNER]].itertuples(index=False):
    learners[tuple(values)].add(learner)
  every = sorted(learners, key=lambda values: [*map(order, values)])
  compared = [values for values in every if len(learners[values]) > 1]
  return _some(compared if compared and len(every) > MOST else every), len(every)


def _places(table: pd.DataFrame, by: list[str], others: list[str], field: str) -> list[Place]:
  """The values of the fields `by` at which kinds that are otherwise the same have several values of a field."""
  places = {place[:len(by)] for place, part in table.groupby([*by, *others], dropna=False) if part[field].nunique() > 1}
  places = {place for place in places if not pd.isna(place[0])} or places  # runs without a wait are in all panels
  return sorted(places, key=lambda place: [*map(order, place)])


def _shown(places: list[Place], waits: Collection[float]) -> list[Place]:
  """The places that have panels: those of some waiting times, or all if there are none of these; as many as fit."""
  return _some([place for place in places if place[0] in waits] or places)


def _some(values: list[Any]) -> list[Any]:
  """All values, or as many as fit, at equal distances."""
  most = min(len(values), MOST)
  return [values[round(i * (len(values) - 1) / max(most - 1, 1))] for i in range(most)]


def _divided(table: pd.DataFrame, by: list[str], places: Iterable[Place]) -> dict[Place, pd.DataFrame]:
  """{place: rows of its panel}."""
  return {place: table[_is_at(table, by, place)] for place in places}


def _is_at(table: pd.DataFrame, by: list[str], place: Place) -> Any:
  """Which rows are in the panel of a place; those without a value are in every panel."""
  inside = pd.Series(True, table.index)
  for field, value in zip(by, place):
    inside &= (table[field] == value) | table[field].isna()
  return inside


def _across(num: int) -> int:
  """The number of panels in a row of a figure of `num` panels."""
  return 2 if num == 4 else min(num, 3)


def _title(fields: list[str], place: Place, table: pd.DataFrame, across: int) -> str:
  """E.g. "w = 1, width = 4", in lines that are not wider than a panel; a line ends between two parts."""
  parts = [f"{short(field)} = {plain(value)}" + (", other schedules" if field == WAITING and table[field].isna().any()
                                               else "") for field, value in zip(fields, place) if not pd.isna(value)]
  room = ((drawing.COLUMN if across < 3 else drawing.WIDTH) - 0.6) / across
  return drawing.wrapped(", ".join(part.replace(" ", "\xa0") for part in parts), room).replace("\xa0", " ")


# -------------------------------------------------------------------------------------------------------- captions

def _score_title(study: Study) -> str:
  return study.scoring.score_name[0].upper() + study.scoring.score_name[1:]


def _shows(shown: int, num: int, what: str) -> str:
  return f" The figure shows {shown} of {num} {what}." if shown < num else ""


def _without_diverged(study: Study) -> str:
  """A sentence about runs that diverged, or ""."""
  num = len(study.diverged)
  return f" {num} run{'s' if num > 1 else ''} that diverged {'are' if num > 1 else 'is'} not shown." if num else ""


def _left_out(study: Study, columns: list[Any], rows: tuple[int, int, str] = (0, 0, "")) -> str:
  """Sentences about panels that are left out and runs that diverged, or ""; `rows`: shown, all, and what they are."""
  waits = study.runs[WAITING]
  shown = [f"{some} of {num} {what}" for some, num, what in ((len(columns), waits.nunique(), "waiting times"), rows)
           if some < num]
  mixed = waits.isna().any() and waits.notna().any()
  return ((" Runs whose schedule has no waiting time are in every panel." if mixed else "")
          + (f" The figure shows {' and '.join(shown)}; the table shows all." if shown else "")
          + _without_diverged(study))
