"""ConfigDict -> frozen dataclasses; every check of a config that needs no data.

`base(learner)` is the template that the files under configs/ fill in, and,
as it stands, the digits run that `python -m alma_jax.main` starts by itself;
`language(learner, size)` is that of language modelling.
`parse` turns a ConfigDict into a `RunConfig`; after it no other module sees a
ConfigDict. This module imports neither jax nor numpy: `--help` is instant.
"""
import dataclasses
import hashlib
import json
import math
import pathlib
import re
import runpy
import typing

from alma_jax import fields, plugins
from alma_jax.errors import BadInput
from alma_jax.fields import SIZES, RunConfig
from alma_jax.options import LEARNERS, TEXT_LEARNERS

# The fields that do not make a run another run.
INCIDENTAL = ("dataset.data_dir", "checkpoint.", "log.", "devices")

_CHOICES = {
    "stream.untrained_error": ("chance", "model"),
    "train.optimizer": ("adadelta", "sgd", "adam"),
    "precision": ("float32", "bfloat16"),
}
_MOST_EXPERTS = 1024  # the tree of their gates is an array of their number squared
_MOST_TOKENS, _MOST_DROPOUT = 2**31, 0.99
_TRUE = ("true", "t", "1")
_LEAST_VOCABULARY = 257  # the bytes, and the end of a document
_AT_LEAST = {
    "seed": 0, "devices": 0, "stream.num_megabatches": 1, "stream.waiting_time": 1,
    "learner.num_members": 1, "learner.members_per_stage": 1, "learner.grow_every": 1,
    "learner.num_candidates": 0, "learner.score_points": 1,
    "learner.score_batches": 1, "learner.min_shard": 1, "learner.add_beyond": 0.0, "learner.split_every": 0,
    "model.width": 1, "model.num_experts": 1, "model.num_layers": 2, "model.num_heads": 1, "model.group_size": 0,
    "model.balance": 0.0, "model.jitter": 0.0, "learner.noise": 0.0, "learner.add_experts": 0,
    "dataset.vocab_size": _LEAST_VOCABULARY, "dataset.sequence_length": 2, "dataset.eval_tokens": 0,
    "train.steps": 1, "train.steps_multiplier": 1, "train.warmup_steps": 0, "train.micro_batch": 0,
    "train.eval_every": 0,
    "train.epochs": 1, "train.batch_size": 1, "train.momentum": 0.0, "train.weight_decay": 0.0, "train.patience": 0,
    "train.patience_delta": 0.0, "checkpoint.seconds": 0.0, "checkpoint.keep": 1,
    "checkpoint.keep_every": 0,
}


def base(learner="ens"):
  """The digits run with `learner`'s options, as a ConfigDict to be changed.

  Args:
    learner: name of a learner, e.g. "ens".

  Returns:
    ml_collections.ConfigDict with every field.

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
      log=dict(progress=True, tensorboard=True, wandb=""),
      precision="float32",
      deterministic=False,
      devices=0,
  ))


def language(learner="ens", size="tiny"):
  """A language model's run with `learner`'s options, as a ConfigDict to be changed.

  Args:
    learner: sm, ens, gens or gmoe.
    size: tiny, base or large, see fields.SIZES.

  Raises:
    BadInput: no such learner or size.
  """
  from ml_collections import ConfigDict

  if size not in SIZES:
    raise BadInput(f"there is no size {size!r}; the sizes are {_join(SIZES)}.")
  s = SIZES[size]
  images = base("sm").to_dict()
  return ConfigDict(dict(
      seed=0,
      dataset=dict(name="tfds:tiny_shakespeare", data_dir="", vocab_size=s.vocab_size, tokenizer="",
                   sequence_length=s.sequence_length, cross_documents=True, eval_tokens=s.eval_tokens),
      stream=dict(num_megabatches=4, waiting_time=1, replay=0.0),
      learner=dataclasses.asdict(_learner_class(learner, TEXT_LEARNERS)()),
      model=dict(name="switch", width=s.width, num_layers=s.num_layers, num_heads=s.num_heads, num_experts=4,
                 capacity_factor=1.0, group_size=0, balance=0.01, dropout=(0.0,), jitter=0.0, remat=False),
      train=dict(steps=s.steps, steps_multiplier=1, warmup_steps=s.warmup_steps, batch_size=s.batch_size,
                 micro_batch=s.micro_batch, eval_every=s.eval_every, learning_rate=(s.learning_rate,)),
      checkpoint=images["checkpoint"] | dict(seconds=s.checkpoint_seconds, keep_every=1),
      **{key: images[key] for key in ("log", "precision", "deterministic", "devices")}),
      type_safe=False)  # one number where several may stand


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
  if not hasattr(config, "to_dict") and not isinstance(config, dict):
    raise BadInput(f"the config {config!r} is none; alma_jax.base_config('ens') makes one.")
  tree = config.to_dict() if hasattr(config, "to_dict") else dict(config)
  frozen = _freeze(RunConfig, tree, "")
  _check(frozen)
  return frozen


def load_file(path, arg=None):
  """What a config file's get_config makes of `arg` (or of nothing), as a nested dict.

  Raises:
    BadInput: there is no such file, or it has no get_config; and what that raises.
  """
  if not pathlib.Path(path).is_file():
    raise BadInput(f"there is no config file {path!r} below {pathlib.Path.cwd()}; a config is given as "
                   "configs/NAME.py:LEARNER.")
  get_config = runpy.run_path(path).get("get_config")
  if get_config is None:
    raise BadInput(f"{path} has no function get_config.")
  return (get_config(arg) if arg else get_config()).to_dict()


def check_field(field, text, tree):
  """Raises BadInput unless a config like `tree` has the field "a.b", and `text` (if any) could be its value."""
  learner, prefix = tree["learner"]["name"], ""
  if field == "learner.name":
    raise BadInput(f"learner.name={text}: the learner stands behind the colon of --config=configs/NAME.py:LEARNER.")
  for key in field.split(".")[:-1]:
    if not isinstance(tree.get(key), dict):
      break
    tree, prefix = tree[key], f"{prefix}{key}."
  if field.removeprefix(prefix) not in tree:
    owner = f"learner {learner!r}" if prefix == "learner." else "config"
    raise BadInput(_no_field(owner, field, prefix, tree))
  value = tree[field.removeprefix(prefix)]
  if text is not None and not _readable(text, type(value)):
    raise BadInput(f"{field}={text!r} should be {_KINDS.get(type(value), 'of another kind')}.")


def set_field(tree, field, value):
  """Changes the field "a.b", which there must be, in a nested dict."""
  *sections, name = field.split(".")
  for section in sections:
    tree = tree[section]
  tree[name] = value


def read_value(field, text, tree):
  """What a command line's text means for the field "a.b" of a nested dict, once `check_field` has passed it."""
  value = flatten(tree)[field]
  if isinstance(value, bool):
    return text.lower() in _TRUE
  if isinstance(value, tuple):
    return tuple(int(part) if part.strip().lstrip("+-").isdigit() else float(part) for part in _parts(text))
  return type(value)(text)


def completed(tree):
  """A stored nested dict with the defaults of incidental fields that an earlier version did not have."""
  sections = base("sm").to_dict()
  return tree | {name: sections[name] | tree.get(name, {}) for name in ("checkpoint", "log")}


def to_dict(config):
  """RunConfig -> nested dict that `parse` takes back (JSON-able)."""
  return dataclasses.asdict(config)


def identity(config):
  """The flat fields {'a.b': value} that make a run itself."""
  flat = flatten(json.loads(json.dumps(to_dict(config))))
  return {k: v for k, v in flat.items() if not k.startswith(INCIDENTAL)}


def differences(stored, config):
  """What tells a stored run from another one.

  Args:
    stored: nested dict of a run folder's config.json.
    config: RunConfig.

  Returns:
    List of "FIELD (VALUE there, VALUE here)"; empty where they are one run.
  """
  new = identity(config)
  old = {k: v for k, v in flatten(stored).items() if not k.startswith(INCIDENTAL) and k != "data_fingerprint"}
  names = [k for k in old.keys() | new.keys() if old.get(k) != new.get(k)]
  names.sort(key=lambda k: (".name" not in k, k))
  if "learner.name" in names:  # its fields are others
    names = [k for k in names if k == "learner.name" or not k.startswith("learner.")]
  return [f"{k} ({old.get(k)!r} there, {new.get(k)!r} here)" for k in names]


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
  if cls is RunConfig:
    hints |= _sections(tree)
  owner = f"learner {tree['name']!r}" if prefix == "learner." else "config"
  for key in tree:
    if key not in hints:
      raise BadInput(_no_field(owner, prefix + key, prefix, hints))
  for key in hints:
    if key not in tree:
      raise BadInput(f"the {owner} lacks the field {prefix + key!r}.")
  values = {}
  for key, kind in hints.items():
    freeze = _freeze if dataclasses.is_dataclass(kind) else _value
    values[key] = freeze(kind, tree[key], f"{prefix}{key}" + ("." if freeze is _freeze else ""))
  return cls(**values)


def _sections(tree):
  """Classes of the sections that differ from task to task and from learner to learner."""
  model, dataset = (tree[name] if isinstance(tree.get(name), dict) else {} for name in ("model", "dataset"))
  is_language = model.get("name") == "switch"
  if is_language != ("sequence_length" in dataset):
    raise BadInput(f"model.name={model.get('name')!r} does not go with this config: 'switch' is for configs/lm.py, "
                   "'mlp' and 'vgg' are for the others.")
  known = TEXT_LEARNERS if is_language else LEARNERS
  return (fields.LANGUAGE if is_language else fields.IMAGES) | dict(learner=_learner_class(tree.get("learner"), known))


def _readable(text, kind):
  """Whether a value of this kind can be read from a command line's text."""
  if kind is bool:
    return text.lower() in (*_TRUE, "false", "f", "0")
  if kind is tuple:
    kind = lambda text: [float(part) for part in _parts(text)]
  try:
    kind(text)
  except (ValueError, TypeError):
    return False
  return True


def _parts(text):
  return [part for part in text.strip("()[] ").split(",") if part.strip()]


def _no_field(owner, field, prefix, known):
  under = f" under {prefix[:-1]!r}" if prefix else ""
  names = [name for name in known if prefix + name != "learner.name"]
  return f"the {owner} has no field {field!r}; its fields{under} are {_join(names)}."


def _learner_class(tree, known=LEARNERS):
  name = tree.get("name") if isinstance(tree, dict) else tree
  if name not in known:
    task = " for language modelling" if known is TEXT_LEARNERS and name in LEARNERS else ""
    raise BadInput(f"there is no learner {name!r}{task}; the learners are {_join(known)}.")
  return known[name]


def _value(kind, value, field):
  """A value of a field, of exactly this kind; lists and single numbers become tuples where these are wanted."""
  if typing.get_origin(kind) is tuple:
    values = value if isinstance(value, (list, tuple)) else [value]
    return tuple(_value(typing.get_args(kind)[0], v, field) for v in values)
  if kind is float and isinstance(value, int) and not isinstance(value, bool):
    value = float(value)
  if type(value) is not kind or (kind is float and not math.isfinite(value)):
    raise BadInput(f"{field}={value!r} should be {_KINDS[kind]}.")
  return value


_KINDS = {int: "a whole number", float: "a finite number", bool: "True or False", str: "a string",
          tuple: "a number, or several as in (1,2)"}


def _check(c):
  flat = flatten(to_dict(c))
  choices = _CHOICES | {"model.name": (*fields.MODELS, *plugins.MODELS)}
  for field, value in flat.items():
    if field in choices and value not in choices[field]:
      raise BadInput(f"{field}={value!r} is not one of {_join(choices[field])}.")
    if field in _AT_LEAST and not min(_each(value), default=math.inf) >= _AT_LEAST[field]:
      raise BadInput(f"{field}={value} should be at least {_AT_LEAST[field]}.")
    if isinstance(value, (tuple, list)) and field in ("train.learning_rate", "model.dropout"):
      if not value:
        raise BadInput(f"{field} is an empty list; give one value, or several to choose from.")
      if len(set(value)) < len(value):
        raise BadInput(f"{field}={value} lists a value twice.")
  for field, allowed in c.learner.choices.items():
    if getattr(c.learner, field) not in allowed:
      raise BadInput(f"learner.{field}={getattr(c.learner, field)!r} is not one of {_join(allowed)}.")
  s = c.stream
  if s.waiting_time > s.num_megabatches:
    raise BadInput(f"stream.waiting_time={s.waiting_time} exceeds "
                   f"stream.num_megabatches={s.num_megabatches}.")
  if not 0 <= s.replay <= 1:
    raise BadInput(f"stream.replay={s.replay} should lie between 0 and 1.")
  for field in ("train.learning_rate", "learner.growth_rate", "model.capacity_factor"):
    if not min(_each(flat.get(field, 1)), default=0) > 0:
      raise BadInput(f"{field}={flat[field]} should be above 0.")
  if c.model.num_experts > _MOST_EXPERTS:
    raise BadInput(f"model.num_experts={c.model.num_experts} should be at most {_MOST_EXPERTS}.")
  if c.seed >= 2**31:
    raise BadInput(f"seed={c.seed} should be below 2**31.")
  (_check_language if c.is_language else _check_images)(c)


def _check_images(c):
  s, t = c.stream, c.train
  if c.dataset.name.startswith("text:"):
    raise BadInput(f"dataset.name={c.dataset.name!r} is for language models; use configs/lm.py.")
  if not 0 < s.val_fraction < 1:
    raise BadInput(f"stream.val_fraction={s.val_fraction} should lie strictly between 0 and 1: "
                   "the best epoch is chosen on validation data.")
  if c.model.num_experts != 1 and c.learner.num_experts is None:
    having = _join(name for name, options in LEARNERS.items() if options.num_experts)
    raise BadInput(f"model.num_experts={c.model.num_experts} is for the learners {having}, not {c.learner.name}.")
  if t.optimizer != "sgd" and (t.momentum or t.nesterov):
    raise BadInput(f"train.momentum={t.momentum} and train.nesterov={t.nesterov} need "
                   f"train.optimizer='sgd', not {t.optimizer!r}.")
  if t.momentum >= 1:
    raise BadInput(f"train.momentum={t.momentum} should be below 1.")
  if t.nesterov and not t.momentum:
    raise BadInput("train.nesterov=True needs train.momentum above 0.")


def _check_language(c):
  m, t, length = c.model, c.train, c.dataset.sequence_length
  if not c.dataset.name.startswith(("text:", "tfds:")):
    raise BadInput(f"dataset.name={c.dataset.name!r} should be text:DIR or tfds:NAME for model.name='switch'.")
  if m.width % m.num_heads or m.width % 2:
    raise BadInput(f"model.width={m.width} should be an even multiple of model.num_heads={m.num_heads}.")
  if not 0 <= min(m.dropout) <= max(m.dropout) <= _MOST_DROPOUT:
    raise BadInput(f"model.dropout={m.dropout} should lie between 0 and {_MOST_DROPOUT}.")
  if c.dataset.data_dir and c.dataset.name.startswith("text:"):
    raise BadInput(f"dataset.data_dir={c.dataset.data_dir!r} is for tfds:NAME; text:DIR says where the text lies.")
  if not m.jitter < 1:
    raise BadInput(f"model.jitter={m.jitter} should be below 1.")
  if t.steps * t.steps_multiplier <= t.warmup_steps:
    raise BadInput(f"train.steps={t.steps} times train.steps_multiplier={t.steps_multiplier} should be above "
                   f"train.warmup_steps={t.warmup_steps}.")
  group, per_round = m.group_size or length, t.plan(0).per_round
  if length % group and group % length:
    raise BadInput(f"model.group_size={group} should divide dataset.sequence_length={length}, or be a multiple of it.")
  if group > t.batch_size * length:
    raise BadInput(f"model.group_size={group} exceeds the {t.batch_size * length} tokens of a step, train.batch_size="
                   f"{t.batch_size} windows.")
  if per_round * t.batch_size * length >= _MOST_TOKENS:
    raise BadInput(f"train.eval_every={t.eval_every} would have {per_round * t.batch_size * length:,} tokens between "
                   "two validations; they are counted up to 2**31.")
  if t.micro_batch > t.batch_size:
    raise BadInput(f"train.micro_batch={t.micro_batch} exceeds train.batch_size={t.batch_size}.")
  if c.learner.name == "gmoe":
    num, num_stages = m.num_experts, -(-c.stream.num_megabatches // c.stream.waiting_time)
    for more in c.learner.add_experts[:num_stages - 1]:
      if more > num:
        raise BadInput(f"learner.add_experts={c.learner.add_experts} would add {more} experts to {num}; each can be "
                       "duplicated once a stage.")
      num += more


def _each(value):
  return value if isinstance(value, tuple) else (value,)


def _join(names):
  return ", ".join(map(str, names))
