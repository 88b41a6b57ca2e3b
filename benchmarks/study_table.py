"""Prints the tables of a study as its page shows them.

    python benchmarks/study_table.py docs/results/mnist_authors
    python benchmarks/study_table.py docs/results/text

The argument is the folder of a study of benchmarks/claims.py. The numbers are means ± sample standard deviations over
seeds. Of a study that is not complete the kinds of runs are shown that have all seeds.

An image study whose runs differ only in learner, waiting time and replay gets one table of mean CERs: a row for each
learner without and with replay, a column for each waiting time. Any other gets a table of the lowest mean CERs: a row
for each learner, a column for each width. Further fields are named where they tell kinds of the same learner, width and
waiting time apart. If learners grow at several intervals at one waiting time, a second table has the costs of the runs
at this waiting time without replay. The first table then leaves out the cells whose runs are all in the second. Of
texts there are three tables of perplexities: of learners that do not wait, after each mega-batch; after the last
mega-batch; and Table 1 of the report.
"""
import collections
import math
import pathlib
import statistics
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import claims
import numpy as np
import pandas as pd
import study_figures
from claim_list import STUDIES
from study_runs import (
  COMP,
  EXPERTS,
  FACTORS,
  GROW,
  LEARNER,
  MEM,
  MEMBERS,
  REPLAY,
  SCRATCH,
  STEPS,
  WAIT,
  WIDTH,
  Runs,
)

from alma_jax import commands
from alma_jax.errors import BadInput
from alma_jax.reports import drawing, studies, tables
from alma_jax.reports.studies import Study, plain


def main() -> None:
  parser = commands.Parser("benchmarks/study_table.py", __doc__)
  parser.add_argument("study", type=pathlib.Path, help="folder of the study")
  study = parser.parse_args().study
  print(*all_of(study), f"The study has {' and '.join(cost(study))}.", sep="\n\n")


def all_of(folder: pathlib.Path) -> list[str]:
  """The tables of a study in Markdown.

  Raises:
    BadInput: the folder is not that of a study.
  """
  study = STUDIES.get(folder.name)
  runs = claims.read(folder, study.only) if study else None
  if runs is None:
    raise BadInput(f"{folder} is not the folder of a study with runs; the studies are {', '.join(STUDIES)}.")
  if runs.score == "cer":
    named = collections.Counter((kind[LEARNER], kind[REPLAY], kind[WAIT]) for kind, _ in runs.kinds())
    return [by_wait(runs)] if max(named.values()) == 1 else [*by_width(runs), *costs(runs)]
  texts = study_figures.study_of(folder)
  return [over_the_stream(texts), after_the_last(texts), str(tables.iid(texts)), gates(folder)]


def cost(folder: pathlib.Path) -> tuple[str, str]:
  """("2.5e14 multiply-adds", "6.1 hours"): the forward passes of all runs, and the sum of their `wall_seconds`."""
  runs = pd.read_csv(folder / claims.RUNS)
  macs = f"{runs[COMP].sum():.1e}".replace("e+", "e")
  return f"{macs} multiply-adds", f"{runs['wall_seconds'].sum() / 3600:.1f} hours"


def over_the_stream(study: Study) -> str:
  """The perplexities of text learners that do not wait, after each mega-batch, and their costs."""
  study = _at_every_t(study._replace(runs=study.runs[study.runs[WAIT] == 1]))
  steps = [column for column in study.runs if column.startswith("t = ")]
  size_of = {studies.key(kind.row, study.factors): studies.size_cells(study, kind) for kind in studies.kinds(study)}
  rows = []
  for _, row in _kinds(study, *steps, COMP, MEM):
    size = size_of[studies.key(row, study.factors)]
    rows.append({"learner": f"`{row[LEARNER]}`", **size, **{t: _cell(row, t, ".1f") for t in steps},
                 "multiply-adds": f"{row[COMP]:.2g}", "cumulative parameters": f"{row[MEM]:.2g}"})
  return tables.markdown(rows)


def after_the_last(study: Study) -> str:
  """The perplexities of text learners after the last mega-batch, by waiting time and multiple of steps."""
  rows: dict[tuple[str, str], dict[str, str]] = {}
  for _, row in _kinds(study, "final_perplexity"):
    first = studies.experts(row)[0]
    size = f"{first.each}@{plain(row[MEMBERS])}" if not pd.isna(row[MEMBERS]) else str(first.each)
    mine = rows.setdefault((row[LEARNER], size), {"learner": f"`{row[LEARNER]}`", "experts at first": size})
    times = f", {plain(row[STEPS])} times the steps" if row[STEPS] != 1 else ""
    mine[f"w = {plain(row[WAIT])}{times}"] = _cell(row, "final_perplexity", ".1f")
  heads = sorted({head for row in rows.values() for head in row if head.startswith("w = ")})
  return tables.markdown([{**{head: row[head] for head in row if head not in heads},
                           **{head: row.get(head, "") for head in heads}} for row in rows.values()])


def gates(folder: pathlib.Path) -> str:
  """The perplexities of `gmoe` with flat gates and with trees of gates, and both ways to copy experts."""
  return tables.markdown([
      {"gates": f"`{kind[0]}`", "copies": f"`{kind[1]}`",
       **{f"{name} perplexity": _number(mine[f"{name}_perplexity"].tolist()) for name in ("average", "final")}}
      for kind, mine in pd.read_csv(folder / "gates.csv").groupby(["model.gates", "learner.copies"])])


def by_wait(runs: Runs) -> str:
  """The CERs of image learners without and with replay at each waiting time."""
  rows: dict[tuple[str, float], dict[Any, str]] = collections.defaultdict(dict)
  for kind, scores in runs.kinds():
    rows[kind[LEARNER], kind[REPLAY]][kind[WAIT]] = _number([*scores.values()])
  waits = sorted({wait for row in rows.values() for wait in row})
  places = {name: i for i, name in enumerate(drawing.in_order({name for name, _ in rows}))}
  lines = [["", *(f"w = {plain(wait)}" for wait in waits)], ["---", *["---:"] * len(waits)]]
  lines += [[f"`{name}`{', replay' if replay else ''}", *(rows[name, replay].get(wait, "") for wait in waits)]
            for name, replay in sorted(rows, key=lambda row: (places[row[0]], row[1]))]
  return _rows(lines)


def by_width(runs: Runs) -> list[str]:
  """The lowest mean CER of image learners of each width, and its waiting time.

  Cells whose runs are all in a table of `costs` are left out. Empty if there are no others.
  """
  kinds = [(kind, [*scores.values()]) for kind, scores in runs.kinds()]
  fields, in_costs = _telling([kind for kind, _ in kinds]), _waits_with_intervals(runs)
  lowest: dict[tuple[Any, ...], dict[Any, tuple[float, str]]] = collections.defaultdict(dict)
  names, shown = {}, set()
  for kind, scores in kinds:
    row = (kind[LEARNER], *(kind[field] for field in fields[kind[LEARNER]]))
    cell = (statistics.mean(scores), f"{_number(scores)} (w = {plain(kind[WAIT])})")
    lowest[row][kind[WIDTH]] = min(cell, lowest[row].get(kind[WIDTH], cell))
    names[row] = _named(kind, fields[kind[LEARNER]])
    if kind[REPLAY] or kind[WAIT] not in in_costs:
      shown.add((row, kind[WIDTH]))
  widths = sorted({width for _, width in shown})
  places = {name: i for i, name in enumerate(drawing.in_order({row[0] for row in lowest}))}
  lines = [["", *(f"width {plain(width)}" for width in widths)], ["---", *["---:"] * len(widths)]]
  for row in sorted({row for row, _ in shown}, key=lambda row: (places[row[0]], row[1:])):
    lines.append([names[row], *(lowest[row][width][1] if (row, width) in shown else "" for width in widths)])
  return [_rows(lines)] if shown else []


def costs(runs: Runs) -> list[str]:
  """The CERs and costs of runs without replay at the waiting times at which growth has several intervals.

  The last column compares a CER with that of `sm` at the same compute, on the line between its next two widths in the
  plane of log compute and log CER, seed by seed. It is empty outside of the widths of `sm`.
  """
  tables = []
  for wait in sorted(_waits_with_intervals(runs)):
    mine = runs.where((runs.table[WAIT] == wait) & (runs.table[REPLAY] == 0))
    values = {column: [its for _, its in mine.kinds(column)] for column in (runs.score, COMP)}
    kinds = [kind for kind, _ in mine.kinds()]
    fields = _telling(kinds)
    places = {name: i for i, name in enumerate(drawing.in_order({kind[LEARNER] for kind in kinds}))}
    at_compute = _line([(values[COMP][i], values[runs.score][i]) for i, kind in enumerate(kinds)
                        if kind[LEARNER] == "sm" and kind[SCRATCH] is not True])
    lines = [["", "width", "CER", "multiply-adds", "CER against `sm` of its compute"], ["---", *["---:"] * 4]]
    for i in sorted(range(len(kinds)), key=lambda i: (kinds[i][WIDTH], places[kinds[i][LEARNER]])):
      macs = statistics.mean(values[COMP][i].values())
      above = "" if kinds[i][LEARNER] == "sm" else _above(at_compute, values[COMP][i], values[runs.score][i])
      lines.append([_named(kinds[i], fields[kinds[i][LEARNER]]), plain(kinds[i][WIDTH]),
                    _number([*values[runs.score][i].values()]), f"{macs:.2g}", above])
    tables.append(_rows(lines))
  return tables


def _line(points: Sequence[tuple[dict[int, float], dict[int, float]]]) -> dict[int, Sequence[tuple[float, float]]]:
  """{seed: [(log cost, log score)], ascending} of kinds whose {seed: cost} and {seed: score} are given."""
  seeds = {seed for _, scores in points for seed in scores}
  return {seed: sorted((math.log(costs[seed]), math.log(scores[seed])) for costs, scores in points if seed in scores)
          for seed in seeds}


def _above(line: dict[int, Sequence[tuple[float, float]]], costs: dict[int, float], scores: dict[int, float]) -> str:
  """E.g. "+12 %", by how much scores are above a line at their costs; "" if some costs are outside of it."""
  effects = []
  for seed, score in scores.items():
    x, y = zip(*line.get(seed, [(math.inf, 0.0)]))
    if not x[0] <= math.log(costs[seed]) <= x[-1]:
      return ""
    effects.append(math.log(score) - float(np.interp(math.log(costs[seed]), x, y)))
  return f"{math.expm1(statistics.mean(effects)):+.0%}".replace("%", " %")


def _waits_with_intervals(runs: Runs) -> set[Any]:
  """The waiting times at which a learner without replay grows at several intervals."""
  table = runs.table[runs.table[REPLAY] == 0]
  intervals = table.groupby([LEARNER, WIDTH, WAIT])[GROW].nunique()
  return set(intervals[intervals > 1].index.get_level_values(WAIT))


def _rows(lines: Sequence[Sequence[str]]) -> str:
  return "\n".join(f"|{'|'.join(f' {cell} ' if cell else ' ' for cell in line)}|" for line in lines)


def _named(kind: dict[str, Any], fields: list[str]) -> str:
  """E.g. "`gmoe`, grow_every 5"."""
  return f"`{kind[LEARNER]}`{studies.label(kind, fields, [SCRATCH]).removeprefix(kind[LEARNER])}"


def _at_every_t(study: Study) -> Study:
  """With a column `t = T` of the perplexity after every mega-batch T."""
  wide = study.stream[study.stream["run"].isin(study.runs["run"])].pivot(index="run", columns="t", values="perplexity")
  wide.columns = [f"t = {t}" for t in wide.columns]
  return study._replace(runs=study.runs.merge(wide, left_on="run", right_index=True))


def _kinds(study: Study, *columns: str) -> Iterator[tuple[int, Any]]:
  """The rows of studies.means by learner and size, with the fields that give the size of a language model."""
  fields = [field for field in ("num_stages", WAIT, EXPERTS, MEMBERS, STEPS, "learner.add_experts",
                                "learner.members_per_stage") if field in study.runs]
  means = studies.means(study, *columns)
  keys = [LEARNER, *study.factors]
  found = means.merge(study.runs[[*keys, *(field for field in fields if field not in keys)]].drop_duplicates(keys),
                      on=keys)
  places = {name: i for i, name in enumerate(drawing.in_order(found[LEARNER].unique()))}
  order = [field for field in (WAIT, EXPERTS, MEMBERS, STEPS) if field in found]
  return found.assign(place=found[LEARNER].map(places)).sort_values(["place", *order]).iterrows()


def _cell(row: Any, column: str, form: str) -> str:
  return tables.mean(row[column], row[f"{column}_sd"], form)


def _telling(kinds: list[dict[str, Any]]) -> dict[str, list[str]]:
  """{learner: the further fields in which its kinds of the same width and waiting time differ}."""
  found: dict[str, list[str]] = {}
  for learner in {kind[LEARNER] for kind in kinds}:
    mine = [kind for kind in kinds if kind[LEARNER] == learner]
    of_place = collections.defaultdict(list)
    for kind in mine:
      of_place[kind[WIDTH], kind[WAIT]].append(kind)
    found[learner] = [field for field in FACTORS if field not in (LEARNER, WIDTH, WAIT) and any(
        len({str(kind[field]) for kind in its}) > 1 for its in of_place.values())]
  return found


def _number(scores: list[float]) -> str:
  spread = f" ± {statistics.stdev(scores):.1f}" if len(scores) > 1 else ""
  return f"{statistics.mean(scores):.1f}{spread}"


if __name__ == "__main__":
  sys.exit(commands.exit_code(main))
