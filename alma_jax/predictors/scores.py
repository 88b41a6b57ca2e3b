"""Scores of predictions on labelled data. Imports no jax."""
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

_BINS = 15  # of the calibration error
_SHOWN = 10  # classes of the summary, those with the largest errors


class Scores:
  """Sums over classified examples, which are divided once, at the end."""

  def __init__(self, classes: int):
    """`classes`: K."""
    self._confusion = np.zeros((classes, classes), np.int64)  # [label, prediction]
    self._loss = 0.0
    self._bins = np.zeros((3, _BINS))  # examples, sum of their confidence, number that are right

  def add(self, classes: np.ndarray, probabilities: np.ndarray, y: np.ndarray) -> None:
    """Adds examples: predicted classes int [B], probabilities float [B, K] and labels int [B]."""
    np.add.at(self._confusion, (y, classes), 1)
    right = probabilities[np.arange(len(y)), y].astype(np.float64)
    self._loss -= float(np.log(np.maximum(right, np.finfo(np.float32).tiny)).sum())
    confidence = probabilities.max(-1).astype(np.float64)
    index = np.minimum((confidence * _BINS).astype(int), _BINS - 1)
    for row, weight in enumerate((np.ones(len(y)), confidence, probabilities.argmax(-1) == y)):
      self._bins[row] += np.bincount(index, weight, _BINS)

  def summary(self) -> dict[str, Any]:
    """What the examples so far say.

    Returns:
      Dict of num_examples; error, and its standard error; loss, mean cross-entropy in nats; calibration_error, the
      expected calibration error (Guo et al., 2017) over 15 bins; class_errors and class_examples, lists over the
      classes, null for a class without examples.
    """
    counts, right = self._confusion.sum(1), self._confusion.diagonal()
    num = int(counts.sum())
    error = (num - int(right.sum())) / num  # to the bit that of the run
    gap = np.abs(self._bins[1] - self._bins[2]).sum() / num
    return dict(
        num_examples=num, error=error, error_standard_error=math.sqrt(error * (1 - error) / num),
        loss=self._loss / num, calibration_error=float(gap),
        class_errors=[int(n - r) / int(n) if n else None for r, n in zip(right, counts)],
        class_examples=counts.tolist())


def text(found: Mapping[str, Any], names: Sequence[str] | None) -> str:
  """What `Scores.summary` returned, for people."""
  lines = [f"error {found['error']:.4f} ± {found['error_standard_error']:.4f}, loss {found['loss']:.4f} nats, "
           f"calibration error {found['calibration_error']:.4f}, over {found['num_examples']:,} examples"]
  errors = [(error, k) for k, error in enumerate(found["class_errors"]) if error is not None]
  worst = sorted(errors, key=lambda each: (-each[0], each[1]))[:_SHOWN]
  title = f"class error, the largest {_SHOWN} of {len(errors)}" if len(errors) > _SHOWN else "class error"
  width = max(len(str(names[k] if names else k)) for _, k in worst)
  lines += [f"{title}:", *(f"  {names[k] if names else k!s:<{width}}  {error:.4f} of {found['class_examples'][k]:,}"
                           for error, k in worst)]
  return "\n".join(lines)
