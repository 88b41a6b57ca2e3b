"""Writing text with a language model of a run."""
import numbers
import os
from typing import Any

import jax.numpy as jnp
import numpy as np

from alma_jax.config import schema
from alma_jax.data import tokens
from alma_jax.errors import BadInput
from alma_jax.learners import prediction
from alma_jax.learners.contract import Learner, LearnerState
from alma_jax.runs import results, settings
from alma_jax.tasks.language_modeling import Ends

_LEAST_CONTEXT = 32  # contexts are padded to powers of two, at least this, so that few programs are compiled


def sample(run: results.Run | str | os.PathLike[str], prompt: str = "", *, num_tokens: int = 200,
           temperature: float = 0.8, top_k: int = 0, seed: int = 0, stage: int | None = None) -> str:
  """Continues a text.

  Args:
    run: results.Run of a language model, or its folder.
    prompt: the text to continue; empty: the beginning of a document.
    num_tokens: largest number of tokens; the text ends earlier if the document ends.
    temperature: divides the log-probabilities before drawing; 0: always the likeliest token.
    top_k: only the k likeliest tokens are drawn; 0: all.
    seed: another seed gives another text.
    stage: counts from 0; None: the last one saved.

  Returns:
    The prompt and its continuation.

  Raises:
    BadInput: the run is not a language model, has not saved the stage, or an
      argument is out of range.
  """
  for name, value, least in (("num_tokens", num_tokens, 1), ("temperature", temperature, 0), ("top_k", top_k, 0),
                             ("seed", seed, 0)):
    if not isinstance(value, numbers.Real if name == "temperature" else numbers.Integral):
      raise BadInput(f"{name}={value!r} should be a {'' if name == 'temperature' else 'whole '}number.")
    if not value >= least:
      raise BadInput(f"{name}={value} should be at least {least}.")
  if not isinstance(prompt, str):
    raise BadInput(f"prompt={prompt!r} should be one string.")
  run = run if isinstance(run, results.Run) else results.load_run(run)
  dataset = run.config.dataset
  if not isinstance(dataset, schema.Text):
    raise BadInput(f"{run.path} is a run of image classification, which writes no text.")
  opened, learner = run.open(stage)
  state, task = results.restore_state(learner, opened), settings.task_of(run.config, opened.meta["data"])
  try:
    tokenizer = tokens.parse((run.path / "tokenizer.json").read_text(encoding="utf-8"))
  except (OSError, ValueError) as error:
    raise BadInput(f"{run.path / 'tokenizer.json'} cannot be read ({error}); delete it, and the run's own command "
                   "writes it again.") from error
  end, rng = opened.meta["data"]["end"], np.random.default_rng(seed)
  written = [end, *tokens.encode_one(tokenizer, prompt)]
  start = len(written)
  while len(written) < start + num_tokens:
    context = written[-dataset.sequence_length:]
    token = _draw(_next_log_probs(learner, task, state, context), temperature, top_k, rng)
    if token == end:
      break
    written.append(token)
  return prompt + tokenizer.decode(written[start:])


def _next_log_probs(learner: Learner, task: Any, state: LearnerState, context: list[int]) -> np.ndarray:
  """Log-probabilities of the token after a context, float64 [V], by the learner's joint prediction."""
  size = max(_LEAST_CONTEXT, 1 << (len(context) - 1).bit_length())
  padded = np.zeros((1, size), np.int32)
  padded[0, :len(context)] = context  # attention is causal: later padding changes nothing
  ends = Ends(jnp.asarray(padded), jnp.int32(len(context) - 1))
  return np.asarray(prediction.predict(learner, task, state, ends)[0], np.float64)


def _draw(log_probs: np.ndarray, temperature: float, top_k: int, rng: np.random.Generator) -> int:
  if not temperature:
    return int(log_probs.argmax())
  if top_k:
    least = np.partition(log_probs, -min(top_k, len(log_probs)))[-min(top_k, len(log_probs))]
    log_probs = np.where(log_probs < least, -np.inf, log_probs)
  scaled = (log_probs - log_probs.max()) / temperature
  weights = np.exp(scaled)
  return int(rng.choice(len(weights), p=weights / weights.sum()))
