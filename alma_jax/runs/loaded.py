"""Hashes the arrays that a user's network or learner loads, such as a frozen body or initial weights."""
import dataclasses
import functools
import hashlib
import inspect
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import numpy as np

from alma_jax.config import code
from alma_jax.config.registry import is_own
from alma_jax.learners import contract
from alma_jax.models import Network
from alma_jax.parallel import sharding


def digests(context: contract.Context) -> dict[str, str]:
  """SHA-256 of the arrays of a user's network and learner, {name: hash}, as in config.json.

  For a network, these are the arrays in the programs of `init` and `apply`, wherever they come from. For a learner,
  they are its attributes and what `init` returns, if they are the same for another seed, and the arrays that its
  methods refer to. Single numbers do not count, nor do arrays filled with one value.
  """
  config, found = context.config, {}
  if is_own(type(config.model)):
    found[config.model.name] = _hashes(list(_of_network(context.network(), (1, *context.example_shape))))
  if is_own(type(config.learner)):
    found[config.learner.name] = _of_learner(context)
  return {name: hashlib.sha256("".join(sorted(hashes)).encode()).hexdigest() for name, hashes in found.items()}


def _hashes(values: Any) -> frozenset[str]:
  """SHA-256 of each array among values, in dicts, lists and tuples too."""
  hashes = set()
  for value in _leaves(values):
    if isinstance(value, np.ndarray | jax.Array) and not jax.dtypes.issubdtype(value.dtype, jax.dtypes.extended):
      array = np.asarray(sharding.fetch(value))
      if array.size > 1 and array.dtype != object and (array != array.flat[0]).any():
        hashes.add(hashlib.sha256(f"{array.dtype} {array.shape}".encode() + array.tobytes()).hexdigest())
  return frozenset(hashes)


def _leaves(value: Any) -> Iterator[Any]:
  # jax sorts the keys of a dict, which those of the user's dicts may not allow.
  if isinstance(value, Mapping):
    value = list(value.values())
  if isinstance(value, list | tuple):
    for each in value:
      yield from _leaves(each)
  else:
    yield value


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


def _of_learner(context: contract.Context) -> frozenset[str]:
  config = context.config.candidates[0]
  make = type(config.learner)
  made = [config.learner.make(dataclasses.replace(context, config=dataclasses.replace(config, seed=seed)))
          for seed in (config.seed, config.seed + 1)]
  one, other = (_hashes([getattr(learner, "__dict__", {}), learner.init()]) for learner in made)
  kinds: tuple[Any, ...] = (make, *type(made[0]).__mro__)
  functions = [function for kind in kinds for function in code.functions_of(kind)]
  return (one & other).union(*(_named(function) for function in functions))


@functools.cache
def _named(function: Any) -> frozenset[str]:
  """Hashes of the arrays that a function refers to, as they are before a run of this process may change them."""
  named = inspect.getclosurevars(function)
  return _hashes([named.globals, named.nonlocals, function.__defaults__, function.__kwdefaults__])
