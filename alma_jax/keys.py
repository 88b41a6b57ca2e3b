"""Random numbers, derived from (seed, stage, purpose, ...) and never stored.

The host draws with numpy (`rng`), the devices with jax (`member_keys`).
"""
import functools

import jax
import jax.numpy as jnp
import numpy as np

INIT, AUGMENT = 0, 1  # purposes on the devices
# Purposes on the host: the order of the stream, what replay forgets, the order
# of an epoch, bagging's bootstrap, gMoE's random experts and new gates,
# Firefly's search and its statistics, k-means.
STREAM, REPLAY, EPOCH, BOOTSTRAP, SPLIT, GATES, SEARCH, REFRESH, CLUSTER = 0, 1, 2, 4, 5, 6, 7, 8, 9


def rng(seed, purpose, *numbers):
  """numpy Generator of a purpose, and of further numbers as a stage or a member."""
  return np.random.default_rng([seed, purpose, *numbers])


@functools.partial(jax.jit, static_argnames=("purpose", "num_members"))
def member_keys(seed, stage, purpose, num_members):
  """Raw keys, uint32 [num_members, 2].

  Member i has the same key whatever the number of members, so that each
  member of an ensemble equals a separate run.
  """
  key = jax.random.fold_in(jax.random.fold_in(jax.random.key(seed), stage), purpose)
  keys = jax.vmap(lambda i: jax.random.fold_in(key, i))(jnp.arange(num_members))
  return jax.random.key_data(keys)
