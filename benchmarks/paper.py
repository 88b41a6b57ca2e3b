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

LEARNER, WIDTH, WAIT, REPLAY = "learner.name", "model.width", "stream.waiting_time", "stream.replay"
EXPERTS, MEMBERS, STEPS = "model.num_experts", "learner.num_members", "train.steps_multiplier"
SCRATCH, GATING, GROW, RATE = ("learner.init_from_scratch", "learner.gating", "learner.grow_every",
                               "learner.growth_rate")
FACTORS = [LEARNER, WIDTH, WAIT, REPLAY, EXPERTS, MEMBERS, STEPS, SCRATCH, GATING, GROW, RATE]  # what studies vary
COSTS = COMP, MEM, PREDICT = "cumulative_fwd_macs", "cumulative_params", "last_predict_macs"
FIXED, GROWING, ENSEMBLES = ("sm", "ens", "umix", "moe"), ("gens", "gmoe", "ff"), ("ens", "umix")


class Runs(NamedTuple):
  """The runs of a study.

  Attributes:
    table: a row per run, the columns of a report's runs.csv.
    stream: rows of a report's stream.csv, or None; of rows with the same error the later ones may be missing.
    score: column of the score, "cer" or "average_perplexity"; lower is better.
  """
  table: pd.DataFrame
  stream: pd.DataFrame | None
  score: str

  @property
  def total(self) -> int:
    """Number of mega-batches."""
    return int(self.table["stream.num_megabatches"].iloc[0])

  def where(self, chosen: Any) -> "Runs":
    """The runs of a mask."""
    return self._replace(table=self.table[chosen])

  def plain(self) -> "Runs":
    """The runs without replay, from the stage before, with soft gates, which were trained before the last mega-batch.

    The other runs have the error of guessing for the whole stream. If a study varies the interval of growth at one
    waiting time, or the multiple of steps, these are kept.
    """
    table = self.table
    keep = (table[REPLAY] == 0) & (table[WAIT] < self.total)
    for field, value in ((SCRATCH, False), (GATING, "soft")):
      keep &= table[field].isna() | (table[field] == value)
    return self.where(keep)

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


def growing_helps(small: bool) -> Callable[[Runs], list[Cell]]:
  """Each growing learner against `sm` that starts from the same network; `small`: only of the smaller widths."""
  def cells(runs: Runs) -> list[Cell]:
    runs = runs.plain()
    if small:
      runs = runs.where(runs.table[WIDTH].isin(_halves(runs)[0]))
    return _against(runs, ("sm",), GROWING, lambda mine, rivals: evidence.log_ratio(evidence.best(rivals), mine),
                    (WIDTH, WAIT, EXPERTS, STEPS))
  return cells


def fixed_is_better(runs: Runs) -> list[Cell]:
  """Each growing learner against the best fixed one within its compute and memory, if one has half of both."""
  runs, found = runs.plain(), []
  costs = {column: {_key(kind): pd.Series(values).mean() for kind, values in runs.kinds(column)}
           for column in (COMP, MEM)}
  every = list(runs.kinds())
  for mine, values in every:
    if mine[LEARNER] not in GROWING:
      continue
    share = {_key(kind): [costs[column][_key(kind)] / costs[column][_key(mine)] for column in (COMP, MEM)]
             for kind, _ in every if kind[LEARNER] in FIXED and kind[WAIT] == mine[WAIT]}
    within = [its for kind, its in every if _key(kind) in share and max(share[_key(kind)]) <= 1.05]
    if within and any(max(each) <= 1.05 and min(each) >= 0.5 for each in share.values()):
      found.append(Cell(_name(mine), evidence.log_ratio(values, evidence.best(within))))
  return found


def waiting_helps(half: str) -> Callable[[Runs], list[Cell]]:
  """The best waiting time between the shortest and the longest, against the better of these two.

  Args:
    half: of which networks, "small" or "large"; "difference": by how much more it helps the small ones.
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
    runs = runs.where(runs.table[REPLAY] == 0)
    small, large = _halves(runs)
    found = []
    for name, alike in runs.apart(WIDTH, WAIT, GROW):
      if half == "difference":
        found.append(Cell(name, _difference(gains(alike, small), gains(alike, large))))
      else:
        found += [Cell(f"{name}, {_number(width)}", gains(alike, [width]))
                  for width in (small if half == "small" else large)]
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
    runs = runs.where(runs.table[REPLAY] == 0)
    small, large = _halves(runs)
    found = []
    for name, alike in runs.apart(WIDTH, WAIT, GROW):
      if difference:
        found.append(Cell(name, _difference(*(_mean([cell.effects for cell in losses(alike, widths)])
                                              for widths in (small, large)))))
      else:
        found += losses(alike, small + large)
    return found
  return cells


def large_networks_lead_early(runs: Runs) -> list[Cell]:
  """The largest network after a tenth of the stream against the smallest one at its end."""
  runs, tenth = runs.plain(), runs.total // 10
  widths = sorted(runs.table[WIDTH].unique())
  found = []
  for name, alike in runs.where(runs.table[WAIT] <= tenth).apart(WIDTH):
    early = [values for kind, values in alike.at(tenth).kinds() if kind[WIDTH] == widths[-1]]
    final = [values for kind, values in alike.kinds("final_error") if kind[WIDTH] == widths[0]]
    if len(widths) > 1 and early and final:
      found.append(Cell(name, evidence.log_ratio(final[0], early[0])))
  return found


def replay_lowers_the_score(runs: Runs) -> list[Cell]:
  """No replay against the most, all else equal."""
  found = []
  for name, alike in runs.where(runs.table[WAIT] < runs.total).apart(REPLAY):
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
      found.append(Cell(_name(mine), evidence.log_ratio(values, evidence.best(within))))
  return found


def costs_more(learners: Sequence[str], others: Sequence[str], column: str) -> Callable[[Runs], list[Cell]]:
  """Each of `learners` against each of `others` of the same width and waiting time, in a column of counts."""
  def cells(runs: Runs) -> list[Cell]:
    found = []
    for other in others:
      found += _against(runs.plain(), (other,), learners, _above_best, column=column)
    return found
  return cells


def all_at_once_is_better(runs: Runs) -> list[Cell]:
  """After k mega-batches: training on one after the other, against training on all k at once with as many updates."""
  found = []
  for name, alike in runs.apart(WAIT, STEPS):
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
      found.append(Cell(_name(mine), effect(values, same)))
  return found


def _above_best(mine: dict[int, float], rivals: list[dict[int, float]]) -> dict[int, float]:
  return evidence.log_ratio(mine, evidence.best(rivals))


def _halves(runs: Runs) -> tuple[list[float], list[float]]:
  """(the smaller half of the widths, the others)."""
  widths = sorted(runs.table[WIDTH].unique())
  return widths[:len(widths) // 2], widths[len(widths) // 2:]


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
