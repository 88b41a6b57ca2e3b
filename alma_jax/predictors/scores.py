"""How good a predictor is on labelled images and on texts, for `alma evaluate`. Imports no jax."""
import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from alma_jax import commands
from alma_jax.config.sections import Metric
from alma_jax.data import cache, tokens
from alma_jax.data.examples import Examples
from alma_jax.predictors import answers, inputs, texts
from alma_jax.predictors.description import Description
from alma_jax.problems import measures

_BASIC = (measures.ClassErrors(), measures.NLL(), measures.CalibrationError())  # of images, always measured
_SHOWN = 10  # classes of a description, those with the largest errors


Scores = tuple[dict[str, Any], str, list[int]]  # ({name: value} for JSON, the same for people, a hash of each example)


def of_images(known: Description, data: str, metrics: Sequence[Metric],
              predicted: Iterable[tuple[Examples, np.ndarray, np.ndarray]]) -> Scores:
  """The scores of predictions (batch, classes [B], probabilities [B, K]); `data` is how the user calls the images."""
  hashes: list[int] = []
  mistakes: list[dict[str, Any]] = []
  names: Sequence[Any] = known.classes.names or range(known.classes.num)
  values = inputs.Scale(known.constants, len(known.shape) == 3)
  totals = measures.Totals({metric.name: metric for metric in (*_BASIC, *metrics)}.values())
  num = wrong = 0
  for batch, classes, probabilities in predicted:
    assert batch.labels is not None
    names = batch.labels.names or names  # with one more for classes that the predictor does not know
    probabilities = np.pad(probabilities, ((0, 0), (0, len(names) - probabilities.shape[-1])))
    is_wrong = classes != batch.labels.numbers
    num, wrong = num + len(classes), wrong + int(is_wrong.sum())
    totals.add((classes, probabilities), batch.labels.numbers, np.ones(len(classes), bool))
    values.add(batch.x)
    hashes.extend(map(cache.hash_row, batch.x))
    mistakes += [dict(input=answers.printable(batch.source[i]), row=None if batch.row[i] < 0 else batch.row[i],
                      label=names[batch.labels.numbers[i]], predicted=names[classes[i]])
                 for i in np.flatnonzero(is_wrong)]
  commands.warn(filter(None, [values.warning(data)]))
  counts = totals.sums[_BASIC[0].name]
  found = totals.entry([*map(str, names)] if known.classes.names else ())
  error = wrong / num  # equal to the run's, to the bit
  found = dict(num_examples=num, error=error, error_standard_error=math.sqrt(error * (1 - error) / num),
               loss=found["nll"]) | found | dict(class_examples=counts["num"].tolist(), mistakes=mistakes)
  return found, _shown(found, names, [metric.name for metric in metrics]), hashes


def of_texts(predict: texts.LogProbs, known: Description, tokenizer: Any, documents: Sequence[bytes], size: int,
             metrics: Sequence[Metric]) -> Scores:
  """The scores of a language model, which predicts `size` windows at a time, for UTF-8 documents."""
  windows, counts = texts.windows(tokenizer, [document.decode() for document in documents],
                                   known.shape[0])
  total, num_bytes, totals = 0.0, tokens.num_bytes(tokenizer), measures.Totals(metrics)
  for batch in texts.batches(predict, windows, counts, size):
    total += float(batch.log_probs[batch.mask].sum(dtype=np.float64))
    totals.add(batch.log_probs, measures.Targets(batch.targets, num_bytes[batch.targets]), batch.mask)
  loss, num = -total / int(counts.sum()), int(counts.sum())
  found = dict(num_documents=len(documents), num_tokens=num, loss=loss, perplexity=float(np.exp(loss))) | totals.entry()
  line = (f"perplexity {found['perplexity']:.2f}, loss {loss:.4f} nats a token, over {num:,} tokens of "
          f"{len(documents)} documents")
  further = measures.brief(measures.newest([found], [metric.name for metric in metrics]))
  return found, "\n".join([line, *further]), [cache.hash_row(document.strip()) for document in documents]


def _shown(found: dict[str, Any], classes: Sequence[Any], names: Sequence[str]) -> str:
  lines = [f"error {found['error']:.4f} ± {found['error_standard_error']:.4f}, loss {found['loss']:.4f} nats, "
           f"calibration error {found['calibration_error']:.4f}, over {found['num_examples']:,} examples"]
  errors = [(error, k) for k, error in enumerate(found["class_errors"]) if error is not None]
  worst = sorted(errors, key=lambda each: (-each[0], each[1]))[:_SHOWN]
  title = f"class error, the largest {_SHOWN} of {len(errors)}" if len(errors) > _SHOWN else "class error"
  width = max(len(str(classes[k])) for _, k in worst)
  lines += [f"{title}:", *(f"  {classes[k]!s:<{width}}  {error:.4f} of {found['class_examples'][k]:,}"
                           for error, k in worst)]
  further = [name for name in names if name not in {metric.name for metric in _BASIC}]
  if "confusion" in further and found.get("confusion"):
    width = max(len(str(each)) for row in found["confusion"] for each in row)
    lines += ["confusion, a row for each true class:", *(
        "  " + " ".join(f"{each:>{width}}" for each in row) for row in found["confusion"])]
  return "\n".join([*lines, *measures.brief(measures.newest([found], further))])
