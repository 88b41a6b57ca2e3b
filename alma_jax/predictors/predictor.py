"""Runs an exported predictor: loads its program and weights, and compiles it for a few sizes of batches.

A predictor takes images or texts; the two classes answer the commands and the HTTP service.
"""
import io
import math
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, ClassVar

import jax
import numpy as np
from jax import export

from alma_jax import commands
from alma_jax.config.registry import IMAGES, TEXT
from alma_jax.config.sections import Metric
from alma_jax.data import cache, examples, tokens, unpacking
from alma_jax.data.form import Form
from alma_jax.errors import BadInput
from alma_jax.parallel import environment
from alma_jax.predictors import answers, folder, inputs, requests, texts
from alma_jax.problems import measures

_BASIC = (measures.ClassErrors(), measures.NLL(), measures.CalibrationError())  # of images, always measured
_SHOWN = 10  # classes of a description, those with the largest errors
_BATCH_BYTES = 2**22  # of the inputs of a batch as float32, and of the outputs of a language model
_MOST = 4096  # examples of a batch
_STEP = 4  # batches of a service are padded to powers of it, each of which is compiled
_QUICK = 2e-3  # seconds of a batch that a service computes without leaving its event loop


@environment.fixed()
def load(stored: folder.Stored, before: "Predictor | None" = None) -> "Predictor":
  """The predictor of some files.

  Args:
    stored: the files.
    before: a predictor that it replaces. If both have the same program, what was compiled for it is used again.

  Raises:
    BadInput: the files are not those of a predictor, or jax cannot run them on this machine.
  """
  try:
    known = folder.parse(stored.files[folder.FACTS])
    return (TextPredictor if "vocabulary" in known else ImagePredictor)(known, stored, before)
  except Exception as error:  # jax raises many kinds
    raise BadInput(f"the predictor cannot be loaded ({type(error).__name__}: {unpacking.first_line(error)}); export "
                   "it again.") from error


class Predictor:
  """A predictor that is ready to be called.

  Attributes:
    problem: what it answers, a name of config.registry.
    facts: entries of predictor.json.
    version: name of the version, see folder.Stored.
    shape, dtype: of one input.
    form: of the images that it takes; None: it takes texts.
    outputs: numbers that an input leads to for each of its own, by which batches are bounded.
  """
  problem: ClassVar[str] = IMAGES
  shape: tuple[int, ...]
  dtype: np.dtype
  form: Form | None = None
  outputs: int = 1

  def __init__(self, known: dict[str, Any], stored: folder.Stored, before: "Predictor | None" = None):
    """See `load`; `known` are the entries of predictor.json."""
    self.facts, self.version, self._bytes = known, stored.version, stored.files[folder.PROGRAM]
    if before is not None and before._bytes == self._bytes:
      self._program: export.Exported = before._program
      self._call: Callable[..., Any] = before._call
    else:
      environment.keep_programs()
      self._program = export.deserialize(bytearray(self._bytes))
      self._call = jax.jit(self._program.call)
    self._weights = jax.device_put(_weights(stored, self._program.in_avals[:-1]))

  def tables(self, paths: Sequence[str], image_column: str) -> Iterator[dict[str, Any]]:
    """Predicts the examples of files and folders; yields rows of a table, {column: values}, see answers.Table."""
    raise NotImplementedError

  def evaluate(self, data: str, given: Iterable[Any], metrics: Sequence[Metric]) -> tuple[dict[str, Any], list[int]]:
    """The metrics on labelled data.

    Args:
      data: how messages call them.
      given: labelled images, data.examples.Examples of at most `batch_size`; or documents as bytes.
      metrics: to measure besides those that every predictor has.

    Returns:
      ({name: value}, a hash of each example).
    """
    raise NotImplementedError

  def describe(self, found: dict[str, Any], names: Sequence[str]) -> str:
    """What `evaluate` returned, for people; `names` of the metrics that were asked for."""
    raise NotImplementedError

  def prepared(self, most: int) -> tuple[list[int], int]:
    """Compiles the program for a service.

    Args:
      most: examples of a request, at most.

    Returns:
      (sizes of batches, ascending, number of examples that are answered at once).
    """
    raise NotImplementedError

  def requested(self, body: bytes, kind: str) -> Sequence[Any] | np.ndarray:
    """The examples of a request with a content type; raises requests.Refused."""
    raise NotImplementedError

  def answered(self, given: Any, sizes: Sequence[int]) -> dict[str, Any]:
    """The answer to what `requested` returned, in batches of the sizes that `prepared` returned."""
    raise NotImplementedError

  @property
  def batch_size(self) -> int:
    """A good number of examples of a batch, a power of two."""
    one = int(np.prod(self.shape)) * 4 * self.outputs
    return int(np.clip(1 << (max(_BATCH_BYTES // one, 1).bit_length() - 1), 1, _MOST))

  @environment.fixed()
  def __call__(self, x: np.ndarray, size: int | None = None) -> tuple[np.ndarray, ...]:
    """Predicts one batch.

    Args:
      x: inputs [B, ...] of the predictor's shape and dtype, B at least 1.
      size: to which the batch is padded, at least B; None: the next power of two.

    Returns:
      For images (classes int32 [B], probabilities float32 [B, K]); for text (log-probabilities float32 [B, L, V],).

    Raises:
      BadInput: jax cannot compile the program for so many examples, or run it.
    """
    num = len(x)
    size = size or 1 << (num - 1).bit_length()
    if num < size:
      x = np.concatenate([x, np.zeros((size - num, *x.shape[1:]), x.dtype)])
    try:
      # np.asarray waits; jax.device_get does more for a tuple, and takes longer than the program of a small network
      return tuple(np.asarray(each)[:num] for each in self._call(*self._weights, x))
    except (RuntimeError, ValueError) as error:
      raise BadInput(f"the predictor cannot run on batches of {size} ({unpacking.first_line(error)}); export it "
                     "again.") from error


class ImagePredictor(Predictor):
  """A predictor of the classes of images."""

  def __init__(self, known: dict[str, Any], stored: folder.Stored, before: Predictor | None = None):
    super().__init__(known, stored, before)
    self.form = inputs.form_of(known)
    self.shape, self.dtype = tuple(known["example_shape"]), np.dtype(known["dtype"])

  def tables(self, paths: Sequence[str], image_column: str) -> Iterator[dict[str, Any]]:
    reader = examples.Reader(inputs.form_of(self.facts), labelled=False, part=examples.TEST, image_column=image_column)
    names = inputs.classes_of(self.facts).names
    batches = inputs.read(paths, reader, self.batch_size)
    for batch, classes, probabilities in self._classified(batches):
      yield answers.rows(batch.source, batch.row, classes, probabilities, names)

  def evaluate(self, data: str, given: Iterable[Any], metrics: Sequence[Metric]) -> tuple[dict[str, Any], list[int]]:
    hashes: list[int] = []
    mistakes: list[dict[str, Any]] = []
    names = self.facts.get("class_names") or range(self.facts["classes"])
    values = inputs.Scale(self.facts)
    totals = measures.Totals({metric.name: metric for metric in (*_BASIC, *metrics)}.values())
    for batch, classes, probabilities in self._classified(given):
      assert batch.labels is not None
      totals.add((classes, probabilities), batch.labels.numbers, np.ones(len(classes), bool))
      values.add(batch.x)
      hashes.extend(map(cache.hash_row, batch.x))
      mistakes += [dict(input=answers.printable(batch.source[i]), row=None if batch.row[i] < 0 else batch.row[i],
                        label=names[batch.labels.numbers[i]], predicted=names[classes[i]])
                   for i in np.flatnonzero(classes != batch.labels.numbers)]
    commands.warn(filter(None, [values.warning(data)]))
    counts, found = totals.sums[_BASIC[0].name], totals.entry(inputs.classes_of(self.facts).names)
    num = int(counts["num"].sum())
    error = int(counts["wrong"].sum()) / num  # equal to the run's, to the bit
    return dict(num_examples=num, error=error, error_standard_error=math.sqrt(error * (1 - error) / num),
                loss=found["nll"]) | found | dict(class_examples=counts["num"].tolist(), mistakes=mistakes), hashes

  def describe(self, found: dict[str, Any], names: Sequence[str]) -> str:
    lines = [f"error {found['error']:.4f} ± {found['error_standard_error']:.4f}, loss {found['loss']:.4f} nats, "
             f"calibration error {found['calibration_error']:.4f}, over {found['num_examples']:,} examples"]
    classes = self.facts.get("class_names") or range(self.facts["classes"])
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

  def prepared(self, most: int) -> tuple[list[int], int]:
    sizes, quick, most = [1], 0, min(most, self.batch_size)
    while sizes[-1] < most:
      sizes.append(min(sizes[-1] * _STEP, most))
    for size in sizes:
      x = np.zeros((size, *self.shape), self.dtype)
      self(x, size)
      began = time.perf_counter()
      self(x, size)
      if time.perf_counter() - began < _QUICK:
        quick = size
    return sizes, quick

  def requested(self, body: bytes, kind: str) -> np.ndarray:
    return requests.images(body, kind, self.facts)

  def answered(self, given: np.ndarray, sizes: Sequence[int]) -> dict[str, Any]:
    classes, probabilities = [], []
    for start in range(0, len(given), sizes[-1]):
      part = given[start:start + sizes[-1]]
      found = self(part, next(size for size in sizes if size >= len(part)))
      classes += found[0].tolist()
      probabilities += found[1].tolist()
    names = self.facts.get("class_names")
    return dict(classes=[names[k] for k in classes] if names else classes, probabilities=probabilities)

  def _classified(self, batches: Iterable[examples.Examples]
                  ) -> Iterator[tuple[examples.Examples, np.ndarray, np.ndarray]]:
    """Yields (batch, classes [B], probabilities [B, K]), and shows the progress."""
    size, is_first = self.batch_size, True
    with _progress("images") as shown:
      for batch in batches:
        # the first batch decides; a small one does not have to be padded to the full size
        classes, probabilities = self(batch.x, None if is_first and len(batch.x) < size else size)
        is_first = False
        yield batch, classes, probabilities
        shown.update(len(batch.x))


class TextPredictor(Predictor):
  """A language model."""
  problem: ClassVar[str] = TEXT
  dtype = np.dtype(np.int32)

  def __init__(self, known: dict[str, Any], stored: folder.Stored, before: Predictor | None = None):
    super().__init__(known, stored, before)
    self._length, self.outputs = known["sequence_length"], known["vocabulary"]
    self.shape = (self._length,)
    self._tokenizer = tokens.parse(stored.files[folder.TOKENIZER].decode())

  def tables(self, paths: Sequence[str], image_column: str) -> Iterator[dict[str, Any]]:
    del image_column
    with _progress("texts") as shown:
      for document in texts.read(paths):
        found = self._score(document.text.decode())
        yield {"input": [answers.printable(document.source)], "row": [None if document.row < 0 else document.row],
               **{name: [value] for name, value in found.items()}}
        shown.update(1)

  def evaluate(self, data: str, given: Iterable[Any], metrics: Sequence[Metric]) -> tuple[dict[str, Any], list[int]]:
    documents = list(given)
    windows, counts = texts.windows(self._tokenizer, [document.decode() for document in documents], self._length)
    total, num_bytes, totals = 0.0, tokens.num_bytes(self._tokenizer), measures.Totals(metrics)
    for batch in texts.batches(self, windows, counts, self.batch_size):
      total += float(batch.log_probs[batch.mask].sum(dtype=np.float64))
      totals.add(batch.log_probs, measures.Targets(batch.targets, num_bytes[batch.targets]), batch.mask)
    loss = -total / int(counts.sum())
    found = dict(num_documents=len(documents), num_tokens=int(counts.sum()), loss=loss, perplexity=float(np.exp(loss)))
    return found | totals.entry(), [cache.hash_row(document.strip()) for document in documents]

  def describe(self, found: dict[str, Any], names: Sequence[str]) -> str:
    line = (f"perplexity {found['perplexity']:.2f}, loss {found['loss']:.4f} nats a token, over "
            f"{found['num_tokens']:,} tokens of {found['num_documents']} documents")
    return "\n".join([line, *measures.brief(measures.newest([found], names))])

  def prepared(self, most: int) -> tuple[list[int], int]:
    self(np.zeros((self.batch_size, *self.shape), self.dtype))
    return [self.batch_size], 0

  def requested(self, body: bytes, kind: str) -> list[str]:
    return requests.texts(body, kind, self.facts)

  def answered(self, given: Sequence[str], sizes: Sequence[int]) -> dict[str, Any]:
    return dict(texts=[*map(self._score, given)])

  def _score(self, text: str) -> dict[str, Any]:
    return texts.score(self, self._tokenizer, text, self._length, self.batch_size)


def _progress(unit: str) -> Any:
  """The number of examples so far on a terminal, and nothing elsewhere."""
  from tqdm import tqdm
  return tqdm(unit=f" {unit}", unit_scale=True, disable=not sys.stderr.isatty(), leave=False)


def _weights(stored: folder.Stored, avals: Any) -> list[np.ndarray]:
  """The arrays of weights.npz, of the shapes and dtypes that the program takes."""
  arrays = unpacking.read_npz(io.BytesIO(stored.files[folder.WEIGHTS]))
  weights = [arrays[str(i)].view(aval.dtype) for i, aval in enumerate(avals)]
  if [leaf.shape for leaf in weights] != [aval.shape for aval in avals]:
    raise ValueError("the weights are not those of the program")
  return weights
