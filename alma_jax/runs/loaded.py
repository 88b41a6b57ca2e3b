"""Hashes the arrays that a user's network or learner loads, such as a frozen body or initial weights."""
import dataclasses
import hashlib
import inspect
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np

from alma_jax import learners
from alma_jax.config import registry
from alma_jax.learners import contract
from alma_jax.models import Network
from alma_jax.parallel import sharding


def digests(context: contract.Context) -> dict[str, str]:
  """SHA-256 of the arrays of a user's network and learner, {name: hash}, as in config.json.

  For a network, these are the arrays in the programs of `init` and `apply`, wherever they come from. For a learner,
  they are its attributes, the arrays that its methods refer to, and the arrays that `init` returns whatever the seed.
  Single numbers do not count, nor do arrays filled with one value.
  """
  config, found = context.config, {}
  if config.model.name in registry.MODELS:
    found[config.model.name] = _digest(_of_network(context.network(), (1, *context.example_shape)))
  own = registry.TEXT_LEARNERS if config.is_language else registry.LEARNERS
  if config.learner.name in own:
    found[config.learner.name] = _digest(_of_learner(own[config.learner.name], context))
  return found


def _digest(values: Iterator[Any]) -> str:
  """SHA-256 of the distinct arrays among some values, in any order."""
  hashes = set()
  for value in values:
    if isinstance(value, np.ndarray | jax.Array) and not jax.dtypes.issubdtype(value.dtype, jax.dtypes.extended):
      array = np.asarray(value)
      if array.size > 1 and array.dtype != object and (array != array.flat[0]).any():
        hashes.add(hashlib.sha256(f"{array.dtype} {array.shape}".encode() + array.tobytes()).hexdigest())
  return hashlib.sha256("".join(sorted(hashes)).encode()).hexdigest()


def _of_network(network: Network, shape: tuple[int, ...]) -> Iterator[Any]:
  key, x, mask = jax.random.key(0), network.inputs(shape), jax.ShapeDtypeStruct(shape[:1], bool)
  yield from _constants(jax.make_jaxpr(network.init)(key, x))
  variables = jax.eval_shape(network.init, key, x)
  apply = lambda variables, x, mask: network.apply(variables, x, mask, False)
  yield from _constants(jax.make_jaxpr(apply)(variables, x, mask))


def _constants(program: Any) -> Iterator[Any]:
  """The arrays in a jaxpr, closed or not, and in the jaxprs inside it."""
  jaxpr = getattr(program, "jaxpr", program)
  literals = [*jaxpr.outvars, *(atom for equation in jaxpr.eqns for atom in equation.invars)]
  for value in (*getattr(program, "consts", ()), *(atom.val for atom in literals if hasattr(atom, "val"))):
    yield value if isinstance(value, jax.Array) else np.asarray(value)  # jax has a type of its own for literals
  for equation in jaxpr.eqns:
    for inner in jax.tree.leaves(list(equation.params.values()), is_leaf=_is_program):
      if _is_program(inner):
        yield from _constants(inner)


def _is_program(value: Any) -> bool:
  return hasattr(getattr(value, "jaxpr", value), "eqns")


def _of_learner(make: Callable[..., Any], context: contract.Context) -> Iterator[Any]:
  seeds = (context.config.seed, context.config.seed + 1)
  made = [learners.make(dataclasses.replace(context, config=dataclasses.replace(context.config, seed=seed)))
          for seed in seeds]
  yield from jax.tree.leaves(vars(made[0]))
  for function in registry.functions_of(make):
    named = inspect.getclosurevars(function)
    yield from jax.tree.leaves([named.globals, named.nonlocals, function.__defaults__, function.__kwdefaults__])
  states = [sharding.fetch((state.live, state.frozen, state.host)) for state in (learner.init() for learner in made)]
  for one, other in zip(*map(jax.tree.leaves, states)):
    if np.array_equal(one, other):
      yield one
