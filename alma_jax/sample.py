"""Writes text with a language model of a run: python -m alma_jax.sample --workdir DIR --prompt "Once upon"

Any stage that the run has saved can be asked (--stage, counted from 0; the last one
by default). An ensemble writes with its members' averaged probabilities.
"""
import functools
import numbers
import sys

import jax
import numpy as np

from alma_jax import commands, members, results
from alma_jax.data import tokens
from alma_jax.errors import BadInput
from alma_jax.learners import stacked

_LEAST_CONTEXT = 32  # lengths are padded to powers of two from here on, which are few programs


def sample(run, prompt="", *, num_tokens=200, temperature=0.8, top_k=0, seed=0, stage=None):
  """Continues a text.

  Args:
    run: results.Run of a language model, or its folder.
    prompt: what to continue; empty: a document from its beginning.
    num_tokens: how many tokens at most; it ends before where the document does.
    temperature: divides the log-probabilities before drawing; 0: always the likeliest token.
    top_k: only the k likeliest tokens are drawn; 0: all.
    seed: another one gives another text.
    stage: of the run, from 0; None: the last one saved.

  Returns:
    The prompt and its continuation.

  Raises:
    BadInput: the run is no language model, has not saved the stage, or an
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
  if not run.config.is_language:
    raise BadInput(f"{run.path} is a run of image classification, which writes no text.")
  opened, learner = run.open(stage)
  state = results.restore_state(learner, opened)
  try:
    tokenizer = tokens.parse((run.path / "tokenizer.json").read_text(encoding="utf-8"))
  except (OSError, ValueError) as error:
    raise BadInput(f"{run.path / 'tokenizer.json'} cannot be read ({error}); delete it, and the run's own command "
                   "writes it again.") from error
  end, rng = opened.meta["data"]["end"], np.random.default_rng(seed)
  written = [end, *tokens.encode_one(tokenizer, prompt)]
  start = len(written)
  while len(written) < start + num_tokens:
    context = written[-run.config.dataset.sequence_length:]
    token = _draw(_next_log_probs(learner.network(state.spec), stacked.blocks(state), context), temperature, top_k, rng)
    if token == end:
      break
    written.append(token)
  return prompt + tokenizer.decode(written[start:])


def _next_log_probs(network, blocks, context):
  """float64 [V], under the averaged probabilities of all networks in all blocks."""
  size = max(_LEAST_CONTEXT, 1 << (len(context) - 1).bit_length())
  padded = np.zeros((1, size), np.int32)
  padded[0, :len(context)] = context  # attention is causal: what follows changes nothing
  log_probs = np.concatenate([_predict(network, block, padded, np.int32(len(context) - 1)) for block in blocks])
  return np.logaddexp.reduce(log_probs.astype(np.float64), 0) - np.log(len(log_probs))


@functools.partial(jax.jit, static_argnames="network")
def _predict(network, variables, tokens_BL, position):
  """float32 [M, V], log-probabilities of the token after `position` under each stacked member."""
  one = lambda member: jax.nn.log_softmax(network.logits_at(member, tokens_BL, position)[0])
  return members.apply(one, jax.tree.leaves(variables)[0].shape[0], variables)


def _draw(log_probs, temperature, top_k, rng):
  if not temperature:
    return int(log_probs.argmax())
  if top_k:
    least = np.partition(log_probs, -min(top_k, len(log_probs)))[-min(top_k, len(log_probs))]
    log_probs = np.where(log_probs < least, -np.inf, log_probs)
  scaled = (log_probs - log_probs.max()) / temperature
  weights = np.exp(scaled)
  return int(rng.choice(len(weights), p=weights / weights.sum()))


def main(argv=None):
  """Runs the command line; returns the exit code: 0, or 2 for bad input."""
  return commands.exit_code(lambda: _main(argv))


def _main(argv):
  parser = commands.Parser("-m alma_jax.sample", __doc__)
  parser.add_argument("--workdir", required=True, help="run folder of a language model")
  parser.add_argument("--prompt", default="", help="what to continue; empty: a document from its beginning")
  parser.add_argument("--num_tokens", type=int, default=200, help="how many tokens to write at most")
  parser.add_argument("--temperature", type=float, default=0.8, help="0: always the likeliest token")
  parser.add_argument("--top_k", type=int, default=0, help="draw from so many likeliest tokens; 0: all")
  parser.add_argument("--seed", type=int, default=0, help="another one gives another text")
  parser.add_argument("--stage", type=int, help="of the run, from 0; the last one saved by default")
  options = vars(parser.parse_args(argv))
  commands.quiet()
  print(sample(options.pop("workdir"), **options))


if __name__ == "__main__":
  sys.exit(main())
