"""Texts for a predictor of language: documents, windows of tokens, scores. Imports no jax."""
import pathlib
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from alma_jax.data import folders, text_line, tokens
from alma_jax.errors import BadInput

LogProbs = Callable[[np.ndarray], tuple[np.ndarray, ...]]  # tokens int32 [B, L] -> (log-probabilities [B, L, V],)


class Document(NamedTuple):
  """A text and where it comes from; `row` counts the lines of a .jsonl file from 0, and is -1 for a .txt file."""
  source: str
  row: int
  text: str


class Score(NamedTuple):
  """How well a text is predicted.

  Attributes:
    num_tokens: tokens that were predicted, the end of the document included.
    log_probability: their sum in nats.
    next_token: the likeliest token after the text, and its probability.
  """
  num_tokens: int
  log_probability: float
  next_token: tuple[str, float]

  @property
  def perplexity(self) -> float:
    """exp of the mean negative log-probability of a token."""
    with np.errstate(over="ignore"):
      return float(np.exp(-self.log_probability / self.num_tokens))


def read(paths: Sequence[str]) -> Iterator[Document]:
  """Yields the documents of .txt files, of .jsonl files with one in every line, and of folders of such files.

  Raises:
    BadInput: a file does not exist, is not UTF-8, holds no text, or a line is no document.
  """
  for name in paths:
    path = pathlib.Path(name).expanduser()
    if not path.exists():
      raise BadInput(f"there is no file or folder {str(path)!r}; give a .txt or .jsonl file, or a folder of them.")
    files = _files(path) if path.is_dir() else [path]
    if not files:
      raise BadInput(f"there is no text in {str(path)!r}; give a .txt or .jsonl file, or a folder of them.")
    for file in files:
      if file.suffix.lower() not in text_line.SUFFIXES:
        raise BadInput(f"{str(file)!r} is no text, but the predictor is a language model; give .txt or .jsonl files.")
      try:
        content = file.read_text(encoding="utf-8-sig")
      except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"{str(file)!r} cannot be read as UTF-8 ({error}); convert it.") from error
      if not content.strip():
        raise BadInput(f"{str(file)!r} holds no text.")
      if file.suffix.lower() == text_line.DOCUMENT:
        yield Document(str(file), -1, content)
      else:
        yield from _lines(file, content)


def windows(tokenizer: Any, documents: Sequence[str], length: int) -> tuple[np.ndarray, np.ndarray]:
  """Documents as windows of tokens: each begins and ends with the END, and every token but the first is a target once.

  Args:
    tokenizer: of the predictor.
    documents: texts, which follow one another as one sequence of tokens.
    length: L.

  Returns:
    (tokens int32 [N, L + 1], number of targets int [N]); the rest of the last window is 0.
  """
  end, sequence = tokenizer.token_to_id(tokens.END), []
  for text in documents:
    sequence += [end, *tokens.encode_one(tokenizer, text)]
  sequence.append(end)
  num = -(-(len(sequence) - 1) // length)
  found, counts = np.zeros((num, length + 1), np.int32), np.zeros(num, int)
  for i in range(num):
    part = sequence[i * length:i * length + length + 1]
    found[i, :len(part)], counts[i] = part, len(part) - 1
  return found, counts


def score(predict: LogProbs, tokenizer: Any, text: str, length: int, size: int) -> Score:
  """The Score of one text; windows of L tokens are predicted `size` at a time."""
  tokens_NL, counts = windows(tokenizer, [text], length)
  total, after = sums(predict, tokens_NL, counts, size)
  best = int(after.argmax())
  return Score(int(counts.sum()), total, (tokenizer.decode([best], skip_special_tokens=False),
                                          float(np.exp(after[best]))))


def sums(predict: LogProbs, tokens_NL: np.ndarray, counts: np.ndarray, size: int) -> tuple[float, np.ndarray]:
  """(sum of the targets' log-probabilities in nats, log-probabilities [V] of what follows before the last target)."""
  total, after = 0.0, np.zeros(1)
  for start in range(0, len(tokens_NL), size):
    part, num = tokens_NL[start:start + size], counts[start:start + size]
    log_probs = predict(part[:, :-1])[0]
    chosen = np.take_along_axis(log_probs, part[:, 1:, None], -1)[..., 0]
    total += float(chosen[np.arange(chosen.shape[1])[None] < num[:, None]].sum(dtype=np.float64))
    after = log_probs[-1, num[-1] - 1]
  return total, after


def _files(folder: pathlib.Path) -> list[pathlib.Path]:
  found, others = folders.divided(folders.visible(folder), text_line.SUFFIXES)
  if others:
    warnings.warn(folders.left_out(folder, others), stacklevel=3)
  return found


def _lines(file: pathlib.Path, content: str) -> Iterator[Document]:
  for i, line in enumerate(content.split("\n")):
    if not line.strip():
      continue
    try:
      yield Document(str(file), i, text_line.document(line))
    except BadInput as error:
      raise BadInput(f"line {i + 1} of {str(file)!r} {error}") from error
