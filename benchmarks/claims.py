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
  """A study.

  Attributes:
    label: its name on the page.
    sweep: what `alma sweep --config=` needs to make its runs.
    fields: {field: all values} of its runs of the paper's learners, which tell it from the other studies.
    only: {field: value} of the runs that count.
  """
  label: str
  sweep: str
  fields: Mapping[str, set[Any]]
  only: Mapping[str, Any] = {}


_MNIST = {"dataset.name": {"mnist"}, "train.epochs": {100}, "stream.replay": {0}, "stream.schedule": {"every"},
          "train.patience": {0}}
STUDIES = {
    "mnist": Study("MNIST", "sweeps/mnist", _MNIST),
    "mnist_replay": Study("MNIST, replay and growth", "sweeps/mnist_replay", _MNIST | {"stream.replay": {0, 1}}),
    "anytime": Study("MNIST, w = 10, width 32", "sweeps/anytime", _MNIST | {
        "stream.schedule": {"every", "geometric"}, "train.patience": {0, 25}}, {
        "train.patience": 0, "train.label_smoothing": 0.0, "train.weight_decay": 0.0, "stream.schedule": "every"}),
    "mnist_authors": Study("MNIST, authors' early stopping", "sweeps/mnist_authors", _MNIST | {
        "train.patience": {0, 25}}),
    "cifar": Study("CIFAR-10, 3 epochs", "sweeps/cifar", {"dataset.name": {"cifar10"}, "train.epochs": {3}}),
    "cifar-full": Study("CIFAR-10, 100 epochs", "sweeps/cifar:full", {
        "dataset.name": {"cifar10"}, "train.epochs": {100}}),
    "text": Study("books", "sweeps/text --config.dataset.name=text:part", {
        "dataset.name": {"text:part"}, "train.steps": {300}}),
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
          "CER of a growing learner, against the best fixed one within its compute and memory, if one has 80 % of both",
          ("mnist", "mnist_replay", "mnist_authors", "cifar"), _ALSO, paper.fixed_is_better),
    Claim("Growing helps if the first network is small", "abstract of an earlier version",
          "CER of `sm` up to width 8, against a growing learner that starts from its network", _IMAGES, ("cifar-full",),
          paper.growing_helps(small=True)),
    Claim("Growing a mixture helps language models", "Table 2, Figure 5",
          "average perplexity of `sm`, against `gmoe`, which starts from its network", ("text",), (),
          paper.growing_helps(small=False, learners=("gmoe",))),
    Claim("Growing an ensemble helps language models", "Table 2, Figure 5",
          "average perplexity of `sm`, against `gens`, which starts from its network", ("text",), (),
          paper.growing_helps(small=False, learners=("gens",))),
    Claim("Of the learners that grow, an ensemble holds the most parameters", "Figure 7",
          "parameters held by `gens`, against other growing learners", _IMAGES, ("cifar-full",),
          paper.costs_more(("gens",), ("gmoe", "ff"), MEM), True),
    Claim("A prediction of a growing ensemble costs the most compute", "Table 2",
          "multiply-adds of a prediction of `gens` at the end, against every other learner", ("mnist", "cifar", "text"),
          _ALSO, paper.costs_more(("gens",), ("sm", "ens", "umix", "gmoe", "ff"), PREDICT), True),
    Claim("An intermediate waiting time is best for small networks", "Figure 3",
          "CER of networks up to width 8 at the better of the shortest and the longest waiting time, against the best "
          "one between them", _IMAGES,
          ("cifar-full",), paper.waiting_helps("small")),
    Claim("It is best for large networks as well", "abstract of an earlier version, which names no size; Figure 3 says "
          "it of small ones", "the same for networks of width 32 and more", _IMAGES, ("cifar-full",),
          paper.waiting_helps("large")),
    Claim("For large networks it helps less", "Figure 3",
          "this gain, as a ratio, of networks up to width 8, against those of width 32 and more", _IMAGES,
          ("cifar-full",), paper.waiting_helps("difference")),
    Claim("The shortest waiting time ends worse", "appendix C.1, Figure 9",
          "final error at the shortest waiting time, against longer ones", _IMAGES, ("cifar-full",),
          paper.short_waits_end_worse(difference=False)),
    Claim("It does so most for small networks", "appendix C.1, Figure 9",
          "this loss in points of error, of networks up to width 8, against those of width 32 and more", _IMAGES,
          ("cifar-full",), paper.short_waits_end_worse(difference=True), points=True),
    Claim("Large networks after a tenth of the stream beat small ones at its end", "appendix C.1, Figure 9",
          "final error of the smallest network (up to width 8), against the largest one (from width 32) after a tenth",
          ("mnist", "cifar"),
          ("mnist_authors", "cifar-full"), paper.large_networks_lead_early),
    Claim("Replay lowers the CER", 'abstract of an earlier version, which says "lowest"; Figures 4 and 8',
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
several kinds of runs is compared, it is chosen by the other seeds. The test of such a claim is not exact: in
simulations of equal kinds on three seeds it is significant in 6 to 9 % instead of 5 %. Then come the numbers of
comparisons that are significant alone, for and against the claim (corrected for their number, Holm), and p, corrected
for the number of claims that are tested on the same data (Holm), so that the verdicts on a study stay when another one
is added.

- **agrees**: p is below 0.05, the mean supports the claim, and no comparison is significantly against it.
- **disagrees**: p is below 0.05, the mean is against the claim, and no comparison is significantly for it.
- **cannot tell**: neither. This is so if there are fewer than three seeds, if the seeds differ too much, and if some
  comparisons are clearly for the claim and others against it.
- **not measured**: the number says why. The command makes the runs.
- Costs are counts without noise, which need no test. Their range over all comparisons stands in the place of the
  interval. The runs agree if all comparisons are for the claim, and disagree if none is. In between the verdict is
  **in part**, and the number says at which waiting times how many comparisons are for it.

If a study is not complete, the seeds that at least half of the kinds of its runs have are compared, and kinds that lack
one of them are left out. The number says how many kinds are complete.

**Commands.** `alma sweep --config=NAME` runs a study and continues it; `configs/NAME.py` says what it costs. The text
`part` is made of a folder `books` by `python benchmarks/part.py --text=books --kilobytes=30 --out=part`.
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
    keep(pathlib.Path(args.keep), results, args.study)
  (results / PAGE).write_text(page(results))


def keep(report: pathlib.Path, results: pathlib.Path, study: str) -> None:
  """Copies the runs and the stream of a report into the folder of a study.

  Of the stream only the mega-batches are kept after which the learner was trained. The folder of the data, a path of
  the machine, is left out.

  Raises:
    BadInput: if this is not the report of one sweep, or that of another study.
  """
  if not (report / RUNS).is_file():
    raise BadInput(f"{report} is not the folder of a report; there is no {RUNS} in it.")
  runs, stream = _named(pd.read_csv(report / RUNS)), _named(pd.read_csv(report / "stream.csv"))
  if runs["run"].duplicated().any():
    raise BadInput(f"{report} has several runs in folders of the same name; make the report of one sweep.")
  for field, values in STUDIES[study].fields.items():
    found = set(runs.loc[_of_the_paper(runs), field].dropna()) if field in runs else set()
    if found != values:
      raise BadInput(f"{report} is not a report of the study {study!r}: {field} is {_listed(found)} in it instead of "
                     f"{_listed(values)}.")
  folder = results / study
  folder.mkdir(exist_ok=True)
  runs.drop(columns="dataset.data_dir", errors="ignore").to_csv(folder / RUNS, index=False)
  stream = stream[stream["updated"].astype(bool)]
  stream.to_csv(folder / STREAM, index=False, compression={"method": "gzip", "mtime": 0})


def page(results: pathlib.Path) -> str:
  """The text of the page."""
  studies = {name: read(results / name, study.only) for name, study in STUDIES.items()}
  rows = [(claim, name, found) for claim in CLAIMS for name, found in _of_studies(claim, studies)]
  adjusted = [math.nan] * len(rows)
  for study in studies:  # the tests of one study, so that its verdicts stay when another study is added
    mine = [(i, found.p) for i, (_, name, found) in enumerate(rows) if name == study and isinstance(found, Evidence)]
    for (i, _), p in zip(mine, evidence.holm([p for _, p in mine])):
      adjusted[i] = p
  lines, said = ["| claim | data | verdict | number | command |", "| --- | --- | --- | --- | --- |"], None
  for (claim, name, found), p in zip(rows, adjusted):
    text = f"**{claim.text}** ({claim.source}). Number: {claim.quantity}" if claim is not said else ""
    verdict, number = ("not measured", found) if isinstance(found, str) else (
        f"**{evidence.verdict(found, p)}**", number_of(found, p, claim.points))
    its = studies[name]
    if its and its.complete[0] < its.complete[1]:
      number += f"; {its.complete[0]} of {its.complete[1]} kinds of runs are complete"
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
    if 0 < found.supporting < found.cells and len(found.waits) > 1:
      there[0] += f" ({', '.join(f'{some} of {all_} at w = {wait:g}' for wait, (some, all_) in found.waits.items())})"
  interval = "no interval" if math.isnan(found.low) else f"{low} to {high}"
  return f"{mean} ({interval}); {', '.join(there)}" + ("" if math.isnan(adjusted) else f"; p = {adjusted:.2g}")


def read(folder: pathlib.Path, only: Mapping[str, Any]) -> Runs | None:
  """The Runs of a study whose fields have the values `only`, of the paper's learners, as Runs.whole chooses them.

  Returns:
    None if there is no file.
  """
  if not (folder / RUNS).is_file():
    return None
  table = _named(pd.read_csv(folder / RUNS))
  table = table.reindex(columns=[*table, *(field for field in (*paper.FACTORS, *paper.COSTS) if field not in table)])
  chosen = _of_the_paper(table)
  for field, value in only.items():
    chosen &= table[field] == value
  stream = _named(pd.read_csv(folder / STREAM)) if (folder / STREAM).is_file() else None
  score = "average_perplexity" if "average_perplexity" in table else "cer"
  columns = [*paper.FACTORS, *(c for c in ("run", "seed", "stream.num_megabatches", score, "final_error", *paper.COSTS)
                               if c in table)]
  return Runs(table.loc[chosen, columns], stream, score).whole()


def _of_studies(claim: Claim, studies: Mapping[str, Runs | None]) -> list[tuple[str, Evidence | str]]:
  """(study, Evidence, or why there is none) of the rows of a claim."""
  found: list[tuple[str, Evidence | str]] = []
  for name, runs in studies.items():
    if name in claim.studies or name in claim.also:
      cells = [] if runs is None or runs.table.empty else claim.cells(runs)
      weighed = evidence.weigh(cells, claim.exact)
      why = ("there are no runs yet" if runs is None else "too few seeds" if cells or runs.table.empty
             else "the study lacks the runs that are compared")
      if weighed or name in claim.studies:
        found.append((name, weighed or why))
  return found


def _of_the_paper(table: pd.DataFrame) -> pd.Series:
  """Whether each run is one of a learner of the paper."""
  return table[paper.LEARNER].isin([*paper.FIXED, *paper.GROWING])


def _listed(values: set[Any]) -> str:
  """E.g. "0 and 25"."""
  return " and ".join(sorted(f"{value:g}" if isinstance(value, float) else str(value) for value in values)) or "missing"


def _percent(effect: float) -> str:
  return f"{100 * math.expm1(effect):+.1f} %"


def _times(effect: float) -> str:
  return f"{math.exp(effect):.3g} times"


def _points(effect: float) -> str:
  return f"{100 * effect:+.2f} points"


def _named(table: pd.DataFrame) -> pd.DataFrame:
  """With the name of each run folder instead of its path."""
  return table.assign(run=table["run"].astype(str).str.rsplit("/", n=1).str[-1])  # "17" would be read as a number


if __name__ == "__main__":
  sys.exit(commands.exit_code(main))
