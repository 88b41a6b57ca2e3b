"""How often studies without any effect have a verdict on a claim.

    python benchmarks/null_studies.py docs/results --study mnist --repeats 200

Takes the kinds of runs, the seeds and the costs of a study (benchmarks/claims.py), and replaces every score by one that
depends on chance alone. The new logarithms are the study's own, less the mean of each kind, and rotated at random over
the seeds (Langsrud, 2005). So they are as noisy, and the runs of a seed as alike, as in the study; but with three seeds
the noise of all kinds has two dimensions, so that wrong verdicts come together. With --normal they are drawn from a
normal distribution instead, and the runs of a seed share half of the variance. Either way, any verdict on a tested
claim is wrong, except "cannot tell" and "no difference". Prints the share of the repetitions that have a wrong verdict,
and the claims that have one most often. Claims that compare costs are not counted.
"""
import collections
import pathlib
import sys
from collections.abc import Mapping

import claims
import evidence
import numpy as np
import pandas as pd
from claim_list import CLAIMS, STUDIES
from scipy import stats
from study_runs import Runs

from alma_jax import commands
from alma_jax.errors import BadInput


def main() -> None:
  parser = commands.Parser("benchmarks/null_studies.py", __doc__)
  parser.add_argument("results", type=pathlib.Path, help="folder of the studies")
  parser.add_argument("--study", choices=list(STUDIES), default="mnist")
  parser.add_argument("--repeats", type=int, default=200)
  parser.add_argument("--normal", action="store_true", help="scores of one normal distribution")
  args = parser.parse_args()
  studies = claims.read_all(args.results)
  there = {name: runs for name, runs in studies.items() if runs}
  if args.study not in there:
    raise BadInput(f"there are no runs in {args.results / args.study}.")
  rng, wrong = np.random.default_rng(0), []
  for _ in range(args.repeats):
    wrong.append(wrong_verdicts(there, args.study, (normal if args.normal else turned)(there[args.study], rng)))
  count = collections.Counter(verdict for each in wrong for verdict in set(each.values()))
  share = lambda number: f"{number} of {args.repeats} ({number / args.repeats:.1%})"
  print(f"studies with a wrong verdict: {share(sum(map(bool, wrong)))}")
  for verdict, number in count.most_common():
    print(f"  with {verdict!r}: {share(number)}")
  for claim, number in collections.Counter(claim for each in wrong for claim in each).most_common(5):
    print(f"  claim {claim}: {share(number)}")


def wrong_verdicts(studies: Mapping[str, Runs], study: str, runs: Runs) -> dict[int, str]:
  """{number of a claim: its verdict} of a study with such runs, which have no effects, if that is wrong."""
  made: dict[str, Runs | None] = dict.fromkeys(studies)  # without rivals from other studies
  made[study] = runs
  rows = [row for row in claims.rows_of(made) if row[1] == study]
  adjusted = claims.adjusted_of(rows, lambda study: study)
  return {number: said for (number, _, found), p in zip(rows, adjusted)
          if number <= len(CLAIMS) and not isinstance(found, str) and not _is_counted(found)
          for said in [claims.verdict_of(found, p).strip("*")] if said not in evidence.OPEN}


def turned(runs: Runs, rng: np.random.Generator) -> Runs:
  """The runs with the noise of their own scores and final errors, but no effects and no stream."""
  table, num = runs.table.copy(), runs.table["seed"].nunique()
  turn = stats.ortho_group.rvs(num, random_state=rng) * np.sqrt(num / (num - 1))
  kinds, seeds = claims.kinds_of(table), table["seed"]
  for column in _scores(runs):
    logs = np.log(table[column]).groupby([kinds, seeds]).first().unstack()
    rest = logs.sub(logs.mean(axis=1), axis=0)
    made = pd.DataFrame(rest.to_numpy() @ turn, rest.index, rest.columns).stack()
    table[column] = np.exp(made.reindex(pd.MultiIndex.from_arrays([kinds, seeds])).to_numpy())
  return runs._replace(table=table, stream=None)


def normal(runs: Runs, rng: np.random.Generator) -> Runs:
  """The runs with scores and final errors that depend on nothing but their seed and chance, and no stream."""
  table = runs.table.copy()
  for column in _scores(runs):
    of_seed = {seed: rng.normal() for seed in sorted(table["seed"].unique())}
    table[column] = np.exp(0.05 * (table["seed"].map(of_seed) + rng.normal(size=len(table))))
  return runs._replace(table=table, stream=None)


def _scores(runs: Runs) -> list[str]:
  return [column for column in (runs.score, "final_error") if column in runs.table]


def _is_counted(found: evidence.Evidence | claims.Judged) -> bool:
  """Whether a verdict is about costs, which are not tested."""
  return found.exact if isinstance(found, evidence.Evidence) else found.p is None


if __name__ == "__main__":
  sys.exit(commands.exit_code(main))
