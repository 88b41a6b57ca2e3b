"""Which runs are evidence for the claims of the paper.

Every public function takes the Runs of one study and returns the cells of a claim (benchmarks/evidence.py):
comparisons of kinds of runs that differ only in what the claim is about. Or it returns such a function.
"""
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import evidence
import pandas as pd
from evidence import Cell

from alma_jax.errors import BadInput
from alma_jax.reports.comparisons import NEAR, SLACK

LEARNER, WIDTH, WAIT, REPLAY = "learner.name", "model.width", "stream.waiting_time", "stream.replay"
EXPERTS, MEMBERS, STEPS = "model.num_experts", "learner.num_members", "train.steps_multiplier"
SCRATCH, GATING, GROW, RATE = ("learner.init_from_scratch", "learner.gating", "learner.grow_every",
                               "learner.growth_rate")
FACTORS = [LEARNER, WIDTH, WAIT, REPLAY, EXPERTS, MEMBERS, STEPS, SCRATCH, GATING, GROW, RATE]  # what studies vary
COSTS = COMP, MEM, PREDICT = "cumulative_fwd_macs", "cumulative_params", "last_predict_macs"
SMALL, LARGE = 8, 32  # networks of at most and at least this width are small and large, in every study of images
FIXED, GROWING, ENSEMBLES = ("sm", "ens", "umix", "moe"), ("gens", "gmoe", "ff"), ("ens", "umix")


class Runs(NamedTuple):
  """The runs of a study.

  Attributes:
    table: a row per run, the columns of a report's runs.csv.
    stream: rows of a report's stream.csv, or None; of rows with the same error the later ones may be missing.
    score: column of the score, "cer" or "average_perplexity"; lower is better.
    complete: (number of the kinds of runs that `whole` has kept, number of all).
  """
  table: pd.DataFrame
  stream: pd.DataFrame | None
  score: str
  complete: tuple[int, int] = (0, 0)

  @property
  def total(self) -> int:
    """Number of mega-batches."""
    return int(self.table["stream.num_megabatches"].iloc[0])

  def whole(self) -> "Runs":
    """The runs of the seeds that at least half of the kinds have, without the kinds that lack one of these seeds.

    A study that is not complete is so compared at the same seeds everywhere, and the best of several kinds is never
    one of fewer seeds.
    """
    has = [(kind, set(values)) for kind, values in self.kinds()]
    seeds = {seed for seed in self.table["seed"] if 2 * sum(seed in its for _, its in has) >= len(has)}
    kept = {_key(kind) for kind, its in has if its >= seeds}
    chosen = [seed in seeds and tuple(map(str, kind)) in kept
              for seed, *kind in self.table[["seed", *FACTORS]].itertuples(index=False, name=None)]
    return self.where(chosen)._replace(complete=(len(kept), len(has)))

  def where(self, chosen: Any) -> "Runs":
    """The runs of a mask."""
    return self._replace(table=self.table[chosen])

  def plain(self) -> "Runs":
    """The runs without replay, from the stage before, with soft gates, which were trained before the last mega-batch.

    The other runs have the error of guessing for the whole stream. If a study varies the interval of growth at one
    waiting time, or the multiple of steps, these are kept.
    """
    table = self.table
    return self.where((table[REPLAY] == 0) & (table[WAIT] < self.total)
                      & (table[GATING].isna() | (table[GATING] == "soft"))).warm()

  def warm(self) -> "Runs":
    """The runs whose stages start from the stage before."""
    return self.where(self.table[SCRATCH].isna() | (self.table[SCRATCH] == False))  # noqa: E712

  def kinds(self, column: str = "") -> Iterator[tuple[dict[str, Any], dict[int, float]]]:
    """({factor: value}, {seed: value of a column, the score by default}) of each kind of run."""
    found: dict[tuple[Any, ...], tuple[dict[str, Any], dict[int, float]]] = {}
    for *values, seed, value in zip(*(self.table[name] for name in (*FACTORS, "seed", column or self.score))):
      kind = dict(zip(FACTORS, values))
      its = found.setdefault(tuple((pd.isna(v), "" if pd.isna(v) else v) for v in values), (kind, {}))[1]
      if seed in its:
        raise BadInput(f"{_name(kind)}: several runs have seed {seed}; add what they differ in to FACTORS.")
      if not pd.isna(value):
        its[seed] = value
    for key in sorted(found):
      if found[key][1]:
        yield found[key]

  def apart(self, *fields: str) -> Iterator[tuple[str, "Runs"]]:
    """(name, Runs) of the kinds that are alike besides `fields`."""
    others = [field for field in FACTORS if field not in fields]
    for key, mine in self.table.groupby(others, dropna=False, sort=True):
      yield _name(dict(zip(others, key))), self._replace(table=mine)

  def at(self, t: int) -> "Runs":
    """The runs with the score after mega-batch t instead; none if there is no stream."""
    if self.stream is None:
      return self.where([False] * len(self.table))
    metric = "error" if "error" in self.stream else "perplexity"
    before = self.stream[(self.stream["t"] <= t) & self.stream["updated"].astype(bool)].sort_values("t")
    values = before.groupby("run")[metric].last()
    return self._replace(table=self.table.assign(**{self.score: self.table["run"].map(values)}))


def larger_is_better(size: str) -> Callable[[Runs], list[Cell]]:
  """Each size against the next one; `size` is a field."""
  def cells(runs: Runs) -> list[Cell]:
    found = []
    for name, alike in runs.plain().apart(size):
      steps = [(kind[size], values) for kind, values in alike.kinds()]
      if size == EXPERTS and alike.table[STEPS].iloc[0] != 1:
        continue
      found += [Cell(f"{name}, {_number(small)} and {_number(large)}", evidence.log_ratio(first, second))
                for (small, first), (large, second) in itertools.pairwise(steps)]
    return found
  return cells


def ensembles_are_better(runs: Runs) -> list[Cell]:
  """The better of the ensembles against every growing learner of the same width and waiting time."""
  return _against(runs.plain(), ENSEMBLES, GROWING, _above_best)


def growing_helps(small: bool, learners: Sequence[str] = GROWING) -> Callable[[Runs], list[Cell]]:
  """Each of some growing learners against `sm` that starts from the same network; `small`: only up to width 8."""
  def cells(runs: Runs) -> list[Cell]:
    runs = runs.plain()
    if small:
      runs = runs.where(runs.table[WIDTH] <= SMALL)
    return _against(runs, ("sm",), learners, lambda mine, rivals: evidence.log_ratio(evidence.best(rivals, mine), mine),
                    (WIDTH, WAIT, EXPERTS, STEPS))
  return cells


def fixed_is_better(runs: Runs) -> list[Cell]:
  """Each growing learner against the best fixed one within its compute and memory, if one has nearly all of both."""
  runs, found = runs.plain(), []
  costs = {column: {_key(kind): pd.Series(values).mean() for kind, values in runs.kinds(column)}
           for column in (COMP, MEM)}
  every = list(runs.kinds())
  for mine, values in every:
    if mine[LEARNER] not in GROWING:
      continue
    share = {_key(kind): [costs[column][_key(kind)] / costs[column][_key(mine)] for column in (COMP, MEM)]
             for kind, _ in every if kind[LEARNER] in FIXED and kind[WAIT] == mine[WAIT]}
    within = [(its, share[_key(kind)]) for kind, its in every
              if _key(kind) in share and max(share[_key(kind)]) <= SLACK and its.keys() >= values.keys()]
    if any(min(each) >= NEAR for _, each in within):
      found.append(_cell(mine, evidence.log_ratio(values, evidence.best([its for its, _ in within]))))
  return found


def waiting_helps(size: str) -> Callable[[Runs], list[Cell]]:
  """The best waiting time between the shortest and the longest, against the better of these two.

  Args:
    size: of which networks, "small" or "large"; "difference": by how much more it helps the small ones.
  """
  def gains(runs: Runs, widths: Sequence[float]) -> dict[int, float]:
    cells = []
    for width in widths:
      waits = dict(sorted((kind[WAIT], values) for kind, values in runs.where(runs.table[WIDTH] == width).kinds()))
      kinds = list(waits.values())
      if len(kinds) > 2:
        cells.append(evidence.log_ratio(evidence.best([kinds[0], kinds[-1]]), evidence.best(kinds[1:-1])))
    return _mean(cells)

  def cells(runs: Runs) -> list[Cell]:
    found = []
    for name, alike in runs.where(runs.table[REPLAY] == 0).apart(WIDTH, WAIT, GROW):
      small, large = _sizes(alike)
      if size != "difference":
        found += [Cell(f"{name}, {_number(width)}", gains(alike, [width]))
                  for width in (small if size == "small" else large)]
      elif small and large:
        found.append(Cell(name, _difference(gains(alike, small), gains(alike, large))))
    return found
  return cells


def short_waits_end_worse(difference: bool) -> Callable[[Runs], list[Cell]]:
  """The final error at the shortest waiting time against each longer one.

  Args:
    difference: whether the effects are by how much more small networks lose by it than large ones, in points of error.
  """
  def losses(runs: Runs, widths: Sequence[float]) -> list[Cell]:
    found = []
    for width in widths:
      kinds = list(runs.where(runs.table[WIDTH] == width).kinds("final_error"))
      kinds.sort(key=lambda pair: pair[0][WAIT])
      compare = _difference if difference else evidence.log_ratio
      found += [Cell(_name(kind), compare(kinds[0][1], values)) for kind, values in kinds[1:]]
    return found

  def cells(runs: Runs) -> list[Cell]:
    found = []
    for name, alike in runs.where(runs.table[REPLAY] == 0).apart(WIDTH, WAIT, GROW):
      sizes = _sizes(alike)
      if not difference:
        found += losses(alike, sorted(alike.table[WIDTH].unique()))
      elif all(sizes):
        found.append(Cell(name, _difference(*(_mean([cell.effects for cell in losses(alike, widths)])
                                              for widths in sizes))))
    return found
  return cells


def large_networks_lead_early(runs: Runs) -> list[Cell]:
  """The largest network after a tenth of the stream against the smallest one at its end."""
  runs, tenth = runs.plain(), runs.total // 10
  found = []
  for name, alike in runs.where(runs.table[WAIT] <= tenth).apart(WIDTH):
    small, large = _sizes(alike)
    early = [values for kind, values in alike.at(tenth).kinds() if kind[WIDTH] in large[-1:]]
    final = [values for kind, values in alike.kinds("final_error") if kind[WIDTH] in small[:1]]
    if early and final:
      found.append(Cell(name, evidence.log_ratio(final[0], early[0])))
  return found


def replay_lowers_the_score(runs: Runs) -> list[Cell]:
  """No replay against the most, all else equal, of runs whose stages start from the stage before.

  Stages from scratch without replay have seen only the last data, which is no rival.
  """
  found = []
  for name, alike in runs.where(runs.table[WAIT] < runs.total).warm().apart(REPLAY):
    kinds = list(alike.kinds())
    if len(kinds) > 1 and kinds[0][0][REPLAY] == 0:
      found.append(Cell(name, evidence.log_ratio(kinds[0][1], kinds[-1][1])))
  return found


def replay_is_no_better_trade_off(runs: Runs) -> list[Cell]:
  """Each kind with replay against the best kind without it that has at most 5 % more compute."""
  runs = runs.where(runs.table[WAIT] < runs.total)
  costs = {_key(kind): pd.Series(values).mean() for kind, values in runs.kinds(COMP)}
  every, found = list(runs.kinds()), []
  for mine, values in every:
    within = [its for kind, its in every if kind[REPLAY] == 0 and costs[_key(kind)] <= 1.05 * costs[_key(mine)]]
    if mine[REPLAY] > 0 and within:
      found.append(_cell(mine, evidence.log_ratio(values, evidence.best(within, values))))
  return found


def costs_more(learners: Sequence[str], others: Sequence[str], column: str) -> Callable[[Runs], list[Cell]]:
  """Each of `learners` against the dearest kind of each of `others` of the same width and waiting time.

  Args:
    column: of the counts that are compared.
  """
  def above_dearest(mine: dict[int, float], rivals: list[dict[int, float]]) -> dict[int, float]:
    shared = set.intersection(*map(set, rivals))
    return evidence.log_ratio(mine, {seed: max(values[seed] for values in rivals) for seed in shared})

  def cells(runs: Runs) -> list[Cell]:
    found = []
    for other in others:
      found += _against(runs.plain(), (other,), learners, above_dearest, column=column)
    return found
  return cells


def all_at_once_is_better(runs: Runs) -> list[Cell]:
  """After k mega-batches: training on one after the other, against training on all k at once with as many updates.

  Only learners that do not grow: with fewer stages the others are smaller.
  """
  found = []
  for name, alike in runs.where(runs.table[LEARNER].isin(FIXED)).apart(WAIT, STEPS):
    one = alike.where((alike.table[WAIT] == 1) & (alike.table[STEPS] == 1))
    for wait in sorted(set(alike.table[WAIT]) - {1}):
      k = int(wait)
      both = [list(each.at(k).kinds()) for each in (one, alike.where((alike.table[WAIT] == wait)
                                                                     & (alike.table[STEPS] == wait)))]
      if all(both):
        found.append(Cell(f"{name}, k {k}", evidence.log_ratio(both[0][0][1], both[1][0][1])))
  return found


def _against(runs: Runs, rivals: Sequence[str], learners: Sequence[str],
             effect: Callable[[dict[int, float], list[dict[int, float]]], dict[int, float]],
             fields: Sequence[str] = (WIDTH, WAIT, STEPS), column: str = "") -> list[Cell]:
  """A cell for each kind of `learners` that has rivals with the same values of `fields`."""
  every = list(runs.kinds(column))
  found = []
  for mine, values in every:
    same = [its for kind, its in every if kind[LEARNER] in rivals and kind is not mine
            and _key(kind, fields) == _key(mine, fields)]
    if mine[LEARNER] in learners and same:
      found.append(_cell(mine, effect(values, same)))
  return found


def _above_best(mine: dict[int, float], rivals: list[dict[int, float]]) -> dict[int, float]:
  return evidence.log_ratio(mine, evidence.best(rivals, mine))


def _cell(kind: dict[str, Any], effects: dict[int, float]) -> Cell:
  """The comparison of a kind with others of its waiting time."""
  return Cell(_name(kind), effects, kind[WAIT])


def _sizes(runs: Runs) -> tuple[list[float], list[float]]:
  """(widths of the small networks, widths of the large ones), ascending."""
  widths = sorted(runs.table[WIDTH].unique())
  return [width for width in widths if width <= SMALL], [width for width in widths if width >= LARGE]


def _mean(cells: Sequence[dict[int, float]]) -> dict[int, float]:
  """The mean effect on the seeds that all cells have."""
  seeds = set.intersection(*map(set, cells)) if cells else set()
  return {seed: sum(effects[seed] for effects in cells) / len(cells) for seed in sorted(seeds)}


def _difference(first: dict[int, float], second: dict[int, float]) -> dict[int, float]:
  return {seed: first[seed] - second[seed] for seed in sorted(first.keys() & second.keys())}


def _key(kind: dict[str, Any], fields: Sequence[str] = FACTORS) -> tuple[str, ...]:
  """The values of a kind as text; missing values are equal."""
  return tuple(str(kind[field]) for field in fields)


def _name(kind: dict[str, Any]) -> str:
  """E.g. "ens, width 32, waiting_time 10"."""
  parts = [f"{field.rsplit('.', 1)[-1]} {_number(value)}" for field, value in kind.items()
           if field != LEARNER and not pd.isna(value)]
  return ", ".join([*([kind[LEARNER]] if LEARNER in kind else []), *parts])


def _number(value: Any) -> str:
  return f"{value:g}" if isinstance(value, (int, float)) else str(value)
