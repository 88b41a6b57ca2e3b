"""Writing text with a language model."""
import numbers
from typing import Any

import jax.numpy as jnp
import numpy as np

from alma_jax.errors import BadInput
from alma_jax.learners import prediction
from alma_jax.learners.contract import Learner, LearnerState
from alma_jax.problems.language_modeling import Ends

_LEAST_CONTEXT = 32  # contexts are padded to powers of two, at least this, so that few programs are compiled


def check(prompt: str, **options: Any) -> None:
  """Raises BadInput where an argument of results.Run.sample is of another type or out of range."""
  for name, value in options.items():
    least = 1 if name == "num_tokens" else 0
    if not isinstance(value, numbers.Real if name == "temperature" else numbers.Integral):
      raise BadInput(f"{name}={value!r} should be a {'' if name == 'temperature' else 'whole '}number.")
    if not float(value) >= least:  # NaN too
      raise BadInput(f"{name}={value} should be at least {least}.")
  if not isinstance(prompt, str):
    raise BadInput(f"prompt={prompt!r} should be one string.")


def continuation(learner: Learner, problem: Any, state: LearnerState, start: list[int], end: int, *, num_tokens: int,
                 temperature: float, top_k: int, seed: int) -> list[int]:
  """Tokens that continue a text.

  Args:
    learner, problem, state: of the run.
    start: tokens of the text so far.
    end: the token at which a document ends; it is not returned.
    num_tokens, temperature, top_k, seed: see results.Run.sample.
  """
  rng, written = np.random.default_rng(seed), list(start)
  while len(written) < len(start) + num_tokens:
    log_probs = _next_log_probs(learner, problem, state, written[-problem.sequence_length:])
    token = _draw(log_probs, temperature, top_k, rng)
    if token == end:
      break
    written.append(token)
  return written[len(start):]


def _next_log_probs(learner: Learner, problem: Any, state: LearnerState, context: list[int]) -> np.ndarray:
  """Log-probabilities of the token after a context, float64 [V], by the learner's joint prediction."""
  size = max(_LEAST_CONTEXT, 1 << (len(context) - 1).bit_length())
  padded = np.zeros((1, size), np.int32)
  padded[0, :len(context)] = context  # attention is causal: later padding changes nothing
  ends = Ends(jnp.asarray(padded), jnp.int32(len(context) - 1))
  return np.asarray(prediction.predict(learner, problem, state, ends)[0], np.float64)


def _draw(log_probs: np.ndarray, temperature: float, top_k: int, rng: np.random.Generator) -> int:
  if not temperature:
    return int(log_probs.argmax())
  if top_k:
    least = np.partition(log_probs, -min(top_k, len(log_probs)))[-min(top_k, len(log_probs))]
    log_probs = np.where(log_probs < least, -np.inf, log_probs)
  scaled = (log_probs - log_probs.max()) / temperature
  weights = np.exp(scaled)
  return int(rng.choice(len(weights), p=weights / weights.sum()))
