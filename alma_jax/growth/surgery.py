"""Adds neurons to a network for Firefly: takes it apart into layers and puts it together again (docs/algorithms.md §4).

Works on the Variables of networks with the layers hidden0, hidden1, ... and output, i.e. those of models.mlp and
models.wide. Here the last axes of a kernel are [inputs, outputs]: it is [3, 3, I, O] of a convolution and [I, O] of a
linear layer.
"""
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from alma_jax.types import Variables

NEW_NORM = {"scale": 1.0, "bias": 0.0, "mean": 0.0, "var": 1.0}  # batch norm of new neurons

Picks = tuple[Any, Any, Any]  # int arrays: neurons to split, candidates for new neurons, candidates for residual layers


class Layer(NamedTuple):
  """The parameters and statistics of a layer; arrays of numpy or of jax.

  Attributes:
    kernel: [.., I, O].
    bias: [O], or None.
    norm: scale, bias, mean and var [O] of its batch norm, or None.
    residual: the residual layer that follows, or None.
  """
  kernel: Any
  bias: Any
  norm: dict[str, Any] | None
  residual: "Residual | None" = None


class Residual(NamedTuple):
  """A residual layer x + relu(inner(x)) . out of n neurons, which follows a layer of O neurons.

  Attributes:
    inner: Layer with a kernel [.., O, n].
    out: [n, O].
  """
  inner: Layer
  out: Any


class Directions(NamedTuple):
  """Auxiliary variables of a layer during growth; widen.py describes them.

  Attributes:
    split: [.., I, O]; None for the output layer.
    fresh: [.., I, num]; None for the output layer.
    below: [.., num, O + num], or [.., num, O] for the output layer; None for the first layer.
    into: [.., O, num]; None without depth, and for the output layer.
    out: [num, O]; likewise.
  """
  split: Any
  fresh: Any
  below: Any
  into: Any = None
  out: Any = None


def take_apart(module: Any, variables: Variables) -> list[Layer]:
  """The layers of a network, the output layer last; `module` is that of models.mlp or models.wide."""
  params, stats = variables
  names = [*(f"hidden{i}" for i in range(len(module.widths))), "output"]
  chain = []
  for i, name in enumerate(names):
    following, residual = None, params.get(f"residual{i}")
    if residual is not None:
      following = Residual(_layer(residual["into"], _norm(params, stats, f"residual{i}")), residual["out"])
    chain.append(_layer(params[name], _norm(params, stats, f"norm{i}"), following))
  return chain


def _layer(params: dict[str, Any], norm: dict[str, Any] | None, residual: Residual | None = None) -> Layer:
  """The Layer of a convolution or a linear layer with these parameters."""
  kernel = params["kernel"]
  return Layer(kernel if kernel.ndim == 4 else kernel.T, params.get("bias"), norm, residual)


def _norm(params: dict[str, Any], stats: dict[str, Any], name: str) -> dict[str, Any] | None:
  """scale, bias, mean and var of a batch norm, or of the one in a residual layer; None if the network has none."""
  if name not in stats:
    return None
  params, stats = params[name], stats[name]
  return {**params.get("norm", params), **stats.get("norm", stats)}


def put_together(chain: Sequence[Layer]) -> tuple[Variables, tuple[int, ...], tuple[int, ...]]:
  """(Variables of a network with these layers, widths of its hidden layers, widths of its residual layers)."""
  params: dict[str, Any] = {}
  stats: dict[str, Any] = {}
  for i, layer in enumerate(chain):
    name = "output" if i + 1 == len(chain) else f"hidden{i}"
    params[name], norm = _split_off(layer)
    if norm is not None:
      params[f"norm{i}"], stats[f"norm{i}"] = norm
    if layer.residual is not None:
      into, norm = _split_off(layer.residual.inner)
      params[f"residual{i}"] = {"into": into, "out": layer.residual.out}
      if norm is not None:
        params[f"residual{i}"]["norm"], stats[f"residual{i}"] = norm[0], {"norm": norm[1]}
  widths = tuple(int(layer.kernel.shape[-1]) for layer in chain[:-1])
  residuals = tuple(len(layer.residual.out) if layer.residual else 0 for layer in chain[:-1])
  return Variables(params, stats), widths, residuals


def _split_off(layer: Layer) -> tuple[dict[str, Any], tuple[dict[str, Any], dict[str, Any]] | None]:
  """(kernel and bias, (scale and bias, mean and var) of the batch norm or None), as Flax holds them."""
  linear = {"kernel": layer.kernel if layer.kernel.ndim == 4 else layer.kernel.T}
  if layer.bias is not None:
    linear["bias"] = layer.bias
  norm = layer.norm
  if norm is None:
    return linear, None
  pick = lambda *names: {name: norm[name] for name in names}
  return linear, (pick("bias", "scale"), pick("mean", "var"))


def operate(chain: Sequence[Layer], directions: Sequence[Directions], picks: Sequence[Picks]) -> list[Layer]:
  """Adds the picked neurons. The result is the moved network with strength 1 for them and 0 for all others.

  Args:
    chain: the layers, of host arrays.
    directions: of each layer, of host arrays.
    picks: as `widen.select` returns them.

  Returns:
    The layers, of new arrays. The order of outputs is: old neurons, second halves of split neurons, new neurons.
  """
  wider: list[Layer] = []
  splits_below, news_below = np.zeros(0, int), np.zeros(0, int)
  for i, (layer, way) in enumerate(zip(chain, directions)):
    num_old, last = layer.kernel.shape[-1], i + 1 == len(chain)
    splits, news, deeps = (np.asarray(pick, int) for pick in (((),) * 3 if last else picks[i]))
    kernel = np.array(layer.kernel)
    if not last:
      kernel[..., splits] += way.split[..., splits]
      halves = layer.kernel[..., splits] - way.split[..., splits]
      kernel = np.concatenate([kernel, halves, way.fresh[..., news]], -1)
    old, second = kernel.copy(), kernel[..., splits_below, :] / 2
    old[..., splits_below, :] /= 2
    parts = [old, second]
    if i:
      outputs = [*range(num_old), *splits, *(num_old + news)]
      parts.append(way.below[..., news_below, :][..., outputs])
    bias = layer.bias
    if bias is not None and not last:
      bias = np.concatenate([bias, bias[splits], np.zeros(len(news), bias.dtype)])
    norm = None if layer.norm is None else {
        key: _with_new(key, np.concatenate([value, value[splits]]), len(news)) for key, value in layer.norm.items()}
    wider.append(Layer(np.concatenate(parts, -2), bias, norm, _grow_residual(layer, way, splits, len(news), deeps)))
    splits_below, news_below = splits, news
  return wider


def _grow_residual(layer: Layer, way: Directions, splits: np.ndarray, num_new: int,
                   deeps: np.ndarray) -> Residual | None:
  """The residual layer after a layer that has grown, with the candidates `deeps`; None if it has no neurons.

  It reads both halves of a split neuron with half the weight, and adds to both. It neither reads new neurons nor adds
  to them.
  """
  if layer.residual is None and not len(deeps):
    return None
  (kernel, bias, norm, _), out = layer.residual or _empty_residual(layer, way)
  kernel = np.concatenate([kernel, way.into[..., deeps]], -1)
  kernel[..., splits, :] /= 2
  unread = np.zeros((*kernel.shape[:-2], num_new, kernel.shape[-1]), kernel.dtype)
  kernel = np.concatenate([kernel, kernel[..., splits, :], unread], -2)
  bias = None if bias is None else np.pad(bias, (0, len(deeps)))
  norm = None if norm is None else {key: _with_new(key, value, len(deeps)) for key, value in norm.items()}
  out = np.concatenate([out, way.out[deeps]])
  out = np.concatenate([out, out[:, splits], np.zeros((len(out), num_new), out.dtype)], 1)
  return Residual(Layer(kernel, bias, norm), out)


def _empty_residual(layer: Layer, way: Directions) -> Residual:
  """A residual layer without neurons, after `layer`."""
  nothing = np.zeros(0, np.float32)
  bias, norm = None if layer.bias is None else nothing, layer.norm and dict.fromkeys(layer.norm, nothing)
  return Residual(Layer(way.into[..., :0], bias, norm), way.out[:0])


def _with_new(key: str, value: np.ndarray, num: int) -> np.ndarray:
  """The values of a batch norm, followed by those of `num` new neurons; `key` is scale, bias, mean or var."""
  return np.concatenate([value, np.full(num, NEW_NORM[key], value.dtype)])
