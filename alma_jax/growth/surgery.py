"""Surgery of Firefly: a network apart in layers, wider and deeper, together again (docs/algorithms.md §4).

Works on the Variables of networks with layers hidden0, hidden1, ... and output:
models.mlp and models.wide. A kernel's last axes are [inputs, outputs] here:
[3, 3, I, O] of a convolution, [I, O] of a linear layer.
"""
from typing import NamedTuple

import numpy as np

from alma_jax.types import Array, Variables

BLANK = {"scale": 1.0, "bias": 0.0, "mean": 0.0, "var": 1.0}  # batch norm of new neurons


class Layer(NamedTuple):
  """A layer's own parameters, and statistics where it has a batch norm."""
  kernel: Array
  bias: Array | None
  norm: dict | None  # scale, bias, mean, var
  residual: "Residual | None" = None  # behind it


class Residual(NamedTuple):
  """A residual layer of n neurons behind one of O: x + relu(inner(x)) . out."""
  inner: Layer  # kernel [.., O, n]
  out: Array  # [n, O]


def take_apart(module, variables):
  """The network as a list of Layer, the output layer last."""
  params, stats = variables
  names = [*(f"hidden{i}" for i in range(len(module.widths))), "output"]
  chain = []
  for i, name in enumerate(names):
    behind, residual = None, params.get(f"residual{i}")
    if residual is not None:
      norm = _norm_part(params, stats, f"residual{i}")
      behind = Residual(Layer(*_linear_part(residual["into"]), norm), residual["out"])
    chain.append(Layer(*_linear_part(params[name]), _norm_part(params, stats, f"norm{i}"), behind))
  return chain


def _linear_part(params):
  """(kernel, bias or None) of a convolution or a linear layer."""
  kernel = params["kernel"]
  return kernel if kernel.ndim == 4 else kernel.T, params.get("bias")


def _norm_part(params, stats, name):
  """scale, bias, mean, var of a batch norm, or of the one in a residual layer; None: there is none."""
  if name not in stats:
    return None
  params, stats = params[name], stats[name]
  return {**params.get("norm", params), **stats.get("norm", stats)}


def put_together(chain):
  """Variables of a list of Layer, the widths, and those of the residual layers."""
  params, stats = {}, {}
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


def _split_off(layer):
  """(kernel and bias, (scale and bias, mean and var) of the batch norm or None) as Flax holds them."""
  linear = {"kernel": layer.kernel if layer.kernel.ndim == 4 else layer.kernel.T}
  if layer.bias is not None:
    linear["bias"] = layer.bias
  pick = lambda *names: {name: layer.norm[name] for name in names}
  return linear, None if layer.norm is None else (pick("bias", "scale"), pick("mean", "var"))


def operate(chain, directions, picks):
  """The wider network: the moved one at strength 1 for what was picked, 0 elsewhere.

  Args:
    chain: list of Layer, host arrays.
    directions: list of Directions, host arrays.
    picks: as `select` returns them.

  Returns:
    List of Layer, new arrays. An outputs' order: old neurons, second halves of
    the split ones, new ones.
  """
  wider, splits_below, news_below = [], np.zeros(0, int), np.zeros(0, int)
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
        key: _with_blanks(key, np.concatenate([value, value[splits]]), len(news)) for key, value in layer.norm.items()}
    wider.append(Layer(np.concatenate(parts, -2), bias, norm, _operate_behind(layer, way, splits, len(news), deeps)))
    splits_below, news_below = splits, news
  return wider


def _operate_behind(layer, way, splits, num_new, deeps):
  """The residual layer behind a wider layer, with the candidates `deeps`; None: there is none.

  It reads the halves of what was split with half the weight, and adds to both; new neurons it leaves alone.
  """
  if layer.residual is None and not len(deeps):
    return None
  (kernel, bias, norm, _), out = layer.residual or _none_behind(layer, way)
  kernel = np.concatenate([kernel, way.into[..., deeps]], -1)
  kernel[..., splits, :] /= 2
  unread = np.zeros((*kernel.shape[:-2], num_new, kernel.shape[-1]), kernel.dtype)
  kernel = np.concatenate([kernel, kernel[..., splits, :], unread], -2)
  bias = None if bias is None else np.pad(bias, (0, len(deeps)))
  norm = None if norm is None else {key: _with_blanks(key, value, len(deeps)) for key, value in norm.items()}
  out = np.concatenate([out, way.out[deeps]])
  out = np.concatenate([out, out[:, splits], np.zeros((len(out), num_new), out.dtype)], 1)
  return Residual(Layer(kernel, bias, norm), out)


def _none_behind(layer, way):
  """A residual layer of no neurons."""
  nothing = np.zeros(0, np.float32)
  bias, norm = None if layer.bias is None else nothing, layer.norm and dict.fromkeys(layer.norm, nothing)
  return Residual(Layer(way.into[..., :0], bias, norm), way.out[:0])


def _with_blanks(key, value, num):
  """A batch norm's values, and those of `num` neurons that are new to it."""
  return np.concatenate([value, np.full(num, BLANK[key], value.dtype)])
