"""The list of all fields, made from their declarations.

    python -m alma_jax.main --help                             # as text
    python -m alma_jax.config.document > docs/fields.md        # as a page of tables

Imports neither jax nor numpy.
"""
import textwrap
from collections.abc import Mapping
from typing import NamedTuple

from alma_jax.config import presets, registry, schema
from alma_jax.config.fields import Declared, kind_name, text_of
from alma_jax.config.learner_options import LEARNERS, TEXT_LEARNERS, Options
from alma_jax.config.task_options import TASK_LEARNERS

_WIDTH = 100
_PAGE = """\
# Fields of a config

A config file sets fields, as in `c.train.epochs = 50`. The command line changes them, as in
`--config.train.epochs=50`. If the type is a tuple, give one number or several, as in
`--config.train.learning_rate="(1e-3,4e-3)"`. If the column "allowed" is empty, every value of the type is allowed.
`python -m alma_jax.main --help` prints the same list as this page.

The defaults below are those of `alma_jax.base_config` and `alma_jax.language_config`. The files under `configs/` and
some learners change them. A run's `config.json` holds the values of all its fields.

This page is made from the declarations in `alma_jax/config/`: `python -m alma_jax.config.document > docs/fields.md`.
"""


class _Group(NamedTuple):
  """Fields that belong together.

  Attributes:
    title: e.g. "All runs".
    about: sentences below the title.
    fields: {full name: Declared}.
  """
  title: str
  about: str
  fields: Mapping[str, Declared]


def text() -> str:
  """All fields, for a terminal."""
  parts = ["Fields of a config and their defaults:"]
  for group in _groups():
    about = textwrap.fill(group.about.replace("`", ""), _WIDTH)
    parts.append("\n\n".join(part for part in (f"{group.title.replace('`', '')}:", about) if part))
    parts.append("\n".join(_entry(path, each) for path, each in group.fields.items()))
  return "\n\n".join(part for part in parts if part)


def markdown() -> str:
  """The page docs/fields.md."""
  parts = [_PAGE]
  for group in _groups():
    parts.append(f"## {group.title}\n\n" + (f"{textwrap.fill(group.about, 120)}\n\n" if group.about else "")
                 + _table(group.fields))
  parts.append(f"## Sizes of language models\n\n{_sizes()}")
  return "\n".join(part.rstrip() + "\n" for part in parts)


def _groups() -> list[_Group]:
  """All fields of alma_jax; learners that someone has registered are left out."""
  images = schema.declared_fields(schema.ImageConfig, Options)
  tasks = schema.declared_fields(schema.TaskConfig, Options)
  text = schema.declared_fields(schema.LanguageConfig, Options)
  special = tuple(f"{section}." for section in (*schema.IMAGES, "learner"))
  groups = [
      _Group("All runs", "", {path: each for path, each in images.items() if not path.startswith(special)}),
      _Group("Images", "", _with_prefix(images, schema.IMAGES)),
      _Group("Streams of tasks", "The fields of `stream` besides `stream.num_megabatches` keep their defaults.",
             _with_prefix(tasks, schema.TASKS)),
      _Group("Language models", "", _with_prefix(text, schema.LANGUAGE))]
  for task, learners, own in (("images", LEARNERS, registry.LEARNERS), ("streams of tasks", TASK_LEARNERS, ()),
                              ("language models", TEXT_LEARNERS, registry.TEXT_LEARNERS)):
    groups += [_learner(task, options) for name, options in learners.items() if name not in own]
  return groups


def _with_prefix(fields: Mapping[str, Declared], sections: Mapping[str, type]) -> dict[str, Declared]:
  return {path: each for path, each in fields.items() if path.partition(".")[0] in sections}


def _learner(task: str, options: type[Options]) -> _Group:
  fields = schema.declared_fields(schema.ImageConfig, options)
  own = {path: each for path, each in fields.items() if path.startswith("learner.") and path != "learner.name"}
  others = " and ".join(f"`{path}={text_of(value)}`" for path, value in options.defaults.items())
  about = " ".join((options.__doc__ or "").split()) + (f" Its configs have {others} by default." if others else "")
  return _Group(f"Learner `{options.name}` of {task}", about, own)


def _entry(path: str, declared: Declared) -> str:
  """As in "  --config.train.epochs=100    int, at least 1", and the meaning below it."""
  kind = ", ".join(part for part in (kind_name(declared.kind), declared.allowed()) if part)
  meaning = textwrap.fill(declared.meaning.replace("`", ""), _WIDTH, initial_indent=" " * 6, subsequent_indent=" " * 6)
  return f"  --config.{path}={text_of(declared.default)}  ({kind})\n{meaning}"


def _table(fields: Mapping[str, Declared]) -> str:
  rows = ["| field | type | default | allowed | meaning |", "| --- | --- | --- | --- | --- |"]
  for path, each in fields.items():
    allowed = ", ".join(f"`{choice}`" for choice in each.choices) if each.choices is not None else str(each.bounds)
    if each.kind == float | str:
      allowed = f"{each.bounds}, or {allowed}"
    kind = kind_name(each.kind).replace(" | ", " or ")  # a bar would end the cell
    rows.append(f"| `{path}` | {kind} | {_default(each)} | {allowed} | {each.meaning} |")
  return "\n".join(rows) + "\n"


def _default(declared: Declared) -> str:
  value = text_of(declared.default)
  return f"`{value}`" if value else "empty"


def _sizes() -> str:
  """The fields in which the sizes of language models differ."""
  known = schema.declared_fields(schema.LanguageConfig, Options)
  changed = [path for path in known if any(path in changes for changes in presets.SIZES.values())]
  rows = [f"| field | {' | '.join(f'`{size}`' for size in presets.SIZES)} |", "| --- |" + " --- |" * len(presets.SIZES)]
  for path in changed:
    values = (text_of(changes.get(path, known[path].default)) for changes in presets.SIZES.values())
    rows.append(f"| `{path}` | {' | '.join(values)} |")
  return "\n".join(rows) + "\n"


if __name__ == "__main__":
  print(markdown(), end="")
