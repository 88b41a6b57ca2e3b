"""Identifies the run that a config describes, by the fields that decide its results, and compares configs."""
import hashlib
import json
import os
import re
from collections.abc import Mapping
from typing import Any

from alma_jax.config.layout import Tree, fields_of, flatten, to_dict
from alma_jax.config.schema import RunConfig
from alma_jax.config.sections import LIVE
from alma_jax.files import MOST_OF_NAME

_SHORTENED = 100  # characters that each part keeps if the name of a run folder would be too long
# Fields that do not change the results: two configs that differ only in these describe the same run.
INCIDENTAL = ("dataset.data_dir", "checkpoint.", "log.", "devices")
# The same of live streams, whose run folders record which entries were used, and when.
INCIDENTAL_LIVE = ("dataset.settle_seconds", "dataset.idle_seconds", "dataset.max_examples", "dataset.max_bytes")
# What config.json holds besides the fields: its format, hashes of the data and of a pretrained network, and the version
# that wrote the file. Then, from the start of the run, hashes of the files that define a user's learner or network and
# of the arrays in it, the fields that train.budget decides, and the versions, devices and compiler flags.
STORED = ("format", "data_fingerprint", "root_sha256", "alma_jax_version", "code", "arrays", "decided", "made_with")


def identity(config: RunConfig | Tree) -> Tree:
  """The flat fields {"a.b": value} that decide the results.

  Args:
    config: RunConfig, or the nested dict of a config.json.
  """
  flat = flatten(config if isinstance(config, dict) else json.loads(json.dumps(to_dict(config))))
  name = flat.get("dataset.name")
  if isinstance(name, str) and name.startswith(LIVE):  # live:DIR and live:DIR/ are the same
    flat["dataset.name"] = LIVE + os.path.normpath(name.removeprefix(LIVE))
    flat = {field: value for field, value in flat.items() if field not in INCIDENTAL_LIVE}
  return {field: value for field, value in flat.items()
          if not field.startswith(INCIDENTAL) and field.partition(".")[0] not in STORED}


def differences(stored: Tree, config: RunConfig) -> list[str]:
  """The fields in which a stored run differs from a config.

  Args:
    stored: nested dict of a run folder's config.json.
    config: RunConfig.

  Returns:
    List of "FIELD (VALUE there, VALUE here)"; empty if the config describes the stored run.
  """
  return changed_since(identity(stored), config, "there", "here")


def changed_since(stored: Mapping[str, Any], config: RunConfig, where_old: str, where_new: str) -> list[str]:
  """Compares a stored identity with a config, as `compared` does.

  A field that was added since, and has its default, counts as equal: the run goes on as before.
  """
  now = identity(config)
  plain = _defaults(now)
  added = {name: value for name, value in now.items() if name not in stored and value == plain[name]}
  return compared({**stored, **added}, now, where_old, where_new)


def compared(old: Mapping[str, Any], new: Mapping[str, Any], where_old: str, where_new: str) -> list[str]:
  """The fields in which two identities differ, as ["FIELD (VALUE where_old, VALUE where_new)"]."""
  names = [name for name in old.keys() | new.keys() if old.get(name) != new.get(name)]
  names = [name for name in names if name in old and name in new] or names  # a changed name brings other fields
  names.sort(key=lambda name: (".name" not in name, name))
  if "learner.name" in names:  # two learners have different options anyway
    names = [name for name in names if name == "learner.name" or not name.startswith("learner.")]
  shown = {name: name if name.isprintable() else repr(name) for name in names}  # a damaged file may name any field
  value = lambda fields, name: repr(fields[name]) if name in fields else "absent"
  return [f"{shown[name]} ({value(old, name)} {where_old}, {value(new, name)} {where_new})" for name in names]


def digest(config: RunConfig | Tree) -> str:
  """SHA-256 of the identity, hexadecimal."""
  return _hash(identity(config))


def _defaults(flat: Tree) -> Tree:
  """The declared defaults of the fields of an identity, names that bring fields among them, as JSON holds them."""
  plain: Tree = json.loads(json.dumps({name: each.default for name, each in fields_of(flat).items() if name in flat}))
  return plain


def _hash(fields: Tree) -> str:
  return hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()


def default_workdir(config: RunConfig) -> str:
  """The default run folder, runs/DATA-LEARNER-HASH. Long names are cut."""
  parts = [re.sub(r"[^A-Za-z0-9.]+", "_", text).strip("_")
           for text in (config.dataset.name.removesuffix(".npz"), config.label)]
  if sum(map(len, parts)) + len("--") + 8 > MOST_OF_NAME:
    parts = [part[:_SHORTENED] for part in parts]
  now = identity(config)
  plain = _defaults(now)
  own = {name: value for name, value in now.items() if value != plain[name]}  # fields that are added change no name
  return f"runs/{'-'.join([*parts, _hash(own)[:8]])}"
