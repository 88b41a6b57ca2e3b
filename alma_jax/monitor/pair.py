"""Two runs side by side, as `alma compare` shows them."""
import math
import pathlib
from collections.abc import Sequence
from typing import NamedTuple

from alma_jax import config as configs
from alma_jax.errors import BadInput
from alma_jax.messages import brief_number, spark
from alma_jax.runs import plots
from alma_jax.store import run_files
from alma_jax.store.metrics import Measure
from alma_jax.store.record import DATA, Record

_ROWS, _WIDTH = 12, 60  # of the table of curves; characters of a curve
_BLOCKS = 20  # consecutive mega-batches are averaged, at most so many means are compared
_CUTS = ("seed", "stream.num_megabatches")  # fields that decide which examples a mega-batch has
_SIZE = "dataset.image_size"
_MORE = 2  # times the parameters, above which the verdict says so


class Shared(NamedTuple):
  """Values of both runs at the mega-batches that both have.

  Attributes:
    t: mega-batches, from 1.
    first, second: values of the runs there.
  """
  t: list[int]
  first: list[float]
  second: list[float]

  @property
  def mean(self) -> float:
    """Mean of first - second."""
    return sum(a - b for a, b in zip(self.first, self.second)) / len(self.t)


def shared(first: Record, second: Record, key: str) -> Shared:
  """The values of an entry of metrics.jsonl that both runs have."""
  a, b = dict(first.values(key)), dict(second.values(key))
  t = sorted(a.keys() & b.keys())
  return Shared(t, [a[each] for each in t], [b[each] for each in t])


def text(first: Record, second: Record) -> str:
  """What differs between two runs: fields, curves, and the paired differences, first minus second.

  Raises:
    BadInput: they have different metrics, or no mega-batch in common.
  """
  metric = first.metric
  if first.unit != second.unit:
    raise BadInput(f"{first.path} is a run on {first.unit}, and {second.path} one on {second.unit}; compare runs of "
                   "one kind.")
  if metric != second.metric:
    raise BadInput(f"{first.path} measures {metric}, but {second.path} measures {second.metric}; compare runs of one "
                   "kind.")
  measure = _measure(first, second)
  errors = shared(first, second, measure.key)
  if not errors.t:
    raise BadInput(f"{first.path} and {second.path} have no {first.unit} with a {measure.name} in common.")
  differences, are_pairs = _differences(first, second)
  return "\n".join([*_verdict(measure, errors, first, second, are_pairs), "", *differences, "",
                    *_curves(measure, errors, first), "", *_mean(measure, errors, first, second, are_pairs)])


def draw(first: Record, second: Record, path: str) -> None:
  """Draws the curves of both runs into a picture; the ending of `path` decides about its format.

  Raises:
    BadInput: it cannot be written.
  """
  from matplotlib.figure import Figure
  from matplotlib.ticker import MaxNLocator
  figure, measure = Figure(figsize=(7, 4.2), layout="constrained"), _measure(first, second)
  axes, key = figure.subplots(), f"prequential_{measure.metric}"
  tested = not measure.is_prequential and shared(first, second, key).t
  for run, letter, colour in zip((first, second), "AB", plots.colours([run.config.label for run in (first, second)])):
    axes.plot(*_xy(run, measure.key), "-", color=colour, drawstyle="steps-mid", label=f"{letter}, {run.path.name}")
    if tested:
      axes.plot(*_xy(run, key), ":", color=colour, drawstyle="steps-mid")
  axes.set(xlabel=f"{first.unit} seen", ylabel=measure.name + " (dotted: prequential)" * bool(tested))
  axes.set_ylim(bottom=0)
  axes.xaxis.set_major_locator(MaxNLocator(integer=True))
  axes.legend(frameon=False)
  try:
    figure.savefig(pathlib.Path(path).expanduser(), dpi=150)
  except (OSError, ValueError) as error:
    raise BadInput(f"--out={path!r} cannot be written: {error}.") from error


def _verdict(measure: Measure, errors: Shared, first: Record, second: Record, are_pairs: bool) -> list[str]:
  """A table of results and costs of the mega-batches that both runs have, and a sentence about them."""
  is_sum = "cer" in first.kind.results
  name = ("prequential " if measure.is_prequential else "") + ("CER" if is_sum else f"mean {measure.metric}")
  results = [sum(values) / (1 if is_sum else len(values)) for values in (errors.first, errors.second)]
  costs = [sum(line["fwd_macs"] for line in run.lines[:errors.t[-1]]) for run in (first, second)]
  rows = [["", name, f"last {measure.name}", "multiply-adds", "parameters", ""]]
  for letter, run, result, last, cost in zip("AB", (first, second), results, (errors.first[-1], errors.second[-1]),
                                             costs):
    rows.append([letter, f"{result:.4f}", f"{last:.4f}", brief_number(cost),
                 f"{run.lines[errors.t[-1] - 1]['num_params']:,}", run_files.shown(run.path)])
  widths = [max(map(len, column)) for column in zip(*rows)]
  table = ["  " + "  ".join(cell.ljust(width) if i in (0, 5) else cell.rjust(width)
                            for i, (cell, width) in enumerate(zip(row, widths))).rstrip() for row in rows]
  if max(len(first.lines), len(second.lines)) > errors.t[-1]:
    table = [f"The first {errors.t[-1]} {first.unit}, which both have:", *table]
  if results[0] == results[1] or not min(results):
    return [*table, "", f"A and B have {'the same' if results[0] == results[1] else 'different values of'} {name}."]
  better = results.index(min(results))
  sizes = [run.lines[errors.t[-1] - 1]["num_params"] for run in (first, second)]
  prices = [f"{_times(costs, better)} compute"] * bool(min(costs))
  prices += [f"{_times(sizes, better)} parameters"] * (max(sizes) > _MORE * min(sizes) > 0)
  ratio = max(results) / min(results)
  times = f"{ratio:.2g} times lower" if ratio >= 1.1 else f"{100 * (1 - 1 / ratio):.2g} % lower"
  times = ", for ".join(filter(None, (times, " and ".join(prices))))
  return [*table, "", f"{'AB'[better]} is better: its {name} is {times}." if are_pairs else (
      f"{'AB'[better]}'s {name} is {times}. That does not say which is better: their {first.unit} differ.")]


def _times(values: Sequence[float], which: int) -> str:
  """As in "1.5 times the", or "the same"."""
  ratio = values[which] / values[1 - which]
  return "the same" if f"{ratio:.2f}" == "1.00" else f"{ratio:.3g} times the"


def _xy(run: Record, key: str) -> list[list[float]]:
  return [list(each) for each in zip(*run.values(key))] or [[], []]


def _measure(first: Record, second: Record) -> Measure:
  """What both runs have measured: the prequential metric, unless both have a test set."""
  return Measure(first.metric, first.measure.is_prequential or second.measure.is_prequential)


def _differences(first: Record, second: Record) -> tuple[list[str], bool]:
  """(sentences about the configurations and the data, whether mega-batches of one t hold the same examples)."""
  a, b = (configs.identity(each.tree) | each.decided for each in (first, second))
  differences = configs.compared(a, b, "in A", "in B")
  if first.tree[DATA] != second.tree[DATA]:
    differences.append("the contents of the data")
  lines = ["Differences of the configurations:", *(f"  {each}" for each in differences)] if differences else [
      "The configurations are equal."]
  entries = [[entry["content"] for entry in run.entries] for run in (first, second)]
  are_other = "the contents of the data" in differences or any(a != b for a, b in zip(*entries))
  equal = lambda *fields: all(first.fields.get(field) == second.fields.get(field) for field in fields)
  if are_other and (equal(_SIZE) or not equal("dataset.name")):
    return [*lines, f"A and B have different data, so their {first.unit} do not form pairs: the differences below come "
            "from the data, too."], False
  if not all(entries) and not equal(*_CUTS):
    return [*lines, "A and B cut the data into different mega-batches, which do not form pairs."], False
  if are_other:
    lines.append("A and B have the images at different sizes, so their mega-batches form pairs if the files are the "
                 "same.")
  return lines, True


def _curves(measure: Measure, errors: Shared, first: Record) -> list[str]:
  when = "" if first.accuracies is None else " on each task when it was learned"
  num, most = len(errors.t), min(len(errors.t), _ROWS)
  rows = sorted({*(i * num // most for i in range(most)), num - 1})
  largest = max(*errors.first, *errors.second)
  lines = [f"{measure.name.capitalize()}{when}:", f"  A {spark(errors.first, largest, _WIDTH)}",
           f"  B {spark(errors.second, largest, _WIDTH)}",
           f"  {'t':>6} {'A':>9} {'B':>9} {'A - B':>10}"]
  return lines + [f"  {errors.t[i]:>6} {errors.first[i]:>9.4f} {errors.second[i]:>9.4f} "
                  f"{errors.first[i] - errors.second[i]:>+10.4f}" for i in rows]


def _mean(measure: Measure, errors: Shared, first: Record, second: Record, are_pairs: bool) -> list[str]:
  what = "Paired" if are_pairs else "Mean"
  lines = [f"{what} difference A - B over the {len(errors.t)} {first.unit} that both have:"]
  if not measure.is_prequential:
    lines.append(f"  {measure.name}: mean {errors.mean:+.4f}")
  if "cer" in first.kind.results and not measure.is_prequential:
    lines[-1] += f", CER {errors.mean * len(errors.t):+.4f}"
  tested = shared(first, second, f"prequential_{measure.metric}")
  if tested.t:
    lines.append(f"  prequential {measure.metric}: mean {tested.mean:+.4f}{_interval(tested)}")
    return lines
  without = [letter for letter, run in zip("AB", (first, second)) if not run.values(f"prequential_{measure.metric}")]
  if without and first.accuracies is None:
    lines.append(f"  prequential {measure.metric}: not measured by {' and '.join(without)} (learners that freeze their "
                 "members measure it only with log.drift, with an adaptive schedule, or without a test set)")
  return lines


def _interval(tested: Shared) -> str:
  """The confidence interval of a mean difference, over means of consecutive mega-batches, which are nearly independent.

  Every mega-batch is new data, which both runs predict before they use it. The errors on one test set, which are
  computed on the same images at every t, have no such interval.
  """
  import numpy as np

  from alma_jax.reports import statistics  # scipy is slow to import
  differences = np.subtract(tested.first, tested.second)
  blocks = [float(block.mean()) for block in np.array_split(differences, max(min(_BLOCKS, len(differences) // 2), 1))]
  margin = statistics.estimate(blocks).margin
  if not math.isfinite(margin):
    return ""
  # Blocks may differ by one mega-batch in length, so that the mean of the blocks is not the mean.
  return (f", 95 % interval {tested.mean - margin:+.4f} to {tested.mean + margin:+.4f} over {len(blocks)} means of "
          "consecutive mega-batches")
