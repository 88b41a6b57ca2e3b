"""Random numbers, derived from (seed, stage, purpose, ...) and never stored.

The host draws with numpy (`rng`), the devices with jax (`member_keys`).
"""
import functools

import jax
import jax.numpy as jnp
import numpy as np

from alma_jax.types import Array

INIT, AUGMENT = 0, 1  # purposes on the devices

# Purposes on the host.
STREAM = 0  # the order of the stream
REPLAY = 1  # the examples that replay keeps
EPOCH = 2  # the order of an epoch
BOOTSTRAP = 4  # bagging
SPLIT = 5  # gMoE's random choice of an expert
GATES = 6  # new gates of gMoE; for text, the noise of router columns
SEARCH = 7  # Firefly's directions
REFRESH = 8  # the order in which Firefly estimates statistics
CLUSTER = 9  # k-means
MEMORY = 10  # which examples the memory keeps
RECALL = 11  # which of them a batch or a validation draws
EMBED = 12  # which examples of a task judge stored networks; a random one of these networks
PATHS = 13  # the paths that mntdp samples, and the batches of this search
PAIRS = 14  # random learning rates and weight decays of a task
JUDGED = 15  # which old examples judge a memory

# Purposes of streams of tasks: a change of these numbers changes the data.
TASK_EXAMPLES = 101  # which examples of its source a task has
PIXELS = 102  # permutations of pixels and tiles
TASK_CLASSES = 103  # which classes of its source a task has
TASK_ORDER = 104  # sources and sizes of the tasks of s_long
BACKGROUNDS = 105  # colours of backgrounds

# Purposes of streams that change: a change of these numbers changes the data.
DRIFT = 106  # which examples each mega-batch has, and what is drawn for them
DRIFT_TEST = 107  # the same for test sets
CONCEPT = 108  # what is the same at every mega-batch, such as a permutation of pixels


def rng(seed: int, purpose: int, *numbers: int) -> np.random.Generator:
  """numpy Generator of a purpose, and of further numbers such as a stage or a member."""
  return np.random.default_rng([seed, purpose, *numbers])


@functools.partial(jax.jit, static_argnames="num_members")
def member_keys(seed: int, stage: int, purpose: int, num_members: int) -> Array:
  """Raw keys, uint32 [num_members, 2].

  The key of member i does not depend on the number of members. Each member of an ensemble is therefore trained as it
  would be in a run of its own.
  """
  # Equals jax.random.key(seed) if jax_random_seed_offset is 0; jax has no context that resets this setting.
  first = jax.random.wrap_key_data(jnp.array([0, seed], jnp.uint32), impl="threefry2x32")
  key = jax.random.fold_in(jax.random.fold_in(first, stage), purpose)
  keys = jax.vmap(lambda i: jax.random.fold_in(key, i))(jnp.arange(num_members))
  return jax.random.key_data(keys)
