"""Texts for a predictor of language: documents, windows of tokens, scores. Imports no jax."""
import pathlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from alma_jax.data import text_files, tokens
from alma_jax.data.examples import named

LogProbs = Callable[[np.ndarray], tuple[np.ndarray, ...]]  # tokens int32 [B, L] -> (log-probabilities [B, L, V],)


class Batch(NamedTuple):
  """Windows that are predicted.

  Attributes:
    targets: int32 [B, L], token ids.
    log_probs: float32 [B, L], their log-probabilities.
    mask: bool [B, L], which of them count.
    after: float32 [V], log-probabilities of the last target that counts and of the other tokens in its place.
  """
  targets: np.ndarray
  log_probs: np.ndarray
  mask: np.ndarray
  after: np.ndarray


def read(paths: Sequence[str]) -> Iterator[text_files.Document]:
  """Yields the documents of files and folders; raises BadInput if one of them cannot be used."""
  for path in (pathlib.Path(name).expanduser() for name in paths):
    with named(repr(str(path))):
      yield from text_files.read(path)


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


def score(predict: LogProbs, tokenizer: Any, text: str, length: int, size: int) -> dict[str, Any]:
  """How well one text is predicted; windows of L tokens are predicted `size` at a time.

  Returns:
    {"num_tokens": that were predicted, the end of the document included; "log_probability": their sum in nats;
    "perplexity"; "next": the likeliest token after the text, and "p_next", its probability}.
  """
  (tokens_NL, counts), total = windows(tokenizer, [text], length), 0.0
  for batch in batches(predict, tokens_NL, counts, size):
    total += float(batch.log_probs[batch.mask].sum(dtype=np.float64))
  num, best = int(counts.sum()), int(batch.after.argmax())
  with np.errstate(over="ignore"):
    return dict(num_tokens=num, log_probability=total, perplexity=float(np.exp(-total / num)),
                next=tokenizer.decode([best], skip_special_tokens=False), p_next=float(np.exp(batch.after[best])))


def batches(predict: LogProbs, tokens_NL: np.ndarray, counts: np.ndarray, size: int) -> Iterator[Batch]:
  """Yields the predictions for windows, `size` at a time; see `windows`."""
  for start in range(0, len(tokens_NL), size):
    part, num = tokens_NL[start:start + size], counts[start:start + size]
    log_probs, targets = predict(part[:, :-1])[0], part[:, 1:]
    chosen = np.take_along_axis(log_probs, targets[..., None], -1)[..., 0]
    mask = np.arange(chosen.shape[1])[None] < num[:, None]
    yield Batch(targets, chosen, mask, log_probs[-1, num[-1] - 1])
