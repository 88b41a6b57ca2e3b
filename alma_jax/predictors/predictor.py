"""Answers the commands and the HTTP service, for images and for texts.

program.py loads and calls the program, scores.py measures it, answers.py writes tables, requests.py reads requests.
"""
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from alma_jax.config.sections import Metric
from alma_jax.data import examples, tokens, unpacking
from alma_jax.data.labels import Labels
from alma_jax.errors import BadInput
from alma_jax.parallel import environment
from alma_jax.predictors import answers, folder, inputs, requests, scores, texts
from alma_jax.predictors.program import Program
from alma_jax.problems import measures

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
    return (TextPredictor if stored.description.vocabulary else ImagePredictor)(stored, before)
  except Exception as error:  # jax raises many kinds
    raise BadInput(f"the predictor cannot be loaded ({type(error).__name__}: {unpacking.first_line(error)}); export "
                   "it again.") from error


class Predictor:
  """A predictor that is ready to be asked.

  Attributes:
    version: its name, see folder.Stored.
    program: what predicts a batch.
    known: what predictor.json says.
  """
  def __init__(self, stored: folder.Stored, before: "Predictor | None" = None):
    """See `load`."""
    self.version, self.known = stored.version, stored.description
    self.program: Program = Program(stored, None if before is None else before.program)

  def tables(self, paths: Sequence[str], image_column: str) -> Iterator[dict[str, Any]]:
    """Predicts the examples of files and folders; yields rows of a table, {column: values}, see answers.table."""
    raise NotImplementedError

  def labelled(self, data: str, images: Callable[[], Iterable[examples.Examples]]) -> Iterable[Any]:
    """What `evaluate` takes, of new data that the user calls `data`; `images` reads them if they are images."""
    raise NotImplementedError

  def cut(self, found: Any, what: str, with_unknown: bool = False) -> Iterable[Any]:
    """What `evaluate` takes, of a test set, see sections.DataSet.tested.

    Args:
      found: the test set.
      what: how messages call it.
      with_unknown: whether classes that the predictor does not know count as one more; otherwise they are refused.
    """
    raise NotImplementedError

  def evaluate(self, data: str, given: Iterable[Any], metrics: Sequence[Metric]) -> scores.Scores:
    """The metrics on labelled data.

    Args:
      data: how messages call them.
      given: labelled images, data.examples.Examples of at most `program.batch_size`; or documents as bytes.
      metrics: to measure besides those that every predictor has.

    Returns:
      See scores.Scores.
    """
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


class ImagePredictor(Predictor):
  """A predictor of the classes of images."""

  def classified(self, x: np.ndarray) -> tuple[np.ndarray, ...]:
    """(classes int32 [N], probabilities float32 [N, K]) of examples [N, ...], in batches as `tables` makes of a file.

    Raises:
      BadInput: they are not like the training examples. The message begins with "it".
    """
    x, size = self.known.form.fit(x), self.program.batch_size
    starts = range(0, len(x), size)
    parts = [self.program(x[start:start + size], size if len(starts) > 1 else None) for start in starts]
    return tuple(map(np.concatenate, zip(*parts)))

  def tables(self, paths: Sequence[str], image_column: str) -> Iterator[dict[str, Any]]:
    reader = examples.Reader(self.known.form, labelled=False, part=examples.TEST, image_column=image_column)
    for batch, classes, probabilities in self._classified(inputs.read(paths, reader, self.program.batch_size)):
      yield answers.rows(batch.source, batch.row, classes, probabilities, self.known.classes.names)

  def labelled(self, data: str, images: Callable[[], Iterable[examples.Examples]]) -> Iterable[examples.Examples]:
    return images()

  def cut(self, found: examples.Examples, what: str, with_unknown: bool = False) -> Iterator[examples.Examples]:
    size, known = self.program.batch_size, self.known.classes
    with examples.named(what):
      assert found.labels is not None
      x, y = self.known.form.fit(found.x), known.number(found.labels, known.num if with_unknown else None)
    names = (*(known.names or map(str, range(known.num))), measures.UNKNOWN) if (y == known.num).any() else None
    for start in range(0, len(x), size):
      rows = slice(start, start + size)
      yield examples.Examples(found.source[rows], found.row[rows], x[rows], Labels(y[rows], names))

  def evaluate(self, data: str, given: Iterable[Any], metrics: Sequence[Metric]) -> scores.Scores:
    return scores.of_images(self.known, data, metrics, self._classified(given))

  def prepared(self, most: int) -> tuple[list[int], int]:
    sizes, quick, most = [1], 0, min(most, self.program.batch_size)
    while sizes[-1] < most:
      sizes.append(min(sizes[-1] * _STEP, most))
    for size in sizes:
      x = np.zeros((size, *self.known.shape), self.known.dtype)
      self.program(x, size)
      began = time.perf_counter()
      self.program(x, size)
      if time.perf_counter() - began < _QUICK:
        quick = size
    return sizes, quick

  def requested(self, body: bytes, kind: str) -> np.ndarray:
    return requests.images(body, kind, self.known)

  def answered(self, given: np.ndarray, sizes: Sequence[int]) -> dict[str, Any]:
    classes, probabilities = [], []
    for start in range(0, len(given), sizes[-1]):
      part = given[start:start + sizes[-1]]
      found = self.program(part, next(size for size in sizes if size >= len(part)))
      classes += found[0].tolist()
      probabilities += found[1].tolist()
    names = self.known.classes.names
    return dict(classes=[names[k] for k in classes] if names else classes, probabilities=probabilities)

  def _classified(self, batches: Iterable[examples.Examples]
                  ) -> Iterator[tuple[examples.Examples, np.ndarray, np.ndarray]]:
    """Yields (batch, classes [B], probabilities [B, K]), and shows the progress."""
    size, is_first = self.program.batch_size, True
    with _progress("images") as shown:
      for batch in batches:
        # the first batch decides; a small one does not have to be padded to the full size
        classes, probabilities = self.program(batch.x, None if is_first and len(batch.x) < size else size)
        is_first = False
        yield batch, classes, probabilities
        shown.update(len(batch.x))


class TextPredictor(Predictor):
  """A language model."""

  def __init__(self, stored: folder.Stored, before: Predictor | None = None):
    super().__init__(stored, before)
    self._tokenizer = tokens.parse(stored.files[folder.TOKENIZER].decode())

  def tables(self, paths: Sequence[str], image_column: str) -> Iterator[dict[str, Any]]:
    del image_column
    with _progress("texts") as shown:
      for document in texts.read(paths):
        found = self._score(document.text.decode())
        yield {"input": [answers.printable(document.source)], "row": [None if document.row < 0 else document.row],
               **{name: [value] for name, value in found.items()}}
        shown.update(1)

  def labelled(self, data: str, images: Callable[[], Iterable[examples.Examples]]) -> Iterator[bytes]:
    return (document.text for document in texts.read([data.removeprefix("text:")]))

  def cut(self, found: Sequence[bytes], what: str, with_unknown: bool = False) -> Sequence[bytes]:
    return found

  def evaluate(self, data: str, given: Iterable[Any], metrics: Sequence[Metric]) -> scores.Scores:
    del data
    return scores.of_texts(self.program, self.known, self._tokenizer, list(given), self.program.batch_size, metrics)

  def prepared(self, most: int) -> tuple[list[int], int]:
    size = self.program.batch_size
    self.program(np.zeros((size, *self.known.shape), self.known.dtype))
    return [size], 0

  def requested(self, body: bytes, kind: str) -> list[str]:
    return requests.texts(body, kind, self.known)

  def answered(self, given: Sequence[str], sizes: Sequence[int]) -> dict[str, Any]:
    return dict(texts=[*map(self._score, given)])

  def _score(self, text: str) -> dict[str, Any]:
    return texts.score(self.program, self._tokenizer, text, self.known.shape[0], self.program.batch_size)


def _progress(unit: str) -> Any:
  """The number of examples so far on a terminal, and nothing elsewhere."""
  from tqdm import tqdm
  return tqdm(unit=f" {unit}", unit_scale=True, disable=not sys.stderr.isatty(), leave=False)
