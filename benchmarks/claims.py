"""Writes the page of the paper's claims, with a verdict on each, from the CSV files of the studies.

    python benchmarks/claims.py docs/results

The argument is the folder of the studies; STUDY/runs.csv holds the runs of each, and STUDY/stream.csv.gz their errors
over the stream. The page is README.md in this folder; verdicts.csv and comparisons.csv have what it rests on. The runs
of a report join those of a study, and replace those of the same kind and seed, with

    python benchmarks/claims.py docs/results --keep report --study mnist

To begin a study anew, delete its runs.csv and stream.csv.gz first.
"""
import functools
import math
import pathlib
import re
import sys
import textwrap
from collections.abc import Callable, Mapping
from typing import Any

import evidence
import pandas as pd
from claim_list import CLAIMS, QUESTIONS, STUDIES, Claim
from compared import Judged
from evidence import Cell, Evidence, Spread
from study_runs import COSTS, FACTORS, FIXED, GROWING, LEARNER, Runs, name_of

from alma_jax import commands
from alma_jax.errors import BadInput
from alma_jax.reports import collect, statistics, studies
from alma_jax.reports.findings import NEAR, SLACK
from alma_jax.reports.read import DATA
from alma_jax.sweeps import jobs

_ALL = [*CLAIMS, *QUESTIONS]
PAGE, RUNS, STREAM = "README.md", "runs.csv", "stream.csv.gz"
VERDICTS, COMPARISONS = "verdicts.csv", "comparisons.csv"
_MARGIN = f"{100 * math.expm1(evidence.MARGIN):.0f} %"


_HEAD = """# What we found

The paper makes claims, and we ran the experiments again: {num} runs. The short version, with 95 % intervals
in brackets:

{short}

{matrix}

- **agrees**, **disagrees**: the mean is significantly for the claim or against it, and no comparison is significantly
  opposed.
- **depends**: significant both ways; the page of the study says on what.
- **in part**: only some comparisons of costs support the claim.
- **no difference**: an equivalence test shows that the mean is within {margin} of zero, and neither the mean nor any
  single comparison is significant. Single comparisons may still differ by more.
- **cannot tell**: fewer than three seeds, or the mean is neither significant nor shown to be within {margin} of zero.
  `verdicts.csv` estimates how many seeds would make it significant, if it and its standard deviation stayed the same.
- An empty cell was not measured. `alma sweep --config=sweeps/cifar:full` has the runs that CIFAR-10 lacks.

A number says by how much the first of [two quantities](#what-we-compare) exceeds the second: the geometric mean over
all comparisons. A positive percentage or a multiple above 1 supports the claim.

Each study has a page. Its command runs the study, or continues it:

{studies}

Beyond the paper: [the anytime learner](anytime/README.md), [streams of tasks](tasks/README.md), [flat hard
mixtures](tasks/experts/README.md), [flat mixtures and paths](tasks/composition/README.md),
[Branch-Train-Merge](tasks/branch_train_merge/README.md), and [speed and memory](../results.md).

## Further questions

The paper leaves these open, or its code decides them. We correct them separately from the claims.

{questions}

## What we compare

In brackets: where the paper says it ([arXiv 2106.09563](https://arxiv.org/abs/2106.09563) of 2022; A and B are the
abstracts of two earlier versions).
"""
# The findings in short: a sentence with the numbers of rows and their intervals, and the verdicts on which it rests,
# {{(claim, study): verdict}}. A sentence whose verdicts have changed is left out.
_SHORT = [
    ("**Larger networks win.** Take the next smaller network, and the CER rises by {0} on MNIST and by {1} on "
     "CIFAR-10.", {(1, "mnist"): "agrees", (1, "cifar"): "agrees", (1, "mnist_authors"): "agrees"}),
    ("**Ensembles beat learners that grow,** at the same width and waiting time and up to five times the compute. "
     "The CER of growing learners is {0} higher on MNIST and {1} higher on CIFAR-10.",
     {(3, "mnist"): "agrees", (3, "cifar"): "agrees", (3, "mnist_authors"): "agrees"}),
    ("**Train the networks of an ensemble apart only if they are large.** On MNIST, five networks trained as one "
     "(UMix) have a CER {0} higher than five trained apart (Ens), from width 32 on. Up to width 8, Ens has the higher "
     "CER, by {1}. At equal compute, a single network beats Ens: its CER is {2} lower.",
     {(27, "mnist"): "agrees", (26, "mnist"): "agrees", (28, "mnist"): "disagrees"}),
    ("**Growing does not pay at equal memory:** the CER of the best growing learner is {0} higher on MNIST and {1} "
     "higher on CIFAR-10. At equal training compute, mixtures and networks that grow lose to the best fixed learner, "
     "by {2} on MNIST and {3} on CIFAR-10. Only *ensembles* that grow win, and only on MNIST: if they count too, the "
     "CER of the best growing learner is {4} lower, and {5} lower with the authors' early stopping. The first of these "
     "leads is not significant if all studies of MNIST are corrected together. On CIFAR-10 the best growing learner "
     "still loses, by {6}. [More on growing](growth.md).",
     {(7, "mnist"): "agrees", (7, "cifar"): "agrees", (40, "mnist"): "agrees", (40, "cifar"): "agrees",
      (6, "mnist"): "disagrees", (6, "mnist_authors"): "disagrees", (6, "cifar"): "agrees"}),
    ("**The shortest waiting time ends worst.** If you train on every mega-batch, the final error is {0} higher on "
     "MNIST and {1} higher on CIFAR-10.", {(18, "mnist"): "agrees", (18, "cifar"): "agrees"}),
    ("**Replay helps, but you pay for it.** Without it the CER is {0} higher on MNIST and {1} higher on CIFAR-10. At "
     "equal compute the CER *with* it is {2} higher on MNIST.",
     {(21, "mnist_replay"): "agrees", (21, "cifar"): "agrees", (24, "mnist_replay"): "agrees"}),
    ("**Having all data at once is better.** Trained piece by piece, with as many steps, language models end with a "
     "perplexity {0} higher.", {(25, "text"): "agrees"}),
]
# Columns of the matrix: data sets, and their studies; the first one that measured a claim fills the cell.
_COLUMNS = {"MNIST": ("mnist", "mnist_replay", "replay"), "MNIST, stopped early": ("mnist_authors",),
            "CIFAR-10": ("cifar", "cifar-full"), "small text": ("text",)}
_METHOD = """
## How the verdicts are made

- **p.** Each comparison gives a log ratio for each seed (in points: a difference). We average the comparisons of a seed
  and test the averages (t test, two-sided), corrected for all claims, or all further questions, on the same study
  (Holm). Significant means p below 0.05. Intervals are not corrected.
{few_seeds}
- **Groups.** We also test each learner, width and waiting time, and single comparisons, with their own variances alone,
  corrected for their number. In `verdicts.csv`, ▲ marks those significantly for the claim, ▼ those against it.
- **The best of several kinds of runs** is chosen on another seed than the one it is compared on.
- **No difference.** If the mean is not significant, we test for equivalence: is it within {margin} of zero? (Two
  one-sided t tests: Schuirmann, 1987, [doi:10.1007/BF01068419](https://doi.org/10.1007/BF01068419).) The variance and
  the correction are the same as above. So we expect a wrong difference in at most 5 % of all studies, and a wrong "no
  difference" in at most 5 %. If a group or a single comparison is significant, the verdict is "cannot tell". Effects
  in points, costs and claim 12 have no such test. We chose {margin} after we had seen the results; {smaller} of
  the {sizes} significant means are below it, and keep their verdicts.
- **Wrong verdicts.** We simulated studies without any effect, from the noise in the runs of a real one. In them, any
  verdict other than "cannot tell" or "no difference" is wrong. Of 100 made from CIFAR-10, 6 had a wrong verdict; of
  100 from small text, 6; of 100 from replay and growth on MNIST, 2; of 50 from MNIST, 1; of 50 from MNIST with noise of
  one normal distribution (`--normal`), 4 (`python benchmarks/null_studies.py docs/results --study cifar --repeats
  100`). We also simulated 300 studies of fifteen claims with a true effect of exactly {margin}. In 15 of them, at least
  one claim had the verdict "no difference" (tests/studies/test_evidence.py).
- **Costs** are counted, not tested.
- **Within a budget,** both sides choose their best kind of run. A budget is the cost of a kind of run, if both sides
  have a kind that costs {near} to {slack} times as much.
- **Waiting times** are equal on both sides, unless the quantity says "any".
- **What counts.** Runs with replay count for claims about replay and training from scratch only. Runs with two
  trainings do not count in comparisons of growth or replay with none.
- **The compute of replay** is (S + 1) / 2 times that without, at S stages. The paper's 4.5 is the extra compute beyond
  one pass at S = 10. Its 122.5 is (1 + ... + 49) / 10, probably a slip for (1 + ... + 49) / 50 = 24.5, at S = 50.
"""
_FEW_SEEDS = """- **Few seeds.** Three seeds say little about how much an average varies, so we also use how much the
study's other comparisons vary (a moderated t test: Smyth, 2004,
[doi:10.2202/1544-6115.1027](https://doi.org/10.2202/1544-6115.1027)). We fit a line to the variances of all comparisons
and averages, against the number of comparisons averaged (both as logarithms). The less the variances scatter around the
line, beyond the scatter that three seeds cause, the more the line counts. In further seeds, it is worth {worth}. We
test with the mean of the claim's own variance and the line's, weighted by their degrees of freedom. Effects in points
and claim 12 are tested with their own variance alone."""
_COMMANDS = """
## The files

`python benchmarks/claims.py docs/results` writes this page and two tables from the runs in `STUDY/runs.csv`:

- `verdicts.csv`: each claim and study, with its interval, p, the p of the equivalence test, the seeds that would make
  it significant, groups, and the command for missing runs.
- `comparisons.csv`: each comparison, as a ratio (1.1 for +10 %) or in points.

To add a seed, run `alma sweep --config=sweeps/STUDY --seeds=3`, and then:

    alma report runs/STUDY --out report
    python benchmarks/claims.py docs/results --keep report --study STUDY

`configs/NAME.py` says what a study costs. The text `part` is made from a folder `books`:

    python benchmarks/part.py --text=books --kilobytes=30 --out=part
"""
# A claim about a study: its number in CLAIMS from 1, the study, and what the runs say, or why they say nothing.
Row = tuple[int, str, Evidence | Judged | str]


def main() -> None:
  parser = commands.Parser("benchmarks/claims.py", __doc__)
  parser.add_argument("results", help="folder of the studies")
  parser.add_argument("--keep", metavar="REPORT", help="folder of a report whose runs join the study --study")
  parser.add_argument("--study", choices=list(STUDIES))
  args = parser.parse_args()
  results = pathlib.Path(args.results)
  if bool(args.keep) != bool(args.study):
    raise BadInput("--keep and --study go together: a report, and the study that its runs join.")
  if not results.is_dir():
    raise BadInput(f"there is no folder {args.results!r}.")
  if args.keep:
    print(keep(pathlib.Path(args.keep), results, args.study))
  (results / PAGE).write_text(page(results))
  verdicts(results).to_csv(results / VERDICTS, index=False)
  comparisons(results).to_csv(results / COMPARISONS, index=False, float_format="%.6g")


def keep(report: pathlib.Path, results: pathlib.Path, study: str) -> str:
  """Adds the runs and the stream of a report to a study; runs of the same kind and seed are replaced.

  Of the stream only the mega-batches are kept after which the learner was trained. The folder of the data, a path of
  the machine, is left out.

  Returns:
    A sentence: how many runs are new, replaced, and there in all.

  Raises:
    BadInput: if this is not the report of one sweep, that of another study, or one whose runs cannot be compared with
      those of the study. Nothing is written then.
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
  _check_alike(runs, report / RUNS)
  runs, stream = runs.drop(columns="dataset.data_dir", errors="ignore"), stream[stream["updated"].astype(bool)]
  folder, others, num = results / study, runs.iloc[:0], len(runs)
  if (folder / RUNS).is_file():
    there = _named(pd.read_csv(folder / RUNS))
    others = _others(there, runs, report)
    num -= len(there) - len(others)
  if len(others):
    runs = pd.concat([others, runs], ignore_index=True)
    _check_alike(runs, f"{folder / RUNS} with the runs of {report}")
    if (folder / STREAM).is_file():
      kept = _named(pd.read_csv(folder / STREAM))
      stream = pd.concat([kept[kept["run"].isin(others["run"])], stream], ignore_index=True)
  folder.mkdir(parents=True, exist_ok=True)
  runs.to_csv(folder / RUNS, index=False)
  stream.to_csv(folder / STREAM, index=False, compression={"method": "gzip", "mtime": 0})
  return f"{study}: {num} new runs, {len(runs) - len(others) - num} replaced, {len(runs)} in all"


def _others(there: pd.DataFrame, runs: pd.DataFrame, report: pathlib.Path) -> pd.DataFrame:
  """The runs of a study that are not replaced by those of a report."""
  kinds, old = dict(zip(runs["run"], kinds_of(runs, "seed"))), kinds_of(there, "seed")
  for name, kind in zip(there["run"], old):
    if kinds.get(name, kind) != kind:
      raise BadInput(f"{report}: its run {name} is another kind of run than that of the study: {kinds[name]}.")
  return there[~(there["run"].isin(kinds) | (_of_the_paper(there) & old.isin(set(kinds.values()))))]


def page(results: pathlib.Path) -> str:
  """The text of the page."""
  rows, adjusted, table = _judged(results)
  cells: dict[tuple[int, str], list[tuple[str, str]]] = {}  # [(verdict, number)] of a claim in a column
  for (number, study, _), line in zip(rows, table.to_dict("records")):
    column = next(name for name, studies in _COLUMNS.items() if study in studies)
    first = re.match(r"[-+\d][^,(]*", line["number"])  # of several, without an interval
    cells.setdefault((number, column), []).append((line["verdict"].strip("*"), first[0].strip() if first else ""))
  cells = {key: [each for each in its if "not measured" not in each[0]] or its for key, its in cells.items()}
  labels = [f"- {_data(results, study)}: `alma sweep --config={STUDIES[study].sweep}`" for study in STUDIES
            if (results / study / RUNS).is_file()]
  head = _HEAD.format(short=_short(rows, adjusted), matrix=_matrix(cells, range(len(CLAIMS))), num=_num_runs(results),
                      margin=_MARGIN,
                      questions=_matrix(cells, range(len(CLAIMS), len(_ALL))), studies="\n".join(labels))
  compared = [f"{number}. {claim.quantity} ({claim.source})" for number, claim in enumerate(_ALL, 1)]
  smaller, sizes = _significant(rows, adjusted)
  few_seeds = _bullet(_FEW_SEEDS.format(worth=_worth(rows)))
  method = _METHOD.format(near=NEAR, slack=SLACK, few_seeds="\n".join(few_seeds), margin=_MARGIN,
                          smaller=smaller, sizes=sizes).rstrip()
  return "\n".join([head.rstrip(), "", *compared, method, *_together(rows, adjusted)]) + "\n" + _COMMANDS


def verdicts(results: pathlib.Path) -> pd.DataFrame:
  """A row for each claim and study: the verdict, what its number rests on, and the command that makes missing runs."""
  return _judged(results)[2].map(lambda cell: cell.strip("*") if isinstance(cell, str) else cell)


def _judged(results: pathlib.Path) -> tuple[list[Row], list[float], pd.DataFrame]:
  """(rows of the page, p of each, corrected, a table of the verdicts)."""
  studies = read_all(results)
  rows = rows_of(studies)
  adjusted, lines = adjusted_of(rows, lambda study: study), []
  for (number, study, found), p in zip(corrected(rows, lambda study: study), adjusted):
    claim, runs = _ALL[number - 1], studies[study]
    lines.append({"claim": number, "text": claim.text, "study": STUDIES[study].label, "verdict": verdict_of(found, p),
                  "number": _number(found, claim.points),
                  **_counts(found, p, claim.points, runs.complete if runs else (0, 0)),
                  "command": _command(results, claim, study, found)})
  return rows, adjusted, pd.DataFrame(lines)


def _short(rows: list[Row], adjusted: list[float]) -> str:
  """A list of the findings whose verdicts are those that they were written for."""
  there = {(number, study): (verdict_of(found, p).strip("*"), found)
           for (number, study, found), p in zip(rows, adjusted)}
  told = [_wrapped(text.format(*(_size(there[row][1]) for row in rests))) for text, rests in _SHORT
          if all(there.get(row, ("", ""))[0] == verdict for row, verdict in rests.items())]
  return "\n".join(f"{i}. {text}" for i, text in enumerate(told, 1))


def _size(found: Any) -> str:
  """A significant effect without its sign, e.g. "29.7 % (28.2 to 31.2)"."""
  low, high = sorted(abs(100 * math.expm1(effect)) for effect in (found.low, found.high))
  return f"{abs(100 * math.expm1(found.mean)):.1f} % ({low:.1f} to {high:.1f})"


def _worth(rows: list[Row]) -> str:
  """How many further seeds the other comparisons of each study count as."""
  worth = {study: found.freedom - found.seeds + 1 for _, study, found in rows
           if isinstance(found, Evidence) and found.freedom > found.seeds - 1}
  return ", ".join(f"{number:.1f} ({STUDIES[study].label})" for study, number in worth.items()) or "0"


def _significant(rows: list[Row], adjusted: list[float]) -> tuple[int, int]:
  """(how many significant effects are below the margin, number of significant effects)."""
  sizes = [abs(found.mean) for (number, _, found), p in zip(rows, adjusted)
           if isinstance(found, Evidence) and p < evidence.LEVEL and not _ALL[number - 1].points]
  return sum(size < evidence.MARGIN for size in sizes), len(sizes)


def _bullet(text: str) -> list[str]:
  return textwrap.wrap(text, 120, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)


def _wrapped(text: str) -> str:
  return "\n".join(textwrap.wrap(text, 117, subsequent_indent="   ", break_long_words=False, break_on_hyphens=False))


def _matrix(cells: Mapping[tuple[int, str], list[tuple[str, str]]], places: range) -> str:
  """An HTML table of the verdicts and numbers, claims x data sets; the site colours the cells by their classes.

  Args:
    cells: {(number, column): [(verdict, number)]}.
    places: those of the claims in the list of all.
  """
  columns = [name for name in _COLUMNS if any((place + 1, name) in cells for place in places)]
  head = "".join(f"<th>{name}</th>" for name in columns)
  lines = ['<div class="matrix">', "<table>", f"<tr><th>claim</th>{head}</tr>"]
  for place in places:
    said = [cells.get((place + 1, name), [("", "")])[0] for name in columns]
    lines.append(f"<tr><td>{place + 1}. {_ALL[place].text}</td>" + "".join(
        f'<td class="{verdict.replace(" ", "-")}">{verdict}<br>{number}</td>'
        if verdict not in ("", "not measured") else "<td></td>" for verdict, number in said) + "</tr>")
  return "\n".join([*lines, "</table>", "</div>"])


def _num_runs(results: pathlib.Path) -> str:
  """The number of runs of all studies."""
  paths = [results / study / RUNS for study in STUDIES]
  return f"{sum(len(pd.read_csv(path, usecols=['seed'])) for path in paths if path.is_file()):,}"


def comparisons(results: pathlib.Path) -> pd.DataFrame:
  """A row for each comparison of each claim that is tested or counted: its mean effect and the effect of each seed."""
  found = []
  for (number, name), (cells, _) in _found(read_all(results)).items():
    form = (lambda effect: 100 * effect) if _ALL[number - 1].points else math.exp
    for cell in cells:
      effects = {f"seed {seed}": form(effect) for seed, effect in sorted(cell.effects.items())}
      if effects:
        mean = form(sum(cell.effects.values()) / len(cell.effects))
        found.append({"claim": number, "study": name, "comparison": cell.name, "mean": mean, **effects})
  return pd.DataFrame(found)


def number_of(found: Evidence, points: bool = False) -> str:
  """The mean effect, with its interval."""
  form, unit = _form(found, points)
  interval = "no interval" if math.isinf(found.low) else f"{form(found.low)} to {form(found.high)}"
  return f"{form(found.mean)}{unit} ({interval})"


def read_all(results: pathlib.Path) -> dict[str, Runs | None]:
  return {name: read(results / name, study.only) for name, study in STUDIES.items()}


def rows_of(studies: Mapping[str, Runs | None]) -> list[Row]:
  """The rows of the page, the claims in their order."""
  rows: list[Row] = []
  for (number, name), (cells, said) in _found(studies).items():
    runs = studies[name]
    why = ("there are no runs yet" if runs is None else "too few seeds" if cells or runs.table.empty
           else "the study lacks the runs that are compared")
    if said or name in _ALL[number - 1].studies:
      rows.append((number, name, said or why))
  return rows


def corrected(rows: list[Row], family: Callable[[str], str]) -> list[Row]:
  """The rows with the p of the equivalence tests corrected, as `adjusted_of` corrects p."""
  within = adjusted_of(rows, family, lambda each: each.p_equivalent if isinstance(each, Evidence) else None)
  return [(number, study, found._replace(p_equivalent=p) if isinstance(found, Evidence) else found)
          for (number, study, found), p in zip(rows, within)]


def adjusted_of(rows: list[Row], family: Callable[[str], str],
                p_of: Callable[[Evidence | Judged], float | None] = lambda each: each.p) -> list[float]:
  """p of each row, corrected for the claims, or the questions, on studies of the same family; NaN without a test."""
  found = [math.nan] * len(rows)
  of_row = [(family(study), number > len(CLAIMS)) for number, study, _ in rows]
  ps = {i: p for i, (_, _, each) in enumerate(rows) if not isinstance(each, str) and (p := p_of(each)) is not None}
  for name in set(of_row):
    mine = [i for i in ps if of_row[i] == name]
    for i, p in zip(mine, statistics.holm([ps[i] for i in mine])):
      found[i] = p
  return found


def _together(rows: list[Row], adjusted: list[float]) -> list[str]:
  """What the verdicts would be if all studies of the same data were corrected together."""
  data = lambda study: STUDIES[study].data
  both = zip(corrected(rows, lambda study: study), adjusted, corrected(rows, data), adjusted_of(rows, data))
  changed = [f"claim {number} on {STUDIES[study].label} (p = "
             f"{theirs if mine < evidence.LEVEL else joint.p_equivalent:.2g})"
             for (number, study, own), mine, (_, _, joint), theirs in both
             if verdict_of(own, mine) != verdict_of(joint, theirs)]
  text = "- **Studies of the same data** share seeds, so they are not independent. We correct each by itself. "
  return _bullet(text + (
      f"If we corrected all claims on the same data together, these would no longer be significant: "
      f"{', '.join(changed)}." if changed else
      "If we corrected all claims on the same data together, no verdict would change."))


def verdict_of(found: Evidence | Judged | str, p: float) -> str:
  """The cell of the verdict; a string says why there is none."""
  if isinstance(found, str):
    return "*not measured*"
  if isinstance(found, Evidence):
    return f"**{evidence.verdict(found, p)}**"
  is_known = found.seeds >= evidence.FEWEST and (found.p is None or p < evidence.LEVEL)
  return f"**{found.verdict if is_known else evidence.CANNOT_TELL}**"


def _command(results: pathlib.Path, claim: Claim, study: str, found: Evidence | Judged | str) -> str:
  """The command that makes the runs of a row; "" if there is none that makes what is missing."""
  larger = STUDIES[study].larger
  if isinstance(found, str) and _num_there(results, study) == len(_seeds(study)):
    return f"`alma sweep --config={STUDIES[larger].sweep}`" if larger in claim.also else ""
  return f"`alma sweep --config={STUDIES[study].sweep}`"


def _number(found: Evidence | Judged | str, points: bool) -> str:
  if isinstance(found, Evidence):
    return number_of(found, points)
  return found.number if isinstance(found, Judged) else found


def _counts(found: Evidence | Judged | str, p: float, points: bool, complete: tuple[int, int]) -> dict[str, str]:
  """The cells that say what a number rests on. `complete`: see Runs."""
  cells = dict.fromkeys(("comparisons", "for it", "lowest", "median", "highest", "seeds", "p", "p equivalent",
                         "would decide", "where"), "")
  if isinstance(found, str):
    return cells
  cells |= {"seeds": str(found.seeds), "p": "" if math.isnan(p) else f"{p:.2g}"}
  if isinstance(found, Judged):
    return cells
  cells["p equivalent"] = "" if math.isnan(found.p_equivalent) or p < evidence.LEVEL else f"{found.p_equivalent:.2g}"
  if verdict_of(found, p).strip("*") == evidence.CANNOT_TELL and not math.isnan(p):
    more = evidence.seeds_to_decide(found, p)
    cells["would decide"] = f"{more} seeds" if more else f"over {evidence.MOST_SEEDS} seeds"
  form, _ = _form(found, points)
  marks = {1: " ▲", -1: " ▼", 0: ""}
  where = [f"{group.value}{marks[group.sign]}: {group.positive} of {group.cells}" for group in found.conditions()]
  is_mixed = 0 < found.positive < found.cells or len(found.signs()) == 2
  remarks = [", ".join(where)] if where and is_mixed else []
  alone = [f"{num} {mark}" for num, mark in ((found.supporting, "▲"), (found.opposing, "▼")) if num]
  if alone and is_mixed and not found.exact:
    remarks.append(f"single comparisons: {', '.join(alone)}")
  if found.left_out:
    remarks.append(f"{found.left_out} left out")
  if complete[0] < complete[1]:
    remarks.append(f"{complete[0]} of {complete[1]} kinds of runs are complete")
  return cells | {"comparisons": str(found.cells), "for it": str(found.positive), "where": "; ".join(remarks),
                  **dict(zip(("lowest", "median", "highest"), map(form, found.range)))}


def _form(found: Evidence, points: bool) -> tuple[Callable[[float], str], str]:
  """(how to write an effect, unit)."""
  if points:
    return lambda effect: f"{100 * effect:+.2f}", " points"
  if found.exact:
    return lambda effect: f"{math.exp(effect):.3g}", " times"
  return lambda effect: f"{100 * math.expm1(effect):+.1f}", " %"


def _data(results: pathlib.Path, study: str) -> str:
  """The name of a study's data, with a link to its page, and with its runs if some are missing."""
  label, path = STUDIES[study].label, results / study
  text = f"[{label}]({study}/{PAGE})" if (path / PAGE).is_file() else label
  there, every = _num_there(results, study), len(_seeds(study))
  return f"{text}, {there} of {every} runs" if 0 < there < every else text


def _num_there(results: pathlib.Path, study: str) -> int:
  """The number of runs that a study has with the seeds of its sweep."""
  path = results / study / RUNS
  return int(pd.read_csv(path, usecols=["seed"])["seed"].isin(_seeds(study)).sum()) if path.is_file() else 0


@functools.cache
def _seeds(study: str) -> list[int]:
  """The seed of each run of a study's sweep."""
  return [point["seed"] for point in jobs.load(STUDIES[study].sweep).points]


def read(folder: pathlib.Path, only: Mapping[str, Any]) -> Runs | None:
  """The Runs of a study whose fields have the values `only`, of the paper's learners, as Runs.whole chooses them.

  Returns:
    None if there is no file.

  Raises:
    BadInput: if runs that would be compared have different data or precisions.
  """
  if not (folder / RUNS).is_file():
    return None
  table = _named(pd.read_csv(folder / RUNS))
  _check_alike(table, folder / RUNS)
  table = table.reindex(columns=[*table, *(field for field in (*FACTORS, *COSTS) if field not in table)])
  chosen = _of_the_paper(table)
  for field, value in only.items():
    chosen &= table[field] == value
  stream = _named(pd.read_csv(folder / STREAM)) if (folder / STREAM).is_file() else None
  score = "average_perplexity" if "average_perplexity" in table else "cer"
  columns = [*FACTORS, *(c for c in ("run", "seed", "stream.num_megabatches", score, "final_error", *COSTS)
                         if c in table)]
  return Runs(table.loc[chosen, columns], stream, score).whole()


_Said = Evidence | Judged | str | None


def _found(studies: Mapping[str, Runs | None]) -> dict[tuple[int, str], tuple[list[Cell], _Said]]:
  """{(number of a claim, study): (its comparisons, what they say)}, of the studies that a claim names.

  Of several orders of the seeds (evidence.orders), the one that says least counts. Claims in points and claims about
  counts have no part in the Spread of a study, which is about logarithms of ratios.
  """
  compared = {(number, name): _compared(claim, name, studies) for number, claim in enumerate(_ALL, 1)
              for name in studies if name in (*claim.studies, *claim.also)}
  usual = {number for number, claim in enumerate(_ALL, 1) if not claim.points and not claim.exact}
  spreads = {name: Spread.of(cells for (number, study), (orders, _) in compared.items()
                             if study == name and number in usual for cells in orders) for name in studies}
  found: dict[tuple[int, str], tuple[list[Cell], _Said]] = {}
  for (number, name), (orders, said) in compared.items():
    known = (spreads[name], evidence.MARGIN) if number in usual else (evidence.NOTHING,)
    weighed = [evidence.weigh(cells, _ALL[number - 1].exact, *known) for cells in orders]
    if orders and None not in weighed:
      place, said = evidence.weakest([each for each in weighed if each])
      orders = orders[place:]
    found[number, name] = orders[0] if orders else [], said
  return found


def _compared(claim: Claim, study: str, studies: Mapping[str, Runs | None]) -> tuple[list[list[Cell]], _Said]:
  """(comparisons in each order of the seeds, what they say without a test) of the runs of a study.

  A claim about all learners takes those of other studies, too.
  """
  runs = studies[study]
  if runs is not None and claim.of_all:
    for more in filter(None, (studies[name] for name in STUDIES[study].same)):
      runs = runs.joined(more)
  if runs is None or runs.table.empty:
    return [], None
  orders: list[list[Cell]] = []
  judged: list[Judged] = []
  for labels in evidence.orders(runs.table["seed"].unique()):
    found, seed_of = claim.cells(runs.relabelled(labels)), {label: seed for seed, label in labels.items()}
    if isinstance(found, Judged):
      judged.append(found)
    elif isinstance(found, list):
      orders.append([cell._replace(effects={seed_of[label]: value for label, value in cell.effects.items()})
                     for cell in found])
    else:
      return [], found
  return orders, max(judged, key=lambda each: each.p or 0.0) if judged else None


def _of_the_paper(table: pd.DataFrame) -> pd.Series:
  """Whether each run is one of a learner of the paper."""
  return table[LEARNER].isin([*FIXED, *GROWING])


def _check_alike(runs: pd.DataFrame, path: object) -> None:
  """Raises BadInput unless the runs of the paper's learners can be compared.

  They have the same data and precision, those of a kind the same fields, and one has each seed once.
  """
  runs = runs.loc[_of_the_paper(runs)]
  drawn = ["average_perplexity" in runs] * len(runs)  # texts depend on the seed
  for what, values in (("data", collect.contents_apart(runs, drawn)), ("precision", runs["precision"])):
    if values.nunique() > 1:
      raise BadInput(f"{path}: its runs cannot be compared; their {what} differs: {_listed(set(values))}.")
  kinds = kinds_of(runs)
  twice = runs.assign(kind=kinds).duplicated(["kind", "seed"])
  if twice.any():
    raise BadInput(f"{path}: several runs of {kinds[twice].iloc[0]} have the same seed.")
  fields = [field for field in runs if studies.identifies(field) and field not in (*FACTORS, "seed", DATA)]
  num_values = runs.groupby(kinds)[fields].nunique()
  for field in fields:
    for kind in num_values.index[num_values[field] > 1][:1]:
      raise BadInput(f"{path}: the runs of {kind} cannot be compared; {field} is "
                     f"{_listed(set(runs.loc[kinds == kind, field]))}.")


def kinds_of(runs: pd.DataFrame, *more: str) -> pd.Series:
  """The name of each run's kind, and of `more` fields. A whole number is a float in a table that lacks it elsewhere."""
  fields = [*FACTORS, *more]
  rows = runs.reindex(columns=fields).itertuples(index=False, name=None)
  return pd.Series([name_of(dict(zip(fields, row))) for row in rows], index=runs.index)


def _listed(values: set[Any]) -> str:
  """E.g. "0 and 25"."""
  return " and ".join(sorted(f"{value:g}" if isinstance(value, float) else str(value) for value in values)) or "missing"


def _named(table: pd.DataFrame) -> pd.DataFrame:
  """With the name of each run folder instead of its path."""
  return table.assign(run=table["run"].astype(str).str.rsplit("/", n=1).str[-1])  # "17" would be read as a number


if __name__ == "__main__":
  sys.exit(commands.exit_code(main))
