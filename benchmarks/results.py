"""Prints the tables of docs/results/anytime from CSV files of reports.

    python benchmarks/results.py
    python benchmarks/results.py --fronts docs/results/anytime/fronts.svg     also draws the rivals

CER is the mean ± sample standard deviation over the seeds; differences are means of the differences of each seed.
In the tables of the adaptive schedule ratios have an interval: 95 %, by the t distribution over the ratios of the
seeds, for each ratio alone.
"""
import math
import pathlib
import re
import sys

import evidence
import numpy as np
import pandas as pd
import themes
from matplotlib.lines import Line2D

from alma_jax import commands
from alma_jax.reports import drawing, trade_offs
from alma_jax.reports.drawing import Line, Panel, Plot

FOLDER = pathlib.Path(__file__).parent.parent / "docs/results/anytime"
MACS, HELD = "cumulative_fwd_macs", "cumulative_params"
_SAME = "-schedulegeometric"
_REGULARISED = "label_smoothing0.1-weight_decay0.001"
_PLAIN = "label_smoothing0.0-weight_decay0.0"
_SMALL = "num_megabatches20-waiting_time1-width8-"

# {what the page calls a kind of runs: the name of its run folders behind the seed}
MNIST = {
    "`sm`": "sm", "`gens`": "gens", "`umix`": "umix", "`ens`": "ens",
    "`sm,authors`": "sm_authors", "`gens,authors`": "gens_authors",
    "`ens`, regularised as `anytime`": f"ens-{_REGULARISED}",
    "`warm`": "warm-epochs20", "`retrain`": "retrain-epochs20", "`shrink_perturb`": "shrink_perturb-epochs20",
    "`anytime`, 20 steps": "anytime-steps20", "`anytime`, 40 steps": "anytime-steps40",
    "**`anytime`** (80 steps)": "anytime",
    "`anytime`, 180 steps": "anytime-steps180", "`anytime`, 400 steps": "anytime-steps400",
    "`anytime`, width 32": "anytime-width32", "`anytime`, width 19": "anytime-width19",
}
EARLY = {
    **{f"`{name}`": f"{name}{_SAME}" for name in ("sm", "umix", "ens")},
    **{f"`{name}`": f"{name}-epochs20{_SAME}" for name in ("retrain", "warm", "shrink_perturb")},
    "`anytime`, width 32": "anytime-width32", "`anytime`": "anytime", "`anytime`, 400 steps": "anytime-steps400",
    "`retrain`, width 141, decay, regularised": f"retrain-epochs20{_SAME}-width141-decay0.5-{_REGULARISED}",
}
PARTS = {
    "all parts": "anytime", "without replay": "anytime-replay_share0.0",
    "without the schedule (every 10)": "anytime-scheduleevery", "without decay": "anytime-decay0.0",
    "without regularisation": f"anytime-{_PLAIN}",
    "only replay": f"anytime-scheduleevery-decay0.0-{_PLAIN}",
    "only the schedule": f"anytime-replay_share0.0-decay0.0-{_PLAIN}",
    "only decay": f"anytime-replay_share0.0-scheduleevery-{_PLAIN}",
    "only regularisation": "anytime-replay_share0.0-scheduleevery-decay0.0",
    "no part": f"anytime-replay_share0.0-scheduleevery-decay0.0-{_PLAIN}",
}
# Of the tables of the adaptive schedule: ({price: kind}, {waiting time: kind}, the kind with the schedule geometric)
_PRICED = "-scheduleadaptive-price"
MNIST_PRICES = (
    {1e-12: f"anytime{_PRICED}1e_12", 1e-11: f"anytime{_PRICED}1e_11", 1e-10: f"anytime{_PRICED}1e_10"},
    {**{w: f"anytime-scheduleevery-waiting_time{w}" for w in (1, 2, 5, 20, 50)}, 10: "anytime-scheduleevery"},
    "anytime")
CIFAR_PRICES = (
    {price: f"{_SMALL}anytime-steps1000{_PRICED}{name}"
     for price, name in ((1e-12, "1e_12"), (5e-12, "5e_12"), (2e-11, "2e_11"))},
    {w: f"num_megabatches20-waiting_time{w}-width8-anytime-steps1000-scheduleevery" for w in (1, 2, 4, 5, 10, 20)},
    f"{_SMALL}anytime-steps1000")
CIFAR_ONE = {
    "`anytime`": f"{_SMALL}anytime-steps1000", "`sm`, 10 epochs": f"{_SMALL}sm-epochs10",
    "`gens`, 10 epochs": f"{_SMALL}gens-epochs10", "`ens`, 2 epochs": f"{_SMALL}ens-epochs2",
    "`umix`, 2 epochs": f"{_SMALL}umix-epochs2", "`sm`, 1 epoch of all data": f"{_SMALL}sm-epochs1-replay1.0",
}
# {(data, multiply-adds of a mega-batch): the kind of runs in frontier.csv}, and version 1 at the same multiply-adds.
FRONTIER = {("digits, 20", "1.1e8"): "digits", ("MNIST, 500", "9.8e6"): "m9", ("MNIST, 500", "9.8e7"): "m10",
            ("CIFAR-10, 20", "2.9e9"): "c10", ("CIFAR-10, 20", "2.9e10"): "c11", ("CIFAR-10, 100", "3.5e10"): "c100"}
FIRST = {"m10": ("runs.csv", "anytime"), "c11": ("cifar.csv", f"{_SMALL}anytime-steps1000"),
         "c100": ("cifar.csv", "anytime")}
# Rivals at the same multiply-adds: the kinds of runs in rivals.csv are these, after "budget{B}-".
_ER = "labeler-anytime-scheduleevery-waiting_time1-replay_share0.5-memory_size5000"
_OURS = {
    "**`anytime`**": "anytime", "experience replay, 5,000 examples": f"{_ER}-replay_orderrandom",
    "DER++, 5,000 examples": "der",
    "`warm`": "labelwarm_compact-anytime-replay_share0.0-replay1.0",
    "`retrain`": "labelretrain_compact-anytime-replay_share0.0-replay1.0-init_from_scratchtrue"}
_PAPER = ("sm", "ens", "gens", "warm", "retrain")
MNIST_RIVALS, MNIST_RIVALS_TENTH = (
    {**_OURS, "experience replay, 5,000 examples": f"{_ER}-replay_orderrandom-test_augmentfalse",
     "`anytime,v1`": first, **{f"`{name}`, network of the paper": name for name in _PAPER}}
    for first in ("anytime_v1", "anytime_v1-width0"))
_CIFAR_PAPER = {f"`{name}`, network of the paper": f"{name}-width8-waiting_time1{'-batch_size32' * (name == 'ens')}"
                for name in _PAPER}
CIFAR_RIVALS, CIFAR_RIVALS_TENFOLD = (
    {**_OURS, "`anytime,v1`": f"anytime_v1-width8-steps{steps}", **_CIFAR_PAPER} for steps in (100, 1000))
# configs/sweeps/anytime_parts.py: `anytime` with one part changed, and version 1 with one part of `anytime`.
CHANGED = {label: f"anytime{kind}" for label, kind in {
    "**`anytime`**": "", "VGG of width 8": "-namevgg-width8", "Adam, rate 0.002": "-optimizeradam-learning_rate0.002",
    "a stage after every mega-batch": "-scheduleevery-waiting_time1",
    "a stage when the data have grown by 15 %, not 30 %": "-factor1.15",
    "batches of 128, not 32": "-batch_size128", "decay in every stage, no averaged weights": "-average0.0-decay0.5",
    "no label smoothing": "-label_smoothing0.0", "no replay": "-replay_share0.0",
    "no crops and flips": "-shift0-flipfalse", "a tenth of the data for validation": "-val_fraction0.1",
    "`train.steps_exponent=0.25`": "-steps_exponent0.25", "two views in predictions": "-test_augmenttrue",
    "old examples in passes": "-replay_orderpasses",
    "both, as `anytime` has them": "-test_augmenttrue-replay_orderpasses"}.items()}
ADDED = {label: f"anytime_v1-{kind}" for label, kind in {
    "**`anytime,v1`**": "width8-steps0", "`compact`": "width0-steps0-namecompact",
    "Muon, rate 0.05": "width8-steps0-optimizermuon-learning_rate0.05",
    "averaged weights, no decay": "width8-steps0-average0.5-decay0.0",
    "crops and flips as in `anytime`": "width8-steps0-augmentfalse-shift2-fliptrue",
    "a stage when the data have grown by 30 %": "width8-steps0-factor1.3-train_at_endtrue",
    "label smoothing": "width8-steps0-label_smoothing0.1",
    "two views in predictions": "width8-steps0-test_augmenttrue",
    "old examples in passes": "width8-steps0-replay_orderpasses"}.items()}
# {(data, mega-batches): {budget: (kind of runs of `anytime` in frontier.csv, learners that the figure shows)}}
BUDGETED = {("MNIST", 500): {9.8e6: ("m9", MNIST_RIVALS_TENTH), 9.8e7: ("m10", MNIST_RIVALS)},
            ("CIFAR-10", 20): {2.9e9: ("c10", CIFAR_RIVALS), 2.9e10: ("c11", CIFAR_RIVALS_TENFOLD)}}
# configs/sweeps/anytime_data.py: {data: the beginning of the kind of its runs}, and {learner: its end}.
DATA = {"10 mega-batches": "namenpz_held_out.npz-num_megabatches10-budget5800000000.0",
        "40 mega-batches": "namenpz_held_out.npz-num_megabatches40-budget1450000000.0",
        **{label: f"namenpz_{name}.npz-num_megabatches20-budget2900000000.0{flip}" for label, name, flip in (
            ("grey", "grey", ""), ("20 % of the labels random", "noise20", ""), ("40 % random", "noise40", ""),
            ("64x64 pixels", "large", ""), ("pairs of digits, 100 classes", "pairs", "-flipfalse"))}}
ON_DATA = {"`anytime`": "labelanytime-anytime", "`warm`": "labelwarm-anytime-replay_share0.0-replay1.0",
           "experience replay": _ER,
           "`anytime,v1`": "labelv1-anytime_v1-width8-steps0"}
BOOKS = {"`anytime`": "anytime", "`anytime,tiny,v1`": "anytime_tiny_v1", "`sm`": "sm",
         "`sm`, `train.decay=0.3`": "sm-decay0.3"}
CIFAR_FIVE = {"`anytime`": "anytime", "`ens`, 10 epochs": "ens-epochs10"}


def main() -> None:
  """Prints all tables."""
  parser = commands.Parser("benchmarks/results.py", __doc__)
  parser.add_argument("--fronts", type=pathlib.Path, metavar="FILE", help="also draw the rivals, to this SVG file")
  given = parser.parse_args()
  if given.fronts:
    themes.write(drawing.draw(fronts()), given.fronts)
  for title, table in tables():
    print(f"{title}\n\n{table}\n")


def tables() -> list[tuple[str, str]]:
  """(title, Markdown) of each table of the page."""
  mnist, cifar = read("runs.csv"), read("cifar.csv")
  rivals = read("rivals.csv")
  return [("The frontier", frontier()),
          *((f"Rivals on {data}", compared(rivals, {label: f"budget{budget}-{kind}" for label, kind in kinds.items()},
                                           "**`anytime`**"))
            for data, budget, kinds in (("MNIST at a tenth of the budget", 9.8e6, MNIST_RIVALS_TENTH),
                                        ("MNIST", 9.8e7, MNIST_RIVALS),
                                        ("CIFAR-10", 2.9e9, CIFAR_RIVALS),
                                        ("CIFAR-10 at ten times the budget", 2.9e10, CIFAR_RIVALS_TENFOLD))),
          ("`anytime` with one part changed", compared(read("parts.csv"), CHANGED, "**`anytime`**")),
          ("Version 1 with one part of `anytime`", compared(read("parts.csv"), ADDED, "**`anytime,v1`**")),
          ("Other data", on_other_data(read("data.csv"))),
          ("MNIST", compared(mnist, MNIST, "`ens`")), ("MNIST, at the same stages", compared(mnist, EARLY, "`ens`")),
          ("Parts", compared(mnist, PARTS, "all parts")), ("The adaptive schedule", adaptive(mnist, *MNIST_PRICES)),
          ("CIFAR-10, 20 mega-batches, width 8", compared(cifar, CIFAR_ONE, "`sm`, 10 epochs")),
          ("CIFAR-10, 100 mega-batches, width 16", compared(cifar, CIFAR_FIVE, "`ens`, 10 epochs")),
          ("The adaptive schedule on CIFAR-10", adaptive(cifar, *CIFAR_PRICES)),
          ("Books", perplexities(read("books.csv"), BOOKS, "`sm`"))]


def read(file: str) -> pd.DataFrame:
  """The runs of a CSV file of a report, indexed by the kind of run and the seed."""
  runs = pd.read_csv(FOLDER / file)
  name = runs["run"].str.rsplit("/", n=1).str[-1]
  runs["kind"] = name.str.replace(r"^seed\d+-", "", regex=True)
  runs["seed"] = name.str.extract(r"^seed(\d+)-")[0].astype(int)
  return runs.set_index(["kind", "seed"]).sort_index()


def compared(runs: pd.DataFrame, kinds: dict[str, str], reference: str) -> str:
  """A row for each kind that was run; differences are those from the kind `reference`."""
  rows, counts = [["", "CER", f"against {reference}", "final error", "multiply-adds", "parameters held"]], ["seeds"]
  for label, kind in kinds.items():
    if kind not in runs.index:  # not run yet
      continue
    mine, change = runs.loc[kind], ""
    if label != reference and kinds[reference] in runs.index:
      change = f"{100 * (mine['cer'] / runs.loc[kinds[reference]]['cer'] - 1).dropna().mean():+.1f} %"
    rows.append([label, spread(mine["cer"]), change, f"{mine['final_error'].mean():.4f}", brief(mine[MACS].mean()),
                 brief(mine[HELD].mean())])
    counts.append(str(len(mine)))
  return markdown(rows, counts)


def frontier() -> str:
  """A row for each data set and budget."""
  runs = read("frontier.csv")
  rows = [["mega-batches", "`train.budget`", "CER", "version 1", "final error", "multiply-adds", "parameters held"]]
  for (data, budget), kind in FRONTIER.items():
    mine, first = runs.loc[kind], ""
    if kind in FIRST:
      file, name = FIRST[kind]
      first = spread(read(file).loc[name]["cer"])
    rows.append([data, budget, spread(mine["cer"]), first, f"{mine['final_error'].mean():.4f}",
                 brief(mine[MACS].mean()), brief(mine[HELD].mean())])
  return markdown(rows, [])


def on_other_data(runs: pd.DataFrame) -> str:
  """A row for each kind of data: the CER of each learner."""
  rows = [["", *ON_DATA]]
  for label, data in DATA.items():
    kinds = [f"{data}-{end}" for end in ON_DATA.values()]
    rows.append([label, *(f"{runs.loc[kind]['cer'].mean():.2f}" if kind in runs.index else "" for kind in kinds)])
  return markdown(rows, [])


def fronts() -> Plot:
  """CER against the compute that `anytime` and its rivals may spend. A line joins a learner's budgets."""
  rivals, ours, keys, panels = read("rivals.csv"), read("frontier.csv"), dict[str, Line2D](), []
  for (data, num), budgets in BUDGETED.items():
    found = dict[str, list[tuple[float, pd.Series]]]()
    for budget, (own, kinds) in budgets.items():
      for label, kind in kinds.items():
        name = re.sub("[`*]", "", label).replace("network of the paper", "paper's network")
        runs, kind = (ours, own) if kind == "anytime" else (rivals, f"budget{budget}-{kind}")
        if kind in runs.index:
          found.setdefault(name, []).append((num * budget, runs.loc[kind]["cer"]))
    lines = []
    for name, points in found.items():
      learner, _, network = name.partition(", ")
      key = keys.setdefault(name, drawing.key(name, name if network == "v1" else learner, "paper" in network))
      macs, cer, deviation = np.array([(at, each.mean(), each.std()) for at, each in points]).T
      lines.append(Line(key, macs, cer, cer - deviation, cer + deviation))
    corners = [point for line in lines for point in zip(line.x, line.y)]
    panels.append(Panel(f"{data}, {num} mega-batches", lines, trade_offs.front(*zip(*corners)), x="multiply-adds",
                        y="CER"))
  return Plot("", panels, [*keys.values()], 2, (drawing.COLUMN, 2.6), shared="none")


def markdown(rows: list[list[str]], counts: list[str]) -> str:
  """A table whose first row is its head; with a column `counts` of the seeds if these differ."""
  if len(set(counts)) > 2:
    rows = [[*row, count] for row, count in zip(rows, counts)]
  lines = [f"| {' | '.join(row)} |" for row in rows]
  return "\n".join([lines[0].replace("|  |", "| |"), f"| --- |{' ---: |' * (len(rows[0]) - 1)}", *lines[1:]])


def adaptive(runs: pd.DataFrame, prices: dict[float, str], fixed: dict[int, str], geometric: str) -> str:
  """J = CER + price Comp of the schedules, mean over the seeds; the best waiting time is that of the least mean.

  The seeds are those that all runs of the table have. Ratios are means of the ratios of each seed, with an interval.
  """
  lines = ["| price of a multiply-add | trainings | J of `adaptive` | J of `geometric` | best fixed w | its J | "
           "`adaptive` / best fixed | `adaptive` / `geometric` |",
           "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |"]
  kinds = [*prices.values(), *fixed.values(), geometric]
  seeds = sorted(set.intersection(*(set(runs.loc[kind].index) if kind in runs.index else set() for kind in kinds)))
  at = lambda kind: runs.loc[kind].loc[seeds]
  for price, mine in prices.items() if seeds else ():
    score = lambda kind, price=price: at(kind)["cer"] + price * at(kind)[MACS]
    waiting = {w: score(kind).mean() for w, kind in fixed.items()}
    best = min(waiting, key=waiting.__getitem__)
    trainings = ", ".join(map(str, at(mine)["num_stages"]))
    lines.append(f"| {price:.0e} | {trainings} | {score(mine).mean():.2f} | {score(geometric).mean():.2f} | {best} | "
                 f"{waiting[best]:.2f} | {with_interval(score(mine) / score(fixed[best]))} | "
                 f"{with_interval(score(mine) / score(geometric))} |")
  return "\n".join(lines)


def perplexities(stream: pd.DataFrame, kinds: dict[str, str], reference: str) -> str:
  """A row for each kind: perplexity after each mega-batch. `stream` has a row for each kind, seed and t."""
  times = sorted(stream["t"].unique())
  rows = [["", *(f"t = {t}" for t in times), f"last, against {reference}", "multiply-adds"]]
  at = lambda kind, t: stream[stream["t"] == t].loc[kind]
  kinds = {label: kind for label, kind in kinds.items() if kind in stream.index}
  last = {label: at(kind, times[-1])["perplexity"] for label, kind in kinds.items()}
  for label, kind in kinds.items():
    cells = [spread(at(kind, t)["perplexity"]) for t in times]
    shared = (last[label] / last[reference] - 1).dropna()  # empty if the seeds differ
    change = shared.mean() if len(shared) else last[label].mean() / last[reference].mean() - 1
    change = "" if label == reference else f"{100 * change:+.1f} %"
    macs = at(kind, times[-1])[MACS].mean()
    rows.append([label, *cells, change, brief(macs)])
  return markdown(rows, ["seeds", *(str(len(each)) for each in last.values())])


def with_interval(values: pd.Series) -> str:
  """Mean and the limits of its 95 % interval (benchmarks/evidence.py), if there is one."""
  (found,) = evidence.estimated(values.to_numpy()[None])
  limits = f" ({found.mean - found.margin:.2f} to {found.mean + found.margin:.2f})"
  return f"{found.mean:.2f}{'' if math.isinf(found.margin) else limits}"


def spread(values: pd.Series) -> str:
  """Mean ± deviation."""
  digits = 1 if values.mean() >= 20 else 2
  return f"{values.mean():.{digits}f}" + (f" ± {values.std():.{digits}f}" if len(values) > 1 else "")


def brief(number: float) -> str:
  """Three digits, as in 1.07e13."""
  mantissa, exponent = f"{number:.2e}".split("e")
  return f"{mantissa}e{int(exponent)}"


if __name__ == "__main__":
  sys.exit(commands.exit_code(main))
