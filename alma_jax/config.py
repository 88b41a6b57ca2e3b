"""ConfigDict -> frozen dataclasses; every check of a config that needs no data.

`base(learner)` is the template that the files under configs/ fill in, and,
as it stands, the digits run that `python -m alma_jax.main` starts by itself.
`parse` turns a ConfigDict into a `RunConfig`; after it no other module sees a
ConfigDict. This module imports neither jax nor numpy: `--help` is instant.
"""
import dataclasses
import hashlib
import json
import math
import re
import typing

from alma_jax.errors import BadInput
from alma_jax.options import LEARNERS, Options


@dataclasses.dataclass(frozen=True)
class Dataset:
  name: str  # digits, mnist, cifar10, tfds:NAME, npz:PATH
  data_dir: str  # where prepared TFDS folders lie; empty: TFDS's own default


@dataclasses.dataclass(frozen=True)
class Stream:
  num_megabatches: int  # B
  waiting_time: int  # w, in mega-batches
  replay: float  # share of the memory kept from stage to stage
  val_fraction: float  # share of every mega-batch held out for validation
  untrained_error: str  # error before the first update: chance, model


@dataclasses.dataclass(frozen=True)
class Model:
  name: str  # mlp, vgg
  width: int
  num_experts: int = 1  # of every mixture, at the start


@dataclasses.dataclass(frozen=True)
class Train:
  epochs: int
  batch_size: int
  optimizer: str  # adadelta, sgd, adam
  learning_rate: float
  momentum: float  # sgd only
  nesterov: bool
  weight_decay: float  # L2, added to the gradient
  patience: int  # epochs without improvement before a stage stops; 0: never
  patience_delta: float  # an improvement is more than this much accuracy
  augment: bool  # random flip and 4-pixel-padded crop


@dataclasses.dataclass(frozen=True)
class Checkpoint:
  seconds: float  # at most this much work is lost to a kill
  keep: int  # newest checkpoints kept
  keep_every: int  # every so many stages one is kept for good; 0: none


@dataclasses.dataclass(frozen=True)
class Log:
  progress: bool
  tensorboard: bool


@dataclasses.dataclass(frozen=True)
class RunConfig:
  seed: int
  dataset: Dataset
  stream: Stream
  learner: Options
  model: Model
  train: Train
  checkpoint: Checkpoint
  log: Log
  precision: str  # float32, bfloat16
  deterministic: bool  # on a GPU: bit-identical repeats, slower
  devices: int  # how many to use; 0: all. On CPU: that many virtual ones; 0: what is fastest


# The fields that do not make a run another run.
INCIDENTAL = ("dataset.data_dir", "checkpoint.", "log.", "devices")

_CHOICES = {
    "stream.untrained_error": ("chance", "model"),
    "model.name": ("mlp", "vgg"),
    "train.optimizer": ("adadelta", "sgd", "adam"),
    "precision": ("float32", "bfloat16"),
}
_MOST_EXPERTS = 1024  # the tree of their gates is an array of their number squared
_AT_LEAST = {
    "seed": 0, "devices": 0, "stream.num_megabatches": 1, "stream.waiting_time": 1,
    "learner.num_members": 1, "learner.members_per_stage": 1, "learner.grow_every": 1,
    "learner.num_candidates": 0, "learner.score_points": 1,
    "learner.score_batches": 1, "learner.min_shard": 1, "learner.add_beyond": 0.0, "learner.split_every": 0,
    "model.width": 1, "model.num_experts": 1,
    "train.epochs": 1, "train.batch_size": 1, "train.momentum": 0.0, "train.weight_decay": 0.0, "train.patience": 0,
    "train.patience_delta": 0.0, "checkpoint.seconds": 0.0, "checkpoint.keep": 1,
    "checkpoint.keep_every": 0,
}


def base(learner="ens"):
  """The digits run with `learner`'s options, as a ConfigDict to be changed.

  Args:
    learner: name of a learner, e.g. "ens".

  Returns:
    ml_collections.ConfigDict with every field of DESIGN's table.

  Raises:
    BadInput: no such learner.
  """
  from ml_collections import ConfigDict

  options = _learner_class(learner)()
  return ConfigDict(dict(
      seed=0,
      dataset=dict(name="digits", data_dir=""),
      stream=dict(num_megabatches=20, waiting_time=2, replay=0.0, val_fraction=0.1,
                  untrained_error="chance"),
      learner=dataclasses.asdict(options),
      model=dict(name="mlp", width=32, num_experts=options.num_experts or 1),
      train=dict(epochs=100, batch_size=128, optimizer="adadelta", learning_rate=1.0,
                 momentum=0.0, nesterov=False, weight_decay=0.0,
                 # As in the authors' code: who never stops early is selected
                 # on any improvement.
                 patience=25 if options.stops_early else 0,
                 patience_delta=1e-3 if options.stops_early else 0.0,
                 augment=False),
      checkpoint=dict(seconds=30.0, keep=2, keep_every=0),
      log=dict(progress=True, tensorboard=True),
      precision="float32",
      deterministic=False,
      devices=0,
  ))


def parse(config):
  """Checks a config and freezes it.

  Args:
    config: ConfigDict or nested dict, every field present.

  Returns:
    RunConfig.

  Raises:
    BadInput: a field is unknown, missing, of the wrong type or out of range;
      the sentence names it, what was given and what is allowed.
  """
  if isinstance(config, RunConfig):
    return config
  tree = config.to_dict() if hasattr(config, "to_dict") else dict(config)
  frozen = _freeze(RunConfig, tree, "")
  _check(frozen)
  return frozen


def check_field(field, text, learner):
  """Raises BadInput unless a config of this learner has the field "a.b", and `text` (if any) could be its value."""
  if field == "learner.name":
    raise BadInput(f"learner.name={text}: the learner stands behind the colon of --config=configs/NAME.py:LEARNER.")
  tree, prefix = dataclasses.asdict(LEARNERS[learner]()), "learner."
  if not field.startswith(prefix):
    tree, prefix = base(learner).to_dict(), ""
    for key in field.split(".")[:-1]:
      if not isinstance(tree.get(key), dict):
        break
      tree, prefix = tree[key], f"{prefix}{key}."
  if field.removeprefix(prefix) not in tree:
    owner = f"learner {learner!r}" if prefix == "learner." else "config"
    raise BadInput(_no_field(owner, field, prefix, tree))
  kind = type(tree[field.removeprefix(prefix)])
  if text is not None and not _readable(text, kind):
    raise BadInput(f"{field}={text!r} should be {_KINDS[kind]}.")


def to_dict(config):
  """RunConfig -> nested dict that `parse` takes back (JSON-able)."""
  return dataclasses.asdict(config)


def identity(config):
  """The flat fields {'a.b': value} that make a run itself (DESIGN §2)."""
  flat = flatten(to_dict(config))
  return {k: v for k, v in flat.items() if not k.startswith(INCIDENTAL)}


def default_workdir(config):
  """runs/NAME-LEARNER-<short hash of the identity>."""
  digest = hashlib.sha256(json.dumps(identity(config), sort_keys=True).encode()).hexdigest()[:8]
  name = re.sub(r"[^A-Za-z0-9.]+", "_", config.dataset.name.removesuffix(".npz")).strip("_")
  return f"runs/{name}-{config.learner.name}-{digest}"


def flatten(tree, prefix=""):
  """{'a': {'b': 1}} -> {'a.b': 1}."""
  flat = {}
  for key, value in tree.items():
    if isinstance(value, dict):
      flat |= flatten(value, f"{prefix}{key}.")
    else:
      flat[prefix + key] = value
  return flat


def _freeze(cls, tree, prefix):
  if not isinstance(tree, dict):
    raise BadInput(f"{prefix.rstrip('.') or 'config'}={tree!r} should hold the fields "
                   f"{_join(f.name for f in dataclasses.fields(cls))}.")
  hints = {field.name: typing.get_type_hints(cls)[field.name] for field in dataclasses.fields(cls)}
  owner = f"learner {tree['name']!r}" if prefix == "learner." else "config"
  for key in tree:
    if key not in hints:
      raise BadInput(_no_field(owner, prefix + key, prefix, hints))
  for key in hints:
    if key not in tree:
      raise BadInput(f"the {owner} lacks the field {prefix + key!r}.")
  values = {}
  for key, kind in hints.items():
    if key == "learner":
      kind = _learner_class(tree[key])
    if dataclasses.is_dataclass(kind):
      values[key] = _freeze(kind, tree[key], f"{prefix}{key}.")
    else:
      values[key] = _scalar(prefix + key, tree[key], kind)
  return cls(**values)


def _readable(text, kind):
  """Whether a value of this kind can be read from a command line's text."""
  if kind is bool:
    return text.lower() in ("true", "false", "t", "f", "1", "0")
  try:
    kind(text)
  except ValueError:
    return False
  return True


def _no_field(owner, field, prefix, known):
  under = f" under {prefix[:-1]!r}" if prefix else ""
  names = [name for name in known if prefix + name != "learner.name"]
  return f"the {owner} has no field {field!r}; its fields{under} are {_join(names)}."


def _learner_class(tree):
  name = tree.get("name") if isinstance(tree, dict) else tree
  if name not in LEARNERS:
    raise BadInput(f"there is no learner {name!r}; the learners are {_join(LEARNERS)}.")
  return LEARNERS[name]


def _scalar(field, value, kind):
  if kind is float and isinstance(value, int) and not isinstance(value, bool):
    value = float(value)
  if type(value) is not kind or (kind is float and not math.isfinite(value)):
    raise BadInput(f"{field}={value!r} should be {_KINDS[kind]}.")
  return value


_KINDS = {int: "a whole number", float: "a finite number", bool: "True or False", str: "a string"}


def _check(c):
  flat = flatten(to_dict(c))
  for field, value in flat.items():
    if field in _CHOICES and value not in _CHOICES[field]:
      raise BadInput(f"{field}={value!r} is not one of {_join(_CHOICES[field])}.")
    if field in _AT_LEAST and not value >= _AT_LEAST[field]:
      raise BadInput(f"{field}={value} should be at least {_AT_LEAST[field]}.")
  for field, allowed in c.learner.choices.items():
    if getattr(c.learner, field) not in allowed:
      raise BadInput(f"learner.{field}={getattr(c.learner, field)!r} is not one of {_join(allowed)}.")
  s, t = c.stream, c.train
  if s.waiting_time > s.num_megabatches:
    raise BadInput(f"stream.waiting_time={s.waiting_time} exceeds "
                   f"stream.num_megabatches={s.num_megabatches}.")
  if not 0 <= s.replay <= 1:
    raise BadInput(f"stream.replay={s.replay} should lie between 0 and 1.")
  if not 0 < s.val_fraction < 1:
    raise BadInput(f"stream.val_fraction={s.val_fraction} should lie strictly between 0 and 1: "
                   "the best epoch is chosen on validation data.")
  if c.model.num_experts != 1 and c.learner.num_experts is None:
    having = _join(name for name, options in LEARNERS.items() if options.num_experts)
    raise BadInput(f"model.num_experts={c.model.num_experts} is for the learners {having}, not {c.learner.name}.")
  if c.model.num_experts > _MOST_EXPERTS:
    raise BadInput(f"model.num_experts={c.model.num_experts} should be at most {_MOST_EXPERTS}.")
  for field in ("train.learning_rate", "learner.growth_rate"):
    if not flat.get(field, 1) > 0:
      raise BadInput(f"{field}={flat[field]} should be above 0.")
  if t.optimizer != "sgd" and (t.momentum or t.nesterov):
    raise BadInput(f"train.momentum={t.momentum} and train.nesterov={t.nesterov} need "
                   f"train.optimizer='sgd', not {t.optimizer!r}.")
  if t.momentum >= 1:
    raise BadInput(f"train.momentum={t.momentum} should be below 1.")
  if t.nesterov and not t.momentum:
    raise BadInput("train.nesterov=True needs train.momentum above 0.")
  if c.seed >= 2**31:
    raise BadInput(f"seed={c.seed} should be below 2**31.")


def _join(names):
  return ", ".join(map(str, names))
