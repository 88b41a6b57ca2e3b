"""Writes the page of the results on streams of tasks, with a verdict on each claim of the talk and the papers.

    python benchmarks/task_claims.py docs/results/tasks --runs runs/tasks_mlp runs/tasks_vgg runs/tasks_long \\
        runs/tasks_digits
    python benchmarks/task_claims.py docs/results/tasks

The first argument is the folder of the page, README.md. With --runs, which names folders of sweeps, each with one
network, runs.csv there is written anew, a line for each finished run, with the figures; without it the page and its
first figure are made again from runs.csv. streams.csv beside it has the means of each learner on each stream, and
benchmarks/retrieval.py writes retrieval.csv.
"""
import math
import pathlib
import sys
from collections.abc import Callable, Sequence
from typing import NamedTuple

import pandas as pd
import retrieval
import study_figures
import task_runs
import task_verdicts
import themes
from task_runs import LEARNER, NETWORK, SEED, STUDY, TRANSFER

from alma_jax import commands
from alma_jax.errors import BadInput
from alma_jax.reports import drawing, task_figures
from alma_jax.reports.drawing import Plot
from alma_jax.reports.studies import Study

PAGE, RUNS, STREAMS, SEARCHING = "README.md", "runs.csv", "streams.csv", "retrieval.csv"
# {column of runs.csv: column of streams.csv}
MEANS = {"average_accuracy": "A", "forgetting": "F", "cumulative_error": "E", "cumulative_train_flops": "C",
         TRANSFER: "T", "memory": "M", "num_modules": "modules"}


class Picture(NamedTuple):
  """A figure of the page.

  Attributes:
    name: of its file, before the name of the stream.
    streams: the first of these that the runs have is shown.
    learners: those that are shown; empty: all.
    plot: Study -> Plot.
    caption: with {} for the name of the study.
  """
  name: str
  streams: Sequence[str]
  learners: Sequence[str]
  plot: Callable[[Study], Plot | None]
  caption: str


PICTURES = [
    Picture("pareto", ("nevis_mini", "digits"), (), task_figures.pareto,
            "{}: cumulative error E against cost C, and average error 1 - A against memory M. Rings and the line show "
            "the Pareto front."),
    Picture("memory", ("s_long", "s_minus", "digits"), (), task_figures.memory,
            "{}: parameters (top) and modules (bottom) stored after each task; bands show the lowest and the highest "
            "seed."),
    Picture("origins", ("nevis_mini", "digits"), ("select",), task_figures.origins,
            "{}, `select`: an arrow leads to a task from the earlier task whose network it started from. An open "
            "circle is a network from scratch; colours show the families of the tasks."),
    Picture("matrix", ("s_minus", "digits"), ("mntdp", "replay"), task_figures.matrix,
            "{}: the accuracy matrix R in percent; row t, column i is the test accuracy on task i after task t."),
]
_HEAD = """# Streams of tasks

Does it pay to reuse earlier networks when tasks arrive one after the other? It does where a task resembles an earlier
one. We ran the learners of [streams of
tasks](../../task-streams.md). You cannot compare these numbers with published ones: SVHN, Fashion-MNIST, DTD and
CIFAR-100 are stand-ins made from MNIST and CIFAR-10.

    alma sweep --config=sweeps/tasks --workdir runs/tasks_mlp
    alma sweep --config=sweeps/tasks:vgg --workdir runs/tasks_vgg
    alma sweep --config=sweeps/tasks_long
    alma sweep --config=sweeps/tasks_digits
    python benchmarks/task_claims.py docs/results/tasks --runs runs/tasks_mlp runs/tasks_vgg runs/tasks_long \\
        runs/tasks_digits

The last command writes this page. Without `--runs`, it reads `runs.csv` instead of the run folders.

## Claims

T is the accuracy on the last task minus `independent`'s with the same seed, in points. Intervals are 95 % over
seeds (Student's t). A claim **agrees** or **disagrees** if the mean is for it or against it with p below 0.05,
corrected for all tests about a network (Holm). The last question is corrected for the learners on its stream.

"By more than one standard error" agrees if no mean is that far below. It disagrees if a mean is, with p below 0.05.
Claims about counts, fronts and graphs agree if they hold with every seed, and disagree if they hold with none.

"""
_STREAMS = """## Accuracy, transfer and cost

[Average accuracy](../../task-streams.md#what-a-run-folder-holds) over seeds, in brackets T in points. Bold: the best
learner of a stream, and a T with p below 0.05, corrected for the learners on the stream. The cost of all trainings and
searches is a multiple of `independent`'s, averaged over the streams. `streams.csv` has standard deviations, memory,
forgetting and the cumulative error; `runs.csv` has a line for each run.
"""
_RETURNING = """
In the runs on `{}`, A and F count every visit of a task that returns as a task of its own: an earlier version made
them. This does not affect E and C.
"""
_UNFINISHED = """
Not finished: {}. Claims about them have no verdict yet, or one of fewer seeds; the same command goes on with the study.
"""


def main() -> None:
  parser = commands.Parser("benchmarks/task_claims.py", __doc__)
  parser.add_argument("results", help="folder of the page")
  parser.add_argument("--runs", nargs="+", metavar="DIR", help="folders of runs, whose lines replace those of runs.csv")
  args = parser.parse_args()
  folder = pathlib.Path(args.results)
  if args.runs:
    studies = task_runs.collected(map(pathlib.Path, args.runs))
    folder.mkdir(parents=True, exist_ok=True)
    task_runs.table(studies).to_csv(folder / RUNS, index=False)
    draw(PICTURES, studies, folder)
  if not (folder / RUNS).is_file():
    raise BadInput(f"there is no {folder / RUNS}; name folders of runs by --runs.")
  if not args.runs:
    kept = pd.read_csv(folder / RUNS).groupby([STUDY, NETWORK], sort=False)
    draw(PICTURES[:1], [task_runs.study_of(mine, str(name)) for (name, _), mine in kept], folder)
  (folder / PAGE).write_text(text(folder))
  streams(pd.read_csv(folder / RUNS)).to_csv(folder / STREAMS, index=False, float_format="%.6g")


def draw(pictures: Sequence[Picture], studies: Sequence[Study], folder: pathlib.Path) -> None:
  """Writes the figures in place of those that are there."""
  named = {study.name.partition(",")[0]: study for study in reversed(studies)}  # of two networks the first one counts
  for picture in pictures:
    for old in folder.glob(f"{picture.name}-*.svg"):
      old.unlink()
    study = next((_only(named[name], picture.learners) for name in picture.streams if name in named), None)
    plot = picture.plot(study) if study is not None and len(study.runs) else None
    if study is not None and plot is not None:
      stream = study.name.partition(",")[0]
      themes.write(drawing.draw(study_figures.for_pages(plot)), folder / f"{picture.name}-{stream}.svg")


def text(folder: pathlib.Path) -> str:
  """The page."""
  runs = pd.read_csv(folder / RUNS)
  cells: dict[tuple[str, str], dict[str, str]] = {}  # {(claim, data): {network: verdict and number}}
  for row in task_verdicts.rows(runs):
    data, _, network = row.data.rpartition(", ") if row.number else (row.data, "", "")
    cells.setdefault((row.text, data), {}).update({network: f"**{row.verdict}**, {row.number}"} if row.number else {})
  networks = list(dict.fromkeys(network for its in cells.values() for network in its))
  lines = [f"| claim | {' | '.join(networks)} |", "| --- " * (len(networks) + 1) + "|"]
  for (claim, data), its in cells.items():
    found = [its.get(network, "" if its else task_verdicts.NOT_MEASURED) for network in networks]
    lines.append(f"| {claim} ({data}) | {' | '.join(found)} |")
  parts = [_HEAD + "\n".join(lines) + "\n" + _unfinished(runs), _STREAMS + _returning(runs)]
  parts += [f"{network}:\n\n{overview(mine)}\n" for network, mine in runs.groupby(NETWORK, sort=False)]
  shown = [_shown(picture, folder) for picture in PICTURES]
  parts.append("## Figures\n\nThe command at the top of the page draws the first from `runs.csv`, the others from the "
               "run folders. Those were\nnot kept: the figures below the first are traced from earlier pictures.\n\n"
               + "\n".join(filter(None, shown)))
  if (folder / SEARCHING).is_file():
    parts.append(retrieval.section(pd.read_csv(folder / SEARCHING)))
  return "\n".join(parts)


def streams(runs: pd.DataFrame) -> pd.DataFrame:
  """A row for each learner on a stream: means and standard deviations over seeds; the highest A of a stream first."""
  groups = runs.groupby([STUDY, NETWORK, LEARNER], sort=False)
  table = groups[[*MEANS]].agg(["mean", "std"])
  table.columns = [MEANS[column] + " sd" * (what == "std") for column, what in table.columns]
  table.insert(0, "seeds", groups.size())
  each = table.reset_index().groupby([STUDY, NETWORK], sort=False)
  return pd.concat([mine.sort_values("A", ascending=False) for _, mine in each], ignore_index=True)


def overview(runs: pd.DataFrame) -> str:
  """The average accuracy and T of each learner of a network on each stream, and its cost in that of the baseline."""
  names = [*dict.fromkeys(runs[STUDY])]
  groups = runs.groupby([LEARNER, STUDY])[["average_accuracy", "cumulative_train_flops"]].mean()
  accuracy, cost = (groups[column].unstack() for column in groups)
  times = (cost / cost.loc[task_verdicts.BASELINE]).mean(axis=1)
  tested = {name: task_verdicts.tests(runs, name.partition(",")[0]) for name in names}
  lines = [f"| learner | {' | '.join(names)} | cost |", f"| --- {'| ---: ' * (len(names) + 1)}|"]
  for learner in drawing.in_order(set(runs[LEARNER])):
    cells = ["" if math.isnan(a) else _bold(f"{a:.3f}", a == accuracy[name].max()) + "".join(
        f" ({_bold(f'{100 * each.mean:+.1f}', each.p < 0.05)})" for each in [tested[name].get(learner)] if each)
        for name, a in accuracy.loc[learner, names].items()]
    lines.append(f"| {learner} | {' | '.join(cells)} | {times[learner]:.2g} × |")
  return "\n".join(lines)


def _bold(text: str, is_bold: bool) -> str:
  return f"**{text}**" if is_bold else text


def _unfinished(runs: pd.DataFrame) -> str:
  """A sentence about streams on which learners lack seeds, or ""."""
  lacking = []
  for (name, network), mine in runs.groupby([STUDY, NETWORK], sort=False):
    counts = mine.groupby(LEARNER)[SEED].nunique()
    few = [f"`{learner}`" for learner in counts.index[counts < max(counts.max(), 3)]]
    few = few if len(few) < len(counts) else ["all learners"]
    lacking += [f"{name}, {network} ({', '.join(few)})"] if few else []
  return _UNFINISHED.format("; ".join(lacking)) if lacking else ""


def _returning(runs: pd.DataFrame) -> str:
  """A sentence about runs of versions that kept the visits of a task apart, or ""."""
  names = [str(name).partition(",")[0] for name, mine in runs.groupby(STUDY, sort=False) if mine["visits_apart"].any()]
  return _RETURNING.format("`, `".join(names)) if names else ""


def _shown(picture: Picture, folder: pathlib.Path) -> str:
  files = sorted(folder.glob(f"{picture.name}-*.svg"))
  if not files:
    return ""
  caption = picture.caption.format(files[0].stem.removeprefix(f"{picture.name}-"))
  return f"![{caption.partition(':')[0]}: {picture.name}]({files[0].name})\n\n{caption}\n"


def _only(study: Study, learners: Sequence[str]) -> Study:
  """The runs of some learners."""
  return study if not learners else study._replace(runs=study.runs[study.runs[LEARNER].isin(learners)])


if __name__ == "__main__":
  sys.exit(commands.exit_code(main))
