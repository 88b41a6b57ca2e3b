"""Comparisons of kinds of runs, and the groups that they belong to."""
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import evidence
import pandas as pd
from evidence import Cell
from study_runs import EXPERTS, LEARNER, STEPS, WAIT, WIDTH, Runs, key, name_of, number

SMALL, LARGE = 8, 32  # networks of at most and at least this width are small and large, in every study of images
# How pages name a group of comparisons, for example those of one waiting time.
_GROUPS = {LEARNER: "`{}`", WIDTH: "width {}", WAIT: "w = {}", STEPS: "{} × steps", EXPERTS: "{} experts"}


class Judged(NamedTuple):
  """A verdict on a claim that is judged as it is worded.

  Attributes:
    verdict: if p is not below 0.05 after its correction, it cannot be told instead.
    number: what the verdict rests on.
    seeds: number of seeds.
    p: of its test; None without a test.
  """
  verdict: str
  number: str
  seeds: int
  p: float | None = None


def cell(kind: dict[str, Any], effects: dict[int, float]) -> Cell:
  """The comparison of a kind with others."""
  return Cell(name_of(kind), effects, groups(kind))


def groups(kind: Mapping[str, Any]) -> dict[str, str]:
  """The groups of comparisons that a kind belongs to."""
  return {field: text.format(number(kind[field])) for field, text in _GROUPS.items()
          if field in kind and not pd.isna(kind[field])}


def shared(runs: Runs) -> dict[str, str]:
  """The groups that all of some runs belong to."""
  return {field: text for field, text in groups(next(runs.kinds())[0]).items() if runs.table[field].nunique() == 1}


def against(runs: Runs, rivals: Sequence[str], learners: Sequence[str],
            effect: Callable[[dict[int, float], list[dict[int, float]]], dict[int, float]],
            fields: Sequence[str] = (WIDTH, WAIT, STEPS), column: str = "") -> list[Cell]:
  """A cell for each kind of `learners` that has rivals with the same values of `fields`."""
  every = list(runs.kinds(column))
  found = []
  for mine, values in every:
    same = [its for kind, its in every if kind[LEARNER] in rivals and kind is not mine
            and key(kind, fields) == key(mine, fields)]
    if mine[LEARNER] in learners and same:
      found.append(cell(mine, effect(values, same)))
  return found


def above_best(mine: dict[int, float], rivals: list[dict[int, float]]) -> dict[int, float]:
  """How much higher the score of a kind is than that of the best rival."""
  return evidence.log_ratio(mine, evidence.best(rivals, mine))


def sizes(runs: Runs) -> tuple[list[float], list[float]]:
  """(widths of the small networks, widths of the large ones), ascending."""
  widths = sorted(runs.table[WIDTH].unique())
  return [width for width in widths if width <= SMALL], [width for width in widths if width >= LARGE]


def mean_costs(runs: Runs, column: str) -> dict[tuple[str, ...], float]:
  """{key of a kind: its cost, the mean over seeds}."""
  return {key(kind): float(pd.Series(values).mean()) for kind, values in runs.kinds(column)}


def mean(cells: Sequence[dict[int, float]]) -> dict[int, float]:
  """The mean effect on the seeds that all cells have."""
  seeds = set.intersection(*map(set, cells)) if cells else set()
  return {seed: sum(effects[seed] for effects in cells) / len(cells) for seed in sorted(seeds)}


def minus(first: dict[int, float], second: dict[int, float]) -> dict[int, float]:
  """The difference on the seeds of both."""
  return {seed: first[seed] - second[seed] for seed in sorted(first.keys() & second.keys())}


def span(values: Sequence[float]) -> str:
  """E.g. "5.5", or "4 to 6"."""
  low, high = (f"{value:.3g}" for value in (min(values), max(values)))
  return low if low == high else f"{low} to {high}"
