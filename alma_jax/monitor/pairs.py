"""Compares two runs on the mega-batches that both have seen."""
import os
from collections.abc import Sequence
from typing import NamedTuple

from alma_jax import config as configs
from alma_jax.errors import BadInput
from alma_jax.files import usable
from alma_jax.store.metrics import Measure
from alma_jax.store.record import DATA, Record

_ROWS = 12  # of the table of curves
_BLOCKS = 20  # consecutive mega-batches are averaged, at most so many means are compared
_BARS = "▁▂▃▄▅▆▇█"
_CUTS = ("seed", "stream.num_megabatches")  # fields that decide which examples a mega-batch has
_COLOURS = ("#0072B2", "#D55E00")  # of the Okabe-Ito palette


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
    raise BadInput(f"the metric of {first.path} is {metric}, but that of {second.path} is {second.metric}; "
                   "compare runs of one kind.")
  measure = _measure(first, second)
  errors = shared(first, second, measure.key)
  if not errors.t:
    raise BadInput(f"{first.path} and {second.path} have no {first.unit} with a {measure.name} in common.")
  return "\n".join(["A " + str(first.path), "B " + str(second.path), "", *_differences(first, second), "",
                    *_curves(measure, errors, first), "", *_paired(measure, errors, first, second)])


def draw(first: Record, second: Record, path: str | os.PathLike[str]) -> None:
  """Draws the curves of both runs into a picture; the ending of `path` decides about its format.

  Raises:
    BadInput: it cannot be written.
  """
  from matplotlib.backends.backend_agg import FigureCanvasAgg
  from matplotlib.figure import Figure
  place, figure = usable(path), Figure(figsize=(7, 4.2), layout="constrained")
  FigureCanvasAgg(figure)
  axes = figure.subplots()
  measure = _measure(first, second)
  further = [] if measure.is_prequential else [(f"prequential_{measure.metric}", ":")]
  for run, letter, colour in zip((first, second), "AB", _COLOURS):
    label = f"{letter}, {run.path.name}"
    for key, style in ((measure.key, "-"), *further):
      points = run.values(key)
      if points:
        axes.plot(*zip(*points), style, color=colour, drawstyle="steps-mid", label=label if style == "-" else None)
  dotted = any(run.values(key) for key, _ in further for run in (first, second))
  axes.set(xlabel=f"{first.unit} seen", ylabel=measure.name + " (dotted: prequential)" * dotted)
  axes.set_ylim(bottom=0)
  axes.legend(frameon=False)
  try:
    figure.savefig(place, dpi=150)
  except (OSError, ValueError) as error:
    raise BadInput(f"--out={str(path)!r} cannot be written: {error}.") from error


def _measure(first: Record, second: Record) -> Measure:
  """What both runs have measured: the prequential metric, unless both have a test set."""
  return Measure(first.metric, first.measure.is_prequential or second.measure.is_prequential)


def _differences(first: Record, second: Record) -> list[str]:
  differences = configs.compared(configs.identity(first.tree), configs.identity(second.tree), "in A", "in B")
  if first.tree[DATA] != second.tree[DATA]:
    differences.append("the contents of the data")
  lines = ["Differences of the configurations:", *(f"  {each}" for each in differences)] if differences else [
      "The configurations are equal."]
  entries = [[entry["content"] for entry in run.entries] for run in (first, second)]
  if "the contents of the data" in differences or any(a != b for a, b in zip(*entries)):
    lines.append(f"A and B are runs on different data: their {first.unit} are no pairs, and the differences below are "
                 "also those of the data.")
  elif not all(entries) and any(first.fields.get(field) != second.fields.get(field) for field in _CUTS):
    lines.append("A and B cut the data into different mega-batches, which are no pairs.")
  return lines


def _curves(measure: Measure, errors: Shared, first: Record) -> list[str]:
  when = "" if first.accuracies is None else " on each task when it was learned"
  num = len(errors.t)
  rows = sorted({round(i * (num - 1) / max(min(_ROWS, num) - 1, 1)) for i in range(min(_ROWS, num))})
  largest = max(*errors.first, *errors.second) or 1.0
  spark = lambda values: "".join(
      _BARS[min(int(values[i] / largest * len(_BARS)), len(_BARS) - 1)] for i in _spread(num))
  lines = [f"{measure.name.capitalize()}{when}:", f"  A {spark(errors.first)}", f"  B {spark(errors.second)}",
           f"  {'t':>6} {'A':>9} {'B':>9} {'A - B':>10}"]
  return lines + [f"  {errors.t[i]:>6} {errors.first[i]:>9.4f} {errors.second[i]:>9.4f} "
                  f"{errors.first[i] - errors.second[i]:>+10.4f}" for i in rows]


def _paired(measure: Measure, errors: Shared, first: Record, second: Record) -> list[str]:
  lines = [f"Paired difference A - B over the {len(errors.t)} {first.unit} that both have:"]
  if not measure.is_prequential:
    lines.append(f"  {measure.name}: mean {errors.mean:+.4f}")
  if "cer" in first.kind.results and not measure.is_prequential:
    lines[-1] += f", CER {errors.mean * len(errors.t):+.4f}"
  tested = shared(first, second, f"prequential_{measure.metric}")
  if tested.t:
    lines.append(f"  prequential {measure.metric}: mean {tested.mean:+.4f}{_interval(tested)}")
  return lines


def _interval(tested: Shared) -> str:
  """The confidence interval of a mean difference, over means of consecutive mega-batches, which are nearly independent.

  Every mega-batch is new data, which both runs predict before they use it. The errors on one test set, which are
  computed on the same images at every t, have no such interval.
  """
  from alma_jax.reports import statistics  # scipy is slow to import
  num = len(tested.t)
  blocks = min(_BLOCKS, num // 2)
  if blocks < 2:
    return ""
  bounds = [num * i // blocks for i in range(blocks + 1)]
  mean = lambda values, i: sum(values[bounds[i]:bounds[i + 1]]) / (bounds[i + 1] - bounds[i])
  comparison = statistics.compare({i: mean(tested.first, i) for i in range(blocks)},
                                   {i: mean(tested.second, i) for i in range(blocks)})
  if comparison is None or comparison.margin == float("inf"):
    return ""
  # Blocks may differ by one mega-batch in length, so that the mean of the blocks is not the mean.
  low, high = tested.mean - comparison.margin, tested.mean + comparison.margin
  return f", 95 % interval {low:+.4f} to {high:+.4f} over {blocks} means of consecutive mega-batches"


def _spread(num: int, most: int = 60) -> Sequence[int]:
  """At most `most` indices, evenly spread over range(num)."""
  return [i * num // min(num, most) for i in range(min(num, most))]
