"""PRNG keys, derived from (seed, stage, purpose, member) and never stored."""
import functools

import jax
import jax.numpy as jnp

INIT, AUGMENT = 0, 1  # purposes


@functools.partial(jax.jit, static_argnames=("purpose", "num_members"))
def member_keys(seed, stage, purpose, num_members):
  """Raw keys, uint32 [num_members, 2].

  Member i has the same key whatever the number of members, so that each
  member of an ensemble equals a separate run.
  """
  key = jax.random.fold_in(jax.random.fold_in(jax.random.key(seed), stage), purpose)
  keys = jax.vmap(lambda i: jax.random.fold_in(key, i))(jnp.arange(num_members))
  return jax.random.key_data(keys)
