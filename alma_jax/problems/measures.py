"""Metrics of predictions besides error, loss and perplexity: their sums, their values, and how they are shown.

docs/metrics.md has the formulas. Predictions are gathered from all devices and processes first
(parallel.sharding.fetch), so sums over batches on the host are exact. Imports jax only when it adds sums, so commands
that only read configs and metrics start without it.
"""
import collections
import dataclasses
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np

from alma_jax.config import schema
from alma_jax.config.registry import METRICS, TEXT, register
from alma_jax.config.sections import Metric
from alma_jax.errors import BadInput

Entry = dict[str, Any]
Prediction = tuple[np.ndarray, np.ndarray]  # classes int [B], probabilities float32 [B, K]

CLASSES = "classes"  # in a line of metrics.jsonl: the names of the classes in its lists and matrices
UNKNOWN = "unknown"  # among them: test examples whose class has not come yet
_PREQUENTIAL = "prequential_"
NAMED = CLASSES, _PREQUENTIAL + CLASSES
_BINS = 15  # of the calibration error
_MOST_CLASSES = 100  # of a confusion matrix
_TOP = 5
_ROWS, _TOKENS = 2**12, 2**20  # examples of images, and tokens, that are measured together
_WORST = 3  # classes that a line of status shows


class Targets(NamedTuple):
  """The targets of windows of text: the labels for metrics of text.

  Attributes:
    ids: int32 [B, L], token ids.
    num_bytes: float64 [B, L], UTF-8 bytes of the text of each target; NaN if the tokenizer does not say.
  """
  ids: np.ndarray
  num_bytes: np.ndarray


# ---------------------------------------------------------------------------- metrics of images


@register
@dataclasses.dataclass(frozen=True)
class ClassErrors(Metric):
  """Error rate on the examples of each class."""
  name: str = "class_errors"

  def sums(self, prediction: Prediction, labels: np.ndarray, mask: np.ndarray) -> Any:
    """For each class, the number of examples and how many of them are wrong: int [K] each."""
    classes, probabilities = prediction
    count = lambda which: np.bincount(labels[which], minlength=probabilities.shape[-1])
    return dict(num=count(mask), wrong=count(mask & (classes != labels)))

  def value(self, sums: Any) -> Any:
    num = sums["num"]
    return np.divide(sums["wrong"], num, out=np.full(num.shape, np.nan), where=num > 0)


@register
@dataclasses.dataclass(frozen=True)
class BalancedError(ClassErrors):
  """Mean of the error rates of the classes: 1 minus the balanced accuracy."""
  name: str = "balanced_error"

  def value(self, sums: Any) -> Any:
    return np.nanmean(super().value(sums))


@register
@dataclasses.dataclass(frozen=True)
class MacroF1(ClassErrors):
  """Mean F1 score of all classes that occur among the labels or the predictions."""
  name: str = "macro_f1"

  def sums(self, prediction: Prediction, labels: np.ndarray, mask: np.ndarray) -> Any:
    classes, probabilities = prediction
    predicted = np.bincount(classes[mask], minlength=probabilities.shape[-1])
    return super().sums(prediction, labels, mask) | dict(predicted=predicted)

  def value(self, sums: Any) -> Any:
    right, num = sums["num"] - sums["wrong"], sums["num"]
    either = num + sums["predicted"]  # twice the denominator of F1, and 0 for a class that does not occur
    return (2 * right[either > 0] / either[either > 0]).mean()


@register
@dataclasses.dataclass(frozen=True)
class Confusion(Metric):
  """Confusion matrix, one row per true class; for at most 100 classes."""
  name: str = "confusion"

  def sums(self, prediction: Prediction, labels: np.ndarray, mask: np.ndarray) -> Any:
    num = prediction[1].shape[-1]
    if num > _MOST_CLASSES:
      return np.zeros((0, 0), int)
    return np.bincount(labels[mask] * num + prediction[0][mask], minlength=num * num).reshape(num, num)

  def value(self, sums: Any) -> Any:
    return sums if sums.size else None


@register
@dataclasses.dataclass(frozen=True)
class CalibrationError(Metric):
  """Expected calibration error (Guo et al., 2017) over 15 bins."""
  name: str = "calibration_error"

  def sums(self, prediction: Prediction, labels: np.ndarray, mask: np.ndarray) -> Any:
    """For each bin, the number of examples, the sum of their confidences, and how many are right: [3, 15]."""
    probabilities = prediction[1][mask]
    confidence = probabilities.max(-1).astype(np.float64)
    index = np.minimum((np.nan_to_num(confidence) * _BINS).astype(int), _BINS - 1)
    rows = np.ones(len(index)), confidence, probabilities.argmax(-1) == labels[mask]
    return np.stack([np.bincount(index, row, _BINS) for row in rows])

  def value(self, sums: Any) -> Any:
    num, confidence, right = sums
    return np.abs(confidence - right).sum() / num.sum()


@register
@dataclasses.dataclass(frozen=True)
class TopError(Metric):
  """Fraction of examples whose class is not among the five most probable; for at least six classes."""
  name: str = "top5_error"

  def sums(self, prediction: Prediction, labels: np.ndarray, mask: np.ndarray) -> Any:
    probabilities, labels = prediction[1][mask], labels[mask][:, None]
    right = np.take_along_axis(probabilities, labels, -1)
    before = np.arange(probabilities.shape[-1]) < labels
    rank = ((probabilities > right) | ((probabilities == right) & before)).sum(-1)
    wrong = (rank >= _TOP) | ~(right[:, 0] > 0)  # NaN is wrong
    return np.array([wrong.sum(), len(wrong) if probabilities.shape[-1] > _TOP else 0])

  def value(self, sums: Any) -> Any:
    wrong, num = sums
    return wrong / num if num else None


@register
@dataclasses.dataclass(frozen=True)
class NLL(Metric):
  """Negative log-likelihood of the labels in nats; equals the loss."""
  name: str = "nll"

  def sums(self, prediction: Prediction, labels: np.ndarray, mask: np.ndarray) -> Any:
    right = np.take_along_axis(prediction[1][mask], labels[mask][:, None], -1).astype(np.float64)
    return np.array([-np.log(np.maximum(right, np.finfo(np.float32).tiny)).sum(), len(right)])

  def value(self, sums: Any) -> Any:
    return sums[0] / sums[1]


# ---------------------------------------------------------------------------- metrics of text


@register
@dataclasses.dataclass(frozen=True)
class BitsPerByte(Metric):
  """Loss in bits per UTF-8 byte of the text; comparable across tokenizers."""
  name: str = "bits_per_byte"

  problems: ClassVar[tuple[str, ...]] = (TEXT,)

  def sums(self, prediction: np.ndarray, labels: Targets, mask: np.ndarray) -> Any:
    return np.array([-prediction[mask].sum(dtype=np.float64) / math.log(2), labels.num_bytes[mask].sum()])

  def value(self, sums: Any) -> Any:
    bits, num_bytes = sums
    return bits / num_bytes if num_bytes else math.nan


# ---------------------------------------------------------------------------- measuring


class Totals:
  """Sums of metrics over batches.

  Attributes:
    sums: {name of the metric: sums so far}.
  """

  def __init__(self, metrics: Iterable[Metric]):
    self._metrics = list(metrics)
    self.sums: dict[str, Any] = {}

  def add(self, prediction: Any, labels: Any, mask: np.ndarray) -> None:
    """Adds a batch; see Metric.sums."""
    import jax
    for metric in self._metrics:
      new = metric.sums(prediction, labels, mask)
      if metric.name in self.sums:
        shapes = [jax.tree.map(np.shape, each) for each in (self.sums[metric.name], new)]
        if shapes[0] != shapes[1]:
          raise BadInput(f"the sums of the metric {metric.name!r} have the shapes {shapes[0]} for one batch and "
                         f"{shapes[1]} for another; return shapes that do not depend on the number of examples.")
        new = jax.tree.map(np.add, self.sums[metric.name], new)
      self.sums[metric.name] = new

  def entry(self, names: Sequence[str] | None = None) -> Entry:
    """{name of the metric: value}, ready for JSON; also CLASSES, if a value is a list over the classes `names`."""
    entry: Entry = {}
    for metric in self._metrics:
      value = metric.value(self.sums[metric.name])
      array = np.asarray(value)
      if value is not None and (array.dtype.kind not in "iuf" or array.ndim > 2):
        raise BadInput(f"the metric {metric.name!r} has the value {value!r}; it should be a number, a list of numbers, "
                       "a matrix or None.")
      entry |= {} if value is None else {metric.name: _plain(array.tolist())}
    are_classes = names and any(isinstance(value, list) and len(value) == len(names) for value in entry.values())
    return entry | ({CLASSES: list(names or ())} if are_classes else {})


def chosen(config: schema.RunConfig) -> list[Metric]:
  """The metrics of `log.metrics`."""
  return [METRICS[config.problem][name]() for name in config.log.metrics]


def tried(metrics: Sequence[Metric], batch: Callable[[int], tuple[Any, Any, np.ndarray]]) -> Sequence[Metric]:
  """The same metrics, after two small batches have shown that they can be computed; `batch`: its size -> Totals.add."""
  totals = Totals(metrics)
  for num in (3, 2):
    totals.add(*batch(num))
  totals.entry()
  return metrics


def blank_images(num_classes: int) -> Callable[[int], tuple[Any, Any, np.ndarray]]:
  """Size -> a batch of images of K classes that are all equally probable, see `tried`."""
  return lambda num: ((np.zeros(num, int), np.full((num, num_classes), 1 / num_classes, np.float32)),
                      np.arange(num) % num_classes, np.ones(num, bool))


def blank_text(num: int) -> tuple[Any, Any, np.ndarray]:
  """A batch of windows of four tokens, see `tried`."""
  shape = num, 4
  return np.full(shape, -1, np.float32), Targets(np.zeros(shape, np.int32), np.ones(shape)), np.ones(shape, bool)


def of_images(metrics: Sequence[Metric], prediction: Prediction, y: np.ndarray, names: Sequence[str] | None) -> Entry:
  """The metrics of a prediction (classes, probabilities) for examples with labels y; see Totals.entry.

  A class that the network does not know yet has probability 0. Examples with a negative label, whose class has no
  number yet, form one extra class, the last, called UNKNOWN.
  """
  if not metrics:
    return {}
  (classes, probabilities), totals = prediction, Totals(metrics)
  num = max(probabilities.shape[-1], int(y.max()) + 1)
  width = num + bool((y < 0).any())
  y = np.where(y < 0, num, y)
  if names:
    names = [*names[:num], *map(str, range(len(names), num)), *[UNKNOWN] * (width > num)]
  for start in range(0, len(y), _ROWS):
    rows = slice(start, start + _ROWS)
    part = np.pad(probabilities[rows], ((0, 0), (0, width - probabilities.shape[-1])))
    totals.add((classes[rows], part), y[rows], np.ones(len(part), bool))
  return totals.entry(names)


def of_text(metrics: Sequence[Metric], log_probs: np.ndarray, length: np.ndarray,
            targets: Callable[[slice], Targets]) -> Entry:
  """The metrics of log-probabilities [N, L]; in each row, the first `length` [N] count. `targets`: rows -> Targets."""
  if not metrics:
    return {}
  totals, num = Totals(metrics), max(1, _TOKENS // log_probs.shape[1])
  for start in range(0, len(length), num):
    rows = slice(start, start + num)
    mask = np.arange(log_probs.shape[1])[None] < length[rows, None]
    totals.add(log_probs[rows], targets(rows), mask)
  return totals.entry()


def prequential(entry: Entry) -> Entry:
  """The entry of predictions on data before training on them: all names begin with prequential_."""
  return {_PREQUENTIAL + name: _plain(value) for name, value in entry.items()}


def _plain(value: Any) -> Any:
  """Numbers and nested lists of them as JSON can hold them: None in place of what is infinite or NaN."""
  if isinstance(value, list):
    return [*map(_plain, value)]
  return None if isinstance(value, float) and not math.isfinite(value) else value


# ---------------------------------------------------------------------------- showing


def parts(entry: Entry, names: Sequence[str]) -> Iterator[tuple[str, Any]]:
  """Yields (key, value) of the metrics `names` in a line of metrics.jsonl.

  The value is a number or, for a list, {name of the class: number}. Matrices and unknown values are left out.
  """
  number = lambda value: type(value) in (int, float)
  for key in _keys(names):
    value, classes = entry.get(key), entry.get(_PREQUENTIAL * key.startswith(_PREQUENTIAL) + CLASSES) or []
    if number(value):
      yield key, value
    elif isinstance(value, list) and not any(isinstance(each, list) for each in value):
      named = classes if len(classes) == len(value) else [*map(str, range(len(value)))]
      times = collections.Counter(named)  # data sets of TFDS may give two classes one name
      yield key, {name if times[name] == 1 else f"{name} ({place})": each
                  for place, (name, each) in enumerate(zip(named, value)) if number(each)}


def scalars(entry: Entry, names: Sequence[str]) -> Entry:
  """A line of metrics.jsonl with a number METRIC/CLASS in place of each list of the metrics, and without matrices."""
  keys = {*_keys([CLASSES, *names])}
  entry, found = {key: value for key, value in entry.items() if key not in keys}, dict(parts(entry, names))
  for key, value in found.items():
    entry |= {f"{key}/{name}": each for name, each in value.items()} if isinstance(value, dict) else {key: value}
  return entry


def newest(lines: Sequence[Entry], names: Sequence[str]) -> Entry:
  """{key: value} as `parts` yields them, each from the last line that has the key."""
  found: Entry = {}
  for line in lines:
    found |= dict(parts(line, names))
  return {key: found[key] for key in _keys(names) if key in found}


def brief(found: Entry) -> list[str]:
  """The result of `newest` as text, e.g. "nll 0.31" and "class_errors largest cat 0.4, dog 0.3, owl 0.1".

  A prequential value is left out if there is also one on the test set.
  """
  texts = []
  for key, value in found.items():
    if key.startswith(_PREQUENTIAL) and key.removeprefix(_PREQUENTIAL) in found:
      continue
    if isinstance(value, dict):
      largest = sorted(value.items(), key=lambda each: -each[1])[:_WORST]
      texts.append(f"{key} largest {', '.join(f'{name} {each:.4g}' for name, each in largest)}")
    else:
      texts.append(f"{key} {value:.4g}")
  return texts


def _keys(names: Sequence[str]) -> list[str]:
  """The keys of the metrics `names` in a line of metrics.jsonl."""
  return [prefix + name for prefix in ("", _PREQUENTIAL) for name in names]
