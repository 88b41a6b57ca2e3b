"""Which runs are evidence for the claims of the paper.

Every public function takes the Runs of one study and returns the cells of a claim (benchmarks/evidence.py):
comparisons of kinds of runs that differ only in what the claim is about. Some return a Judged instead, and some return
such a function.
"""
import collections
import itertools
import math
import statistics
from collections.abc import Callable, Sequence

import evidence
import numpy as np
import pandas as pd
from compared import (
  LARGE,
  SMALL,
  Judged,
  above_best,
  against,
  cell,
  groups,
  mean,
  mean_costs,
  minus,
  shared,
  sizes,
  span,
)
from evidence import Cell
from study_runs import (
  COMP,
  EXPERTS,
  FIXED,
  GROW,
  GROWING,
  LEARNER,
  MEM,
  REPLAY,
  STEPS,
  WAIT,
  WIDTH,
  Kind,
  Runs,
  key,
  name_of,
  number,
)

from alma_jax.reports.findings import NEAR, SLACK

ENSEMBLES = ("ens", "umix")
_UNITS = {COMP: "multiply-adds", MEM: "parameters"}


def larger_is_better(size: str) -> Callable[[Runs], list[Cell]]:
  """Each size against the next one; `size` is a field."""
  def cells(runs: Runs) -> list[Cell]:
    found = []
    for name, alike in runs.plain().apart(size):
      for (small, first), (large, second) in itertools.pairwise(alike.kinds()):
        pair = f"{number(small[size])} and {number(large[size])}"
        its = groups(small) | {size: f"{size.rsplit('.', 1)[-1].removeprefix('num_')} {pair}"}
        found.append(Cell(f"{name}, {pair}", evidence.log_ratio(first, second), its))
    return found
  return cells


def ensembles_are_better(runs: Runs) -> list[Cell]:
  """The better of the ensembles against every growing learner of the same width and waiting time."""
  return against(runs.plain(), ENSEMBLES, GROWING, above_best)


def mixed_or_apart(small: bool) -> Callable[[Runs], list[Cell]]:
  """`ens` against `umix` for small networks, where `umix` should win; else `umix` against `ens` for large ones."""
  better, worse = ("umix", "ens") if small else ("ens", "umix")

  def cells(runs: Runs) -> list[Cell]:
    runs = runs.plain()
    chosen = runs.table[WIDTH] <= SMALL if small else runs.table[WIDTH] >= LARGE
    return against(runs.where(chosen), (better,), (worse,), above_best)
  return cells


def growing_helps(small: bool, learners: Sequence[str] = GROWING) -> Callable[[Runs], list[Cell]]:
  """Each of some growing learners against `sm` that starts from the same network; `small`: only up to width 8."""
  def cells(runs: Runs) -> list[Cell]:
    runs = runs.plain().repeated()
    if small:
      runs = runs.where(runs.table[WIDTH] <= SMALL)
    return against(runs, ("sm",), learners, lambda mine, rivals: evidence.log_ratio(evidence.best(rivals, mine), mine),
                   (WIDTH, WAIT, EXPERTS, STEPS))
  return cells


def fixed_is_better(*budget: str, same_wait: bool = True, learners: Sequence[str] = GROWING,
                    rivals: Sequence[str] = FIXED) -> Callable[[Runs], list[Cell]]:
  """The best of `learners` against the best of `rivals`, which should be better, within budgets.

  Args:
    budget: columns of the costs.
    same_wait: whether both have the same waiting time; else each may have any.
    learners: by default those that grow.
    rivals: by default those that do not.
  """
  sides = lambda kind: 1 if kind[LEARNER] in learners else -1 if kind[LEARNER] in rivals else 0
  return lambda runs: _best_of_both(runs.plain().repeated(), budget, sides, [WAIT] if same_wait else [])


def _best_of_both(runs: Runs, budget: Sequence[str], side: Callable[[Kind], int], fields: Sequence[str]) -> list[Cell]:
  """The best kind of run of one side against the best one of the other side, within budgets.

  Both sides choose from their kinds in the same way: if each kind of one side had to stand against the best of the
  other side, whichever side chooses would win. The budgets are the costs of all kinds of both sides near which both
  have one: between NEAR and SLACK of the costs. Budgets with the same effects, at which the same kinds are the best,
  count once.

  Args:
    budget: columns of the costs.
    side: 1 and -1: the sides of a kind, the second one of which should be better; 0: it is on none.
    fields: those in which both sides are alike.
  """
  costs = [mean_costs(runs, column) for column in budget]
  every = [(kind, values, tuple(its[key(kind)] for its in costs)) for kind, values in runs.kinds() if side(kind)]
  found, seen = [], set[object]()
  for kind, _, most in sorted(every, key=lambda each: each[2]):
    within: dict[int, list[tuple[Kind, dict[int, float]]]] = {1: [], -1: []}
    near = set[int]()
    for other, values, spent in every:
      shares = [its / limit for its, limit in zip(spent, most)]
      if max(shares) <= SLACK and key(other, fields) == key(kind, fields):
        within[side(other)].append((other, values))
        near |= {side(other)} if min(shares) >= NEAR else set()
    if len(near) < 2:
      continue
    effects = evidence.log_ratio(*(evidence.best([values for _, values in within[sign]]) for sign in (1, -1)))
    if runs.table["seed"].nunique() < 2:  # only some budgets, those with a single kind on both sides, could be compared
      effects = {}
    if str(effects) not in seen:
      seen.add(str(effects))
      alike = {field: kind[field] for field in fields}
      within_costs = " and ".join(f"{limit:.5g} {_UNITS[column]}" for column, limit in zip(budget, most))
      best = (min(within[sign], key=lambda pair: statistics.mean(pair[1].values()))[0] for sign in (1, -1))
      rivals = ", against ".join(_brief(each, [other for other, _, _ in every], fields) for each in best)
      found.append(Cell(", ".join([*filter(None, [name_of(alike)]), within_costs]) + f": {rivals}", effects,
                        groups(alike)))
  return found


def _brief(kind: Kind, every: Sequence[Kind], fields: Sequence[str]) -> str:
  """A kind, named by the fields in which the kinds of its learner differ, without some fields that others say."""
  its = [other for other in every if other[LEARNER] == kind[LEARNER]]
  return name_of({field: value for field, value in kind.items()
                  if field == LEARNER or (field not in fields and len({str(other[field]) for other in its}) > 1)})


def no_learner_is_always_best(runs: Runs) -> Judged | str | None:
  """Whether every learner has a rival that is better at some budget of compute, or one has none at any.

  The score of a learner at a budget is that of its best kind of runs within it. Each learner is compared with the best
  of the others at three budgets. The lowest one is the dearest of the learners' cheapest kinds, and the highest one the
  cheapest of their dearest ones: beyond them a learner would be the best because the others were not run. The third is
  their geometric mean. Within a factor of two there are too few kinds of runs for several learners to be the best of
  some; then the claim is not measured, and a string says why.

  p of "every learner has a better rival at some budget" is the highest one of the learners, of each the lowest one of
  its budgets, corrected for three. p of "one learner is better than all others at every budget" is the lowest one of
  the learners, corrected for their number, of each the highest one of its budgets.
  """
  runs = runs.plain()
  costs = mean_costs(runs, COMP)
  kinds: dict[str, list[tuple[float, dict[int, float]]]] = collections.defaultdict(list)
  for kind, values in runs.kinds():
    kinds[kind[LEARNER]].append((costs[key(kind)], values))
  if len(kinds) < 2:
    return None
  low, high = (outer(inner(cost for cost, _ in its) for its in kinds.values()) for outer, inner in (
      (max, min), (min, max)))
  if high < 2 * low:
    return "the costs of the learners overlap by less than a factor of two"
  budgets = low, math.sqrt(low * high), high
  within = [{name: [values for cost, values in its if cost <= budget * (1 + 1e-9)] for name, its in kinds.items()}
            for budget in budgets]
  ends: dict[float, str] = {}
  for budget, sides in zip(budgets, within):
    scores = {name: evidence.best(its) for name, its in sides.items()}
    ends[budget] = min(scores, key=lambda name: statistics.mean(scores[name].values())) if all(scores.values()) else "?"
  text = ", ".join(f"`{ends[budget]}` at {budget:.2g}" for budget in budgets)
  worse, better = [], []
  for mine in kinds:
    pairs = [_sign_and_p(evidence.log_ratio(*(evidence.best([values for name, its in sides.items() for values in its
                                                             if (name == mine) == own]) for own in (True, False))))
             for sides in within]
    worse.append(min(1.0, len(budgets) * min(p if sign > 0 else 1.0 for sign, p in pairs)))
    better.append(max(p if sign < 0 else 1.0 for sign, p in pairs))
  agrees, disagrees = max(worse), min(1.0, len(better) * min(better))
  verdict = evidence.AGREES if agrees <= disagrees else evidence.DISAGREES
  return Judged(verdict, f"lowest: {text}", runs.table["seed"].nunique(), min(agrees, disagrees))


def _sign_and_p(effects: dict[int, float]) -> tuple[float, float]:
  """(sign, p) of a mean effect; p is 1 if it cannot be tested."""
  if not effects:
    return 0.0, 1.0
  (tested,) = evidence.estimated(np.array([[*effects.values()]]))
  return float(np.sign(tested.mean)), 1.0 if math.isnan(tested.p) else tested.p


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
    return mean(cells)

  def cells(runs: Runs) -> list[Cell]:
    found = []
    for name, alike in runs.where(runs.table[REPLAY] == 0).apart(WIDTH, WAIT, GROW):
      small, large = sizes(alike)
      if size != "difference":
        found += [Cell(f"{name}, {number(width)}", gains(alike, [width]), shared(alike) | groups({WIDTH: width}))
                  for width in (small if size == "small" else large)]
      elif small and large:
        found.append(Cell(name, minus(gains(alike, small), gains(alike, large)), shared(alike)))
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
      compare = minus if difference else evidence.log_ratio
      found += [cell(kind, compare(kinds[0][1], values)) for kind, values in kinds[1:]]
    return found

  def cells(runs: Runs) -> list[Cell]:
    found = []
    for name, alike in runs.where(runs.table[REPLAY] == 0).apart(WIDTH, WAIT, GROW):
      both = sizes(alike)
      if not difference:
        found += losses(alike, sorted(alike.table[WIDTH].unique()))
      elif all(both):
        loss = [mean([each.effects for each in losses(alike, widths)]) for widths in both]
        found.append(Cell(name, minus(*loss), shared(alike)))
    return found
  return cells


def large_networks_lead_early(runs: Runs) -> list[Cell]:
  """The largest network after a tenth of the stream against the smallest one at its end."""
  runs, tenth = runs.plain(), runs.total // 10
  found = []
  for name, alike in runs.where(runs.table[WAIT] <= tenth).apart(WIDTH):
    small, large = sizes(alike)
    early = [values for kind, values in alike.at(tenth).kinds() if kind[WIDTH] in large[-1:]]
    final = [values for kind, values in alike.kinds("final_error") if kind[WIDTH] in small[:1]]
    if early and final:
      found.append(Cell(name, evidence.log_ratio(final[0], early[0]), shared(alike)))
  return found


def replay_lowers_the_score(runs: Runs) -> list[Cell]:
  """No replay against the most, all else equal, of runs whose stages start from the stage before."""
  return [cell(kind, gain) for kind, gain in _gains(runs)]


def _gains(runs: Runs) -> list[tuple[Kind, dict[int, float]]]:
  """What the most replay gains over none, of each kind without it.

  Stages from scratch without replay have seen only the last data, which is no rival.
  """
  found = []
  for _, alike in runs.repeated().warm().apart(REPLAY):
    kinds = list(alike.kinds())
    if len(kinds) > 1 and kinds[0][0][REPLAY] == 0:
      found.append((kinds[0][0], evidence.log_ratio(kinds[0][1], kinds[-1][1])))
  return found


def replay_helps_less(runs: Runs) -> list[Cell]:
  """How much less replay lowers the score of `gens` than of another learner with the same width and waiting time."""
  gains, same = _gains(runs), lambda kind: key(kind, (WIDTH, WAIT))
  return [cell(kind, minus(gain, least)) for mine, least in gains if mine[LEARNER] == "gens"
          for kind, gain in gains if kind[LEARNER] != "gens" and same(kind) == same(mine)]


def replay_ends_waiting(runs: Runs) -> list[Cell]:
  """The best longer waiting time against the shortest one of the study, with replay."""
  found, first = [], runs.table[WAIT].min()
  for _, alike in runs.where(runs.table[REPLAY] > 0).apart(WAIT, GROW):
    kinds = {kind[WAIT]: (kind, values) for kind, values in alike.kinds()}
    longer = [values for wait, (_, values) in kinds.items() if wait > first]
    if first in kinds and longer:
      kind, values = kinds[first]
      found.append(cell(kind, evidence.log_ratio(evidence.best(longer), values)))
  return found


def waiting_for_all_ends_lowest(runs: Runs) -> list[Cell]:
  """The final error of fixed learners: at the best shorter waiting time, against one training on all data."""
  found = []
  for _, alike in runs.where((runs.table[REPLAY] == 0) & runs.table[LEARNER].isin(FIXED)).apart(WAIT):
    *shorter, (last, final) = sorted(alike.kinds("final_error"), key=lambda pair: pair[0][WAIT])
    if shorter and last[WAIT] == runs.total:
      found.append(cell(last, evidence.log_ratio(evidence.best([values for _, values in shorter]), final)))
  return found


def large_after_one_beats_small(runs: Runs) -> list[Cell]:
  """The smallest mixture after the last mega-batch, against the largest one after the first, both at w = 1."""
  alike = runs.where((runs.table[LEARNER] == "sm") & (runs.table[WAIT] == 1) & (runs.table[STEPS] == 1))
  last, first = ([*alike.at(t).kinds()] for t in (runs.total, 1))
  if len(last) < 2:
    return []
  small, large = (pick(its, key=lambda pair: pair[0][EXPERTS]) for pick, its in ((min, last), (max, first)))
  return [Cell(f"{number(large[0][EXPERTS])} experts", evidence.log_ratio(small[1], large[1]))]


def replay_is_best(runs: Runs) -> list[Cell]:
  """The best kind of run without replay against the best one with it, of each width."""
  runs, found = runs.repeated(), []
  for width in sorted(runs.table[WIDTH].unique()):
    mine = runs.where(runs.table[WIDTH] == width)
    sides = [[its for _, its in mine.where(chosen).kinds()] for chosen in (mine.table[REPLAY] == 0,
                                                                           mine.table[REPLAY] > 0)]
    if all(sides):
      found.append(Cell(f"width {number(width)}", evidence.log_ratio(*map(evidence.best, sides)),
                        groups({WIDTH: width})))
  return found


def replay_costs(low: float, high: float) -> Callable[[Runs], Judged | None]:
  """How many times the multiply-adds replay takes; the claim is that it is between `low` and `high`."""
  def judge(runs: Runs) -> Judged | None:
    ratios: dict[float, list[float]] = {}
    for _, alike in runs.where(runs.table[WAIT] < runs.total).warm().apart(REPLAY):
      kinds = list(alike.kinds(COMP))
      first = kinds[0][0]
      if len(kinds) > 1 and first[REPLAY] == 0 and first[LEARNER] in FIXED:  # others may grow differently with replay
        none, most = (pd.Series(kinds[i][1]).mean() for i in (0, -1))
        ratios.setdefault(first[WAIT], []).append(most / none)
    if not ratios:
      return None
    inside = [low <= ratio <= high for mine in ratios.values() for ratio in mine]
    text = ", ".join(f"{span(ratios[wait])} times at w = {wait:g}" for wait in sorted(ratios))
    return Judged(evidence.AGREES if all(inside) else evidence.IN_PART if any(inside) else evidence.DISAGREES,
                  text, runs.table["seed"].nunique())
  return judge


def replay_is_no_better_trade_off(same_wait: bool) -> Callable[[Runs], list[Cell]]:
  """The best kind of run with replay against the best one without it, within budgets of compute.

  Args:
    same_wait: whether both have the same waiting time; else each may have any.
  """
  sides = lambda kind: 1 if kind[REPLAY] > 0 else -1
  return lambda runs: _best_of_both(runs.repeated(), [COMP], sides, [WAIT] if same_wait else [])


def ordered(field: str, learners: Sequence[str], descending: bool = False,
            with_replay: bool = False) -> Callable[[Runs], list[Cell]]:
  """Kinds of some learners that differ in one field alone: each value against the next one, which should be better.

  Runs that train at most twice do not count.

  Args:
    field: its values ascend from the one that should be worst, as in "hard" and "soft".
    descending: whether they descend instead.
    with_replay: whether only runs with replay count.
  """
  def cells(runs: Runs) -> list[Cell]:
    runs, found = runs.repeated(), []
    chosen = runs.table[LEARNER].isin(learners) & runs.table[field].notna()
    if with_replay:
      chosen &= runs.table[REPLAY] > 0
    for name, alike in runs.where(chosen).apart(field):
      kinds = sorted(alike.kinds(), key=lambda pair: pair[0][field], reverse=descending)
      found += [Cell(f"{name}, {number(worse[field])} and {number(good[field])}",
                     evidence.log_ratio(first, second), groups(good))
                for (worse, first), (good, second) in itertools.pairwise(kinds)]
    return found
  return cells


def waiting_ends_lower(runs: Runs) -> list[Cell]:
  """The last score of texts at the shortest waiting time against each longer one, at any multiple of its steps."""
  found = []
  for name, alike in runs.apart(WAIT, STEPS, GROW):
    kinds = list(alike.at(runs.total).kinds())
    if not kinds:
      continue  # there is no stream
    first = min(kinds, key=lambda pair: (pair[0][WAIT], pair[0][STEPS]))
    found += [Cell(f"{name}, waiting_time {number(kind[WAIT])}, {number(kind[STEPS])} times the steps",
                   evidence.log_ratio(first[1], values),
                   groups(kind) | {STEPS: _steps(runs.total, kind)})
              for kind, values in kinds if kind[WAIT] > first[0][WAIT]]
  return found


def _steps(total: int, kind: Kind) -> str:
  """How many steps a kind takes, against one that does not wait."""
  if kind[STEPS] == 1:
    return "as many steps a stage"
  times = math.ceil(total / kind[WAIT]) * kind[STEPS] / total
  return f"{'as many' if times == 1 else f'{times:g} times the'} steps in all"


def final_size_is_better(runs: Runs, between: bool = False) -> list[Cell]:
  """`gmoe` that does not wait, against `sm` with as many experts from the beginning as it has at the end.

  `between`: against the `sm` with the median number of experts instead.
  """
  found = []
  for mine, values in runs.where(runs.table[WAIT] == 1).kinds():
    rivals = sorted((pair for pair in runs.kinds() if pair[0][LEARNER] == "sm" and mine[LEARNER] == "gmoe"
                     and key(pair[0], (WIDTH, WAIT, STEPS)) == key(mine, (WIDTH, WAIT, STEPS))),
                    key=lambda pair: pair[0][EXPERTS])
    if rivals and (not between or len(rivals) > 2):
      found.append(cell(mine, evidence.log_ratio(values, rivals[len(rivals) // 2 if between else -1][1])))
  return found


def ensembles_beat_mixtures(runs: Runs) -> list[Cell]:
  """The best `sm` against the best `ens`, within budgets of parameters."""
  return _best_of_both(runs, [MEM], lambda kind: {"sm": 1, "ens": -1}.get(kind[LEARNER], 0), [WAIT, STEPS])


def costs_more(learners: Sequence[str], others: Sequence[str], column: str) -> Callable[[Runs], list[Cell]]:
  """Each of `learners` against the dearest kind of each of `others` of the same width and waiting time.

  Args:
    column: of the counts that are compared.
  """
  def above_dearest(mine: dict[int, float], rivals: list[dict[int, float]]) -> dict[int, float]:
    seeds = set.intersection(*map(set, rivals))
    return evidence.log_ratio(mine, {seed: max(values[seed] for values in rivals) for seed in seeds})

  def cells(runs: Runs) -> list[Cell]:
    found = []
    for other in others:
      mine = against(runs.plain(), (other,), learners, above_dearest, column=column)
      found += [each._replace(name=f"{each.name}, against {other}",
                              groups={**each.groups, "other": f"against `{other}`"}) for each in mine]
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
        found.append(Cell(f"{name}, k {k}", evidence.log_ratio(both[0][0][1], both[1][0][1]),
                          shared(alike) | {"k": f"k = {k}"}))
  return found
