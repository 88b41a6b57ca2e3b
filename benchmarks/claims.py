"""Writes the page of the paper's claims, with a verdict on each, from the CSV files of the studies.

    python benchmarks/claims.py docs/results

The argument is the folder of the studies; STUDY/runs.csv holds the runs of each, and STUDY/stream.csv.gz their errors
over the stream. The page is README.md in this folder. A report becomes a study, or replaces it, with

    python benchmarks/claims.py docs/results --keep report --study mnist
"""
import math
import pathlib
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import evidence
import pandas as pd
import paper
from evidence import Cell, Evidence
from paper import EXPERTS, MEM, PREDICT, WIDTH, Runs

from alma_jax import commands
from alma_jax.errors import BadInput

PAGE, RUNS, STREAM = "README.md", "runs.csv", "stream.csv.gz"


class Study(NamedTuple):
  """A study: its name on the page, the sweep that makes its runs, and {field: value} of the runs that count."""
  label: str
  sweep: str
  only: Mapping[str, Any] = {}


STUDIES = {
    "mnist": Study("MNIST", "sweeps/mnist"),
    "mnist_replay": Study("MNIST, replay and growth", "sweeps/mnist_replay"),
    "anytime": Study("MNIST, w = 10, width 32", "sweeps/anytime", {
        "train.patience": 0, "train.label_smoothing": 0.0, "train.weight_decay": 0.0, "stream.schedule": "every"}),
    "mnist_authors": Study("MNIST, authors' early stopping", "sweeps/mnist_authors"),
    "cifar": Study("CIFAR-10, 3 epochs", "sweeps/cifar"),
    "cifar-full": Study("CIFAR-10, 100 epochs", "sweeps/cifar:full"),
    "text": Study("books", "sweeps/text"),
}


class Claim(NamedTuple):
  """A claim of the paper.

  Attributes:
    text: what the paper says.
    source: version, section, figure or table.
    quantity: what is compared, as in "CER of the smaller network, against the larger one"; the number is by how much
      the first is larger, and supports the claim if it is positive.
    studies: those that can say something about it. Those behind `also` are left out as long as they cannot.
    cells: Runs -> cells.
    exact: whether the compared numbers are counts without noise.
    points: whether effects are differences of errors, instead of logarithms of ratios.
  """
  text: str
  source: str
  quantity: str
  studies: Sequence[str]
  also: Sequence[str]
  cells: Callable[[Runs], list[Cell]]
  exact: bool = False
  points: bool = False


_IMAGES, _ALSO = ("mnist", "mnist_authors", "cifar"), ("anytime", "cifar-full")
CLAIMS = [
    Claim("Larger networks have a lower CER", "abstract of an earlier version; Figure 2",
          "CER of a network, against the next larger one", _IMAGES, _ALSO, paper.larger_is_better(WIDTH)),
    Claim("Larger mixtures have a lower perplexity", "Table 2", "average perplexity, against more experts",
          ("text",), (), paper.larger_is_better(EXPERTS)),
    Claim("Ensembles have a lower CER than learners that grow", "abstract of an earlier version; Figures 2 and 7",
          "CER of a growing learner, against the better of `ens` and `umix`", _IMAGES, _ALSO,
          paper.ensembles_are_better),
    Claim("Ensembles have a lower perplexity than learners that grow", "Table 2, Figure 5",
          "average perplexity of a growing learner, against the best `ens`", ("text",), (), paper.ensembles_are_better),
    Claim("Learners that grow cost less compute than ensembles", "abstract of an earlier version; Figure 2",
          "multiply-adds of `ens`, against each growing learner", _IMAGES, _ALSO,
          paper.costs_more(("ens",), paper.GROWING, paper.COMP), True),
    Claim("A fixed network beats a growing one at an equal budget", "Figures 2 and 7",
          "CER of a growing learner, against the best fixed one within its compute and memory",
          ("mnist", "mnist_replay", "mnist_authors", "cifar"), _ALSO, paper.fixed_is_better),
    Claim("Growing helps if the first network is small", "abstract of an earlier version",
          "CER of `sm`, against a growing learner that starts from its network", _IMAGES, ("cifar-full",),
          paper.growing_helps(small=True)),
    Claim("Growing helps language models", "Table 2, Figure 5",
          "average perplexity of `sm`, against a growing learner that starts from its network", ("text",), (),
          paper.growing_helps(small=False)),
    Claim("Of the learners that grow, an ensemble holds the most parameters", "Figure 7",
          "parameters held by `gens`, against other growing learners", _IMAGES, ("cifar-full",),
          paper.costs_more(("gens",), ("gmoe", "ff"), MEM), True),
    Claim("A growing ensemble predicts most dearly", "Table 2",
          "multiply-adds of a prediction of `gens` at the end, against every other learner", ("mnist", "cifar", "text"),
          _ALSO, paper.costs_more(("gens",), ("sm", "ens", "umix", "gmoe", "ff"), PREDICT), True),
    Claim("An intermediate waiting time is best for small networks", "Figure 3",
          "CER at the better of the shortest and the longest waiting time, against the best one between them", _IMAGES,
          ("cifar-full",), paper.waiting_helps("small")),
    Claim("It is best for large networks as well", "not in the paper, which says it of small ones",
          "the same for the larger half of the widths", _IMAGES, ("cifar-full",), paper.waiting_helps("large")),
    Claim("For large networks it helps less", "Figure 3",
          "this gain, as a ratio, of the smaller half of the widths against the larger half", _IMAGES, ("cifar-full",),
          paper.waiting_helps("difference")),
    Claim("The shortest waiting time ends worse", "appendix C.1, Figure 9",
          "final error at the shortest waiting time, against longer ones", _IMAGES, ("cifar-full",),
          paper.short_waits_end_worse(difference=False)),
    Claim("It does so most for small networks", "appendix C.1, Figure 9",
          "this loss in points of error, of the smaller half of the widths against the larger half", _IMAGES,
          ("cifar-full",), paper.short_waits_end_worse(difference=True), points=True),
    Claim("Large networks after a tenth of the stream beat small ones at its end", "appendix C.1, Figure 9",
          "final error of the smallest network, against the largest one after a tenth", ("mnist", "cifar"),
          ("mnist_authors", "cifar-full"), paper.large_networks_lead_early),
    Claim("Replay has the lowest CER", "abstract of an earlier version; Figures 4 and 8",
          "CER without replay, against replay", ("mnist_replay", "cifar"), ("cifar-full",),
          paper.replay_lowers_the_score),
    Claim("Replay is no better trade-off", "Figures 4 and 8",
          "CER with replay, against the best learner without it within the same compute", ("mnist_replay", "cifar"),
          ("cifar-full",), paper.replay_is_no_better_trade_off),
    Claim("Training on all data at once is better than on one mega-batch after the other", "Table 1",
          "perplexity after k mega-batches one after the other, against all k at once", ("text",), (),
          paper.all_at_once_is_better),
]
_HEAD = """# The paper's claims

Every claim of the paper that runs of this package can test, with a verdict. The page is written by
`python benchmarks/claims.py docs/results` from the runs of the studies, `STUDY/runs.csv`.

**How to read it.** The number says by how much the first quantity is larger than the second; positive numbers support
the claim. It is a mean of log ratios over all comparisons that the study has the runs for, with its 95 % interval over
seeds (Student's t; runs of one seed are not independent, so that the seed counts and not the run). Where the best of
several kinds of runs is compared, it is chosen by the other seeds. Then come the numbers of comparisons that are
significant alone, for and against the claim (corrected for their number, Holm), and p, corrected for the number of
claims that are tested on the same data (Holm), so that the verdicts on a study stay when another one is added.

- **agrees**: p is below 0.05, the mean supports the claim, and no comparison is significantly against it.
- **disagrees**: p is below 0.05, and the mean is against the claim.
- **cannot tell**: neither. This is so if there are fewer than three seeds, if the seeds differ too much, and if some
  comparisons are clearly for the claim and others against it.
- **not measured**: there are no runs yet. The command makes them.
- Costs are counts without noise. Their range over all comparisons stands in the place of the interval.

**Commands.** `alma sweep --config=NAME` runs a study and continues it; `configs/NAME.py` says what it costs.
`alma report runs/STUDY --out report` and `python benchmarks/claims.py docs/results --keep report --study STUDY` put its
runs here, and the first command of this page writes the table again.
"""


def main() -> None:
  parser = commands.Parser("benchmarks/claims.py", __doc__)
  parser.add_argument("results", help="folder of the studies")
  parser.add_argument("--keep", metavar="REPORT", help="folder of a report that becomes the study --study")
  parser.add_argument("--study", choices=list(STUDIES))
  args = parser.parse_args()
  results = pathlib.Path(args.results)
  if bool(args.keep) != bool(args.study):
    raise BadInput("--keep and --study go together: a report, and the study that it becomes.")
  if not results.is_dir():
    raise BadInput(f"there is no folder {args.results!r}.")
  if args.keep:
    keep(pathlib.Path(args.keep), results / args.study)
  (results / PAGE).write_text(page(results))


def keep(report: pathlib.Path, study: pathlib.Path) -> None:
  """Copies the runs and the stream of a report into the folder of a study.

  Of the stream only the mega-batches are kept after which the learner was trained.
  """
  if not (report / RUNS).is_file():
    raise BadInput(f"{report} is not the folder of a report; there is no {RUNS} in it.")
  study.mkdir(exist_ok=True)
  runs, stream = _named(pd.read_csv(report / RUNS)), _named(pd.read_csv(report / "stream.csv"))
  if runs["run"].duplicated().any():
    raise BadInput(f"{report} has several runs in folders of the same name; make the report of one sweep.")
  runs.to_csv(study / RUNS, index=False)
  stream[stream["updated"].astype(bool)].to_csv(study / STREAM, index=False, compression={"method": "gzip", "mtime": 0})


def page(results: pathlib.Path) -> str:
  """The text of the page."""
  studies = {name: read(results / name, study.only) for name, study in STUDIES.items()}
  rows = [(claim, name, found) for claim in CLAIMS for name, found in _of_studies(claim, studies)]
  adjusted = [math.nan] * len(rows)
  for study in studies:  # the tests of one study, so that its verdicts stay when another study is added
    mine = [i for i, (_, name, found) in enumerate(rows) if name == study and found]
    for i, p in zip(mine, evidence.holm([rows[i][2].p for i in mine])):
      adjusted[i] = p
  lines, said = ["| claim | data | verdict | number | command |", "| --- | --- | --- | --- | --- |"], None
  for (claim, name, found), p in zip(rows, adjusted):
    text = f"**{claim.text}** ({claim.source}). Number: {claim.quantity}" if claim is not said else ""
    verdict, number = ("not measured", "") if found is None else (
        f"**{evidence.verdict(found, p)}**", number_of(found, p, claim.points))
    lines.append(f"| {text} | {STUDIES[name].label} | {verdict} | {number} | "
                 f"`alma sweep --config={STUDIES[name].sweep}` |")
    said = claim
  return "\n".join([_HEAD, *lines]) + "\n"


def number_of(found: Evidence, adjusted: float, points: bool = False) -> str:
  """The number, what it rests on, and p."""
  form = _points if points else _times if found.exact else _percent
  mean, low, high = map(form, (found.mean, found.low, found.high))
  there = [f"{found.positive} of {found.cells} comparisons for it", f"{found.supporting} significantly",
           f"{found.opposing} significantly against", *([f"{found.left_out} left out"] if found.left_out else []),
           f"{found.seeds} seed{'s' if found.seeds > 1 else ''}"]
  if found.exact:
    there[1:3] = []
  interval = "no interval" if math.isnan(found.low) else f"{low} to {high}"
  return f"{mean} ({interval}); {', '.join(there)}" + ("" if math.isnan(adjusted) else f"; p = {adjusted:.2g}")


def read(folder: pathlib.Path, only: Mapping[str, Any]) -> Runs | None:
  """The Runs of a study whose fields have the values `only`, of the paper's learners; None if there is no file."""
  if not (folder / RUNS).is_file():
    return None
  table = _named(pd.read_csv(folder / RUNS))
  table = table.reindex(columns=[*table, *(field for field in (*paper.FACTORS, *paper.COSTS) if field not in table)])
  chosen = table[paper.LEARNER].isin([*paper.FIXED, *paper.GROWING])
  for field, value in only.items():
    chosen &= table[field] == value
  stream = _named(pd.read_csv(folder / STREAM)) if (folder / STREAM).is_file() else None
  score = "average_perplexity" if "average_perplexity" in table else "cer"
  columns = [*paper.FACTORS, *(c for c in ("run", "seed", "stream.num_megabatches", score, "final_error", *paper.COSTS)
                               if c in table)]
  return Runs(table.loc[chosen, columns], stream, score)


def _of_studies(claim: Claim, studies: Mapping[str, Runs | None]) -> list[tuple[str, Evidence | None]]:
  """(study, Evidence or None) of the rows of a claim."""
  found = []
  for name, runs in studies.items():
    if name in claim.studies or name in claim.also:
      weighed = evidence.weigh(claim.cells(runs), claim.exact) if runs else None
      if weighed or name in claim.studies:
        found.append((name, weighed))
  return found


def _percent(effect: float) -> str:
  return f"{100 * math.expm1(effect):+.1f} %"


def _times(effect: float) -> str:
  return f"{math.exp(effect):.3g} times"


def _points(effect: float) -> str:
  return f"{100 * effect:+.2f} points"


def _named(table: pd.DataFrame) -> pd.DataFrame:
  """With the name of each run folder instead of its path."""
  return table.assign(run=table["run"].str.rsplit("/", n=1).str[-1])


if __name__ == "__main__":
  sys.exit(commands.exit_code(main))
