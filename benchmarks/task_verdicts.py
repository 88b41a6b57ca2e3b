"""Verdicts on what the talk and the papers say about streams of tasks, from a line for each run (task_runs.py)."""
import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import claims
import evidence
import numpy as np
import pandas as pd
import task_runs
from evidence import AGREES, CANNOT_TELL, DISAGREES, Cell, Evidence
from task_runs import LEARNER, NETWORK, SEED, STUDY, TRANSFER

from alma_jax.reports import drawing, statistics, trade_offs
from alma_jax.reports.statistics import Estimate

BASELINE, LOOKING = "independent", ("select", "mntdp")
SHORT, NEVIS, LONG = ("s_minus", "s_in", "s_pl", "s_plus", "s_out"), "nevis_mini", "s_long"
REPEATED, PLASTIC = ("s_minus", "s_in"), "s_pl"  # the last task is like the first one; like none
NOT_MEASURED = "not measured"
MODULES = 20  # that `mntdp` stores at most on a short stream
LONGEST, DEEPER, HUBS = 1/4, 1/3, 1/2  # of `chains`


class Row(NamedTuple):
  """A line of the page: a claim, the data that it is judged by, the verdict, and the number.

  The number is "" if the claim is not measured.
  """
  text: str
  data: str
  verdict: str
  number: str


def rows(runs: pd.DataFrame) -> list[Row]:
  """All lines: each claim for every network that has the runs, or once if none has them."""
  networks = {str(name): of_network(mine) for name, mine in runs.groupby(NETWORK, sort=False)}
  found = []
  for i, nothing in enumerate(of_network(runs.iloc[:0])):
    mine = [(name, its[i]) for name, its in networks.items() if its[i].number]
    found += [_of(row, name) for name, row in mine] or [nothing]
  return found


def of_network(runs: pd.DataFrame) -> list[Row]:
  """The lines of one network."""
  return [*transfers(runs), plasticity(runs, LOOKING), plasticity(runs), modules(runs), forgetting(runs), pareto(runs),
          chains(runs), *long(runs), *(above(runs, stream) for stream in ("s_plus", "s_out"))]


def corrected(runs: pd.DataFrame) -> dict[tuple[str, str], float]:
  """{(stream, learner): p} of all tests behind the claims about a network, corrected for their number (Holm).

  NaN for a test that the runs do not allow. The lines of `above` claim nothing, and are no part of this.
  """
  found = {(REPEATED[0], learner): transfer(runs, learner) for learner in LOOKING} | {(LONG, "mntdp"): gain(runs)}
  ps = {key: math.nan if each is None else each.p for key, each in found.items()}
  ps |= {(PLASTIC, learner): each.p for learner, each in measured(runs, PLASTIC).items()}
  return dict(zip(ps, statistics.holm([*ps.values()])))


def values(runs: pd.DataFrame, stream: str, learner: str, column: str) -> dict[int, float]:
  """{seed: value} of the runs of a learner on a stream; of several lengths of the stream the longest one counts."""
  mine = of_stream(runs, stream)
  mine = mine[(mine[LEARNER] == learner) & mine[column].notna()]
  return {int(seed): float(value) for seed, value in zip(mine[SEED], mine[column])}


def of_stream(runs: pd.DataFrame, stream: str) -> pd.DataFrame:
  """The rows of a stream."""
  mine = runs[runs[STUDY].str.split(",").str[0] == stream]
  return mine[mine["num_tasks"] == mine["num_tasks"].max()]


# ---------------------------------------------------------------------------------------------------------- transfer

def transfers(runs: pd.DataFrame) -> list[Row]:
  """Whether each of LOOKING transfers to the last task of the streams REPEATED."""
  ps = corrected(runs)
  return [Row(f"`{learner}` is better than `{BASELINE}` on the last task: T", " and ".join(REPEATED),
              *_said(transfer(runs, learner), ps[REPEATED[0], learner])) for learner in LOOKING]


def transfer(runs: pd.DataFrame, learner: str) -> Evidence | None:
  """The transfer of a learner to the last task of the streams REPEATED."""
  return evidence.weigh(Cell(stream, values(runs, stream, learner, TRANSFER)) for stream in REPEATED)


def above(runs: pd.DataFrame, stream: str) -> Row:
  """Which learners are above the baseline on the last task of a stream."""
  tested = tests(runs, stream)
  what = f"Who is better than `{BASELINE}` on the last task?"
  if not tested:
    return Row(what, stream, NOT_MEASURED, "")
  names = {side: [f"`{learner}`" for learner, each in tested.items()
                  if each.p < evidence.LEVEL and each.mean * sign > 0]
           for side, sign in (("above", 1), ("below", -1))}
  said = [f"{', '.join(mine)} {side}" for side, mine in names.items() if mine]
  return Row(what, stream, "; ".join(said) or CANNOT_TELL, f"see the table below; {_seeds(runs, stream)}")


def tests(runs: pd.DataFrame, stream: str) -> dict[str, Estimate]:
  """What `measured` returns, with p corrected for the number of learners (Holm)."""
  transfers = measured(runs, stream)
  adjusted = statistics.holm([each.p for each in transfers.values()])
  return {learner: each._replace(p=p) for (learner, each), p in zip(transfers.items(), adjusted)}


def measured(runs: pd.DataFrame, stream: str) -> dict[str, Estimate]:
  """{learner: its transfer to the last task of a stream}."""
  gains = {learner: [*values(runs, stream, learner, TRANSFER).values()]
           for learner in drawing.in_order(set(of_stream(runs, stream)[LEARNER]) - {BASELINE})}
  return {learner: evidence.estimated(np.array([each]))[0] for learner, each in gains.items() if each}


def plasticity(runs: pd.DataFrame, learners: Sequence[str] = ()) -> Row:
  """Whether none of these learners (all, if none are named) is below the baseline by more than one standard error.

  On the last task of the stream PLASTIC. That no mean is so far below is what the claim says, and agrees without a
  test. A mean of three seeds is so far below a true difference of 0 with a probability of 21 % (Student's t).
  Therefore only a significant difference disagrees.
  """
  stream = PLASTIC
  who = "No learner" if not learners else f"Neither {' nor '.join(f'`{learner}`' for learner in learners)}"
  text = f"{who} is below `{BASELINE}` on the last task by more than one standard error: T ± its error"
  ps, said, worst = corrected(runs), [], AGREES
  for learner, transfer_of in measured(runs, stream).items():
    if learners and learner not in learners:
      continue
    (mean, error, *_), p = transfer_of, ps[stream, learner]
    if transfer_of.num < evidence.FEWEST:
      return Row(text, stream, CANNOT_TELL, f"fewer than {evidence.FEWEST} seeds")
    said.append(f"`{learner}` {100 * mean:+.1f} ± {100 * error:.1f}")
    if mean < -error:
      said[-1] = f"**{said[-1]}**" + (f" (p = {p:.2g})" if p < evidence.LEVEL else "")
      worst = DISAGREES if p < evidence.LEVEL or worst == DISAGREES else CANNOT_TELL
  return Row(text, stream, worst if said else NOT_MEASURED,
             f"{', '.join(said)} points; {_seeds(runs, stream)}" if said else "")


# --------------------------------------------------------------------------------------------------- stored modules

def modules(runs: pd.DataFrame) -> Row:
  """Whether `mntdp` stores at most MODULES modules on each short stream."""
  text = f"`mntdp` stores at most {MODULES} modules on each short stream: the most of a run"
  said, most, possible = [], 0, 0
  for stream in SHORT:
    mine = of_stream(runs, stream)
    mine = mine[mine[LEARNER] == "mntdp"]
    if len(mine):
      high = int(mine["num_modules"].max())
      all_of = int(mine["num_parts"].iloc[0] * mine["num_tasks"].iloc[0])
      said.append(f"{stream} {high}")
      most, possible = max(most, high), max(possible, all_of)
  if not said:
    return Row(text, "short streams", NOT_MEASURED, "")
  number = f"{', '.join(said)}; {_seeds(runs, *SHORT)}"
  if possible <= MODULES:
    return Row(text, "short streams", CANNOT_TELL, f"{number}: so small networks cannot have more")
  return Row(text, "short streams", AGREES if most <= MODULES else DISAGREES, number)


def forgetting(runs: pd.DataFrame) -> Row:
  """Whether `mntdp` forgets nothing on short streams, of which no task returns."""
  found = [value for stream in SHORT for value in values(runs, stream, "mntdp", "forgetting").values()]
  text = "`mntdp` forgets nothing: the largest change of an accuracy"
  return Row(text, "short streams", (DISAGREES if any(found) else AGREES) if found else NOT_MEASURED,
             f"{max(map(abs, found)):g} in {len(found)} runs" if found else "")


# ------------------------------------------------------------------------------------------------------- nevis_mini

def pareto(runs: pd.DataFrame) -> Row:
  """Whether `select` is on the Pareto front of (C, E), at a cost between the baseline's and that of `oracle`."""
  text = (f"`select` is on the Pareto front of (C, E), at a cost between those of `{BASELINE}` and `oracle`: "
          f"how far its E is below `{BASELINE}`")
  mine = of_stream(runs, NEVIS)
  points = {name: values(runs, NEVIS, name, "cumulative_error") for name in sorted(set(mine[LEARNER]))}
  costs = {name: values(runs, NEVIS, name, "cumulative_train_flops") for name in points}
  needed = (BASELINE, "select", "oracle")
  if not all(name in points for name in needed):
    return Row(text, NEVIS, NOT_MEASURED, "")
  seeds = sorted(set.intersection(*(set(points[name]) for name in points)))
  on_front, between = [], []
  for seed in seeds:
    front = trade_offs.front([costs[name][seed] for name in points], [points[name][seed] for name in points])
    on_front.append((costs["select"][seed], points["select"][seed]) in front)
    cost = [costs[name][seed] for name in needed]
    between.append(cost == sorted(cost))
  lower = np.array([points[BASELINE][seed] - points["select"][seed] for seed in seeds])
  holds = [front and middle for front, middle in zip(on_front, between)]
  few = len(seeds) < evidence.FEWEST
  verdict = CANNOT_TELL if few or any(holds) != all(holds) else AGREES if all(holds) else DISAGREES
  number = "no seed has a run of each learner"
  if seeds:
    errors = ", ".join(f"`{name}` {np.mean([its[seed] for seed in seeds]):.3f}" for name, its in points.items())
    number = (f"{interval(evidence.estimated(lower[None])[0])}; on the front with {sum(on_front)}, C "
              f"between with {sum(between)} of {len(seeds)} seeds; E: {errors}")
  return Row(text, NEVIS, verdict, number)


def chains(runs: pd.DataFrame) -> Row:
  """Whether the graph of origins of `select` has short chains, many nodes deeper than 1, and a few hubs."""
  text = ("The graph of origins of `select` has short chains (the longest has at most T / 4 arrows), many tasks deeper "
          "than 1 (at least T / 3), and a few hubs (half of the arrows begin at three tasks)")
  mine = of_stream(runs, NEVIS)
  mine = mine[(mine[LEARNER] == "select") & mine["max_depth"].notna()].sort_values(SEED)
  if not len(mine):
    return Row(text, NEVIS, NOT_MEASURED, "")
  num = int(mine["num_tasks"].iloc[0])
  arrows = num - mine["from_scratch"]
  parts = {"chains": mine["max_depth"] <= LONGEST * num, "depths": mine["deeper"] >= DEEPER * num,
           "hubs": mine["top_origins"] >= HUBS * arrows}
  holds = np.all([*parts.values()], axis=0)
  few = len(mine) < evidence.FEWEST
  verdict = CANNOT_TELL if few or holds.any() != holds.all() else AGREES if holds.all() else DISAGREES
  each = lambda column: ", ".join(f"{value:g}" for value in column)
  number = (f"by seed: longest chain {each(mine['max_depth'])}; tasks deeper than 1: {each(mine['deeper'])} of {num}; "
            f"arrows from three tasks: {each(mine['top_origins'])} of {each(arrows)}; mean depth "
            f"{mine['mean_depth'].mean():.2f} (random origins: {task_runs.random_depth(num):.2f})")
  return Row(text, NEVIS, verdict, number)


# ----------------------------------------------------------------------------------------------------------- s_long

def long(runs: pd.DataFrame) -> list[Row]:
  """What is said of the long stream."""
  saved = [a / b for a, b in _paired(runs, "memory").values()]
  mine = of_stream(runs, LONG)
  mine, name = mine[mine[LEARNER] == "mntdp"], LONG
  if len(mine):
    name = mine[STUDY].iloc[0]
  stored = (mine["num_modules"] / (mine["num_parts"] * mine["num_tasks"])).tolist()
  return [Row(f"`mntdp` has at least the average accuracy of `{BASELINE}`: the difference", name,
              *_said(gain(runs), corrected(runs)[LONG, "mntdp"])),
          Row("`mntdp` needs under half the memory of `independent`: its share", name, *_below(saved, 1/2)),
          Row("It stores fewer modules than T networks have: its share", name, *_below(stored, 1))]


def gain(runs: pd.DataFrame) -> Evidence | None:
  """The average accuracy of `mntdp` minus that of the baseline, on the long stream."""
  pairs = _paired(runs, "average_accuracy")
  return evidence.weigh([Cell("", {seed: own - base for seed, (own, base) in pairs.items()})])


def _paired(runs: pd.DataFrame, column: str) -> dict[int, tuple[float, float]]:
  """{seed: values of `mntdp` and of the baseline} on the long stream."""
  own, base = (values(runs, LONG, name, column) for name in ("mntdp", BASELINE))
  return {seed: (own[seed], base[seed]) for seed in sorted(own.keys() & base.keys())}


# ------------------------------------------------------------------------------------------------------------- text

def _of(row: Row, network: str) -> Row:
  """A line that says which network it is about."""
  return row._replace(data=f"{row.data}, {network}")


def interval(of: Estimate) -> str:
  """E.g. "+1.2 (-0.3 to +2.7)", in points."""
  if math.isinf(of.margin):
    return f"{100 * of.mean:+.1f} (no interval)"
  return f"{100 * of.mean:+.1f} ({100 * (of.mean - of.margin):+.1f} to {100 * (of.mean + of.margin):+.1f})"


def _said(found: Evidence | None, p: float) -> tuple[str, str]:
  """(verdict, number) of differences of accuracies."""
  if found is None:
    return NOT_MEASURED, ""
  return evidence.verdict(found, p), f"{claims.number_of(found, points=True)}; {evidence.basis(found, p)}"


def _below(shares: Iterable[float], most: float) -> tuple[str, str]:
  """(verdict, number) of counts, all of which should be shares below `most`."""
  found = sorted(shares)
  if not found:
    return NOT_MEASURED, ""
  verdict = AGREES if found[-1] < most else DISAGREES if found[0] >= most else CANNOT_TELL
  return verdict, f"{found[0]:.1%} to {found[-1]:.1%}; {len(found)} seeds"


def _seeds(runs: pd.DataFrame, *streams: str) -> str:
  """E.g. "3 seeds", of the learner with the fewest."""
  counts = [mine[SEED].nunique() for stream in streams for _, mine in of_stream(runs, stream).groupby(LEARNER)]
  few, many = min(counts), max(counts)
  return f"{few} seed{'s' if few > 1 else ''}" if few == many else f"{few} to {many} seeds"
