"""Lists all fields, from their declarations.

    alma fields [PATTERN]                                      # as text
    python -m alma_jax.config.document > docs/fields.md        # as a page of tables
"""
import shutil
import textwrap
from collections.abc import Iterator
from typing import Any, NamedTuple

from alma_jax.config import layout, presets
from alma_jax.config.fields import Declared, kind_name, text_of
from alma_jax.config.registry import TEXT, Registry, is_own
from alma_jax.config.schema import CONFIGS

_WIDTH = 100  # at most
_PAGE = """\
# Fields of a config

A config file sets fields, as in `c.train.epochs = 50`. The command line changes them, as in
`--config.train.epochs=50`. If the type is a tuple, give one number or several, as in
`--config.train.learning_rate="(1e-3,4e-3)"`. If the column "allowed" is empty, every value of the type is allowed.
`alma fields` prints this list, and `alma fields epochs` the fields whose name or meaning contains "epochs".

Some fields exist only with a certain name, which is in the title above them. For example, `stream.price` exists only
with `stream.schedule=adaptive`. If you change a name, its fields start from their defaults.

The table shows the defaults of `alma_jax.base_config`, `alma_jax.language_config` and `alma_jax.task_config`. Some
learners and the files under `configs/` change them. A run's `config.json` holds the values of all its fields.

This page is made from the declarations in `alma_jax`: `python -m alma_jax.config.document > docs/fields.md`.
"""


class Group(NamedTuple):
  """Fields that belong together.

  Attributes:
    title: e.g. "Images and text, stream.schedule=power".
    about: sentences below the title.
    fields: {full name: Declared}.
  """
  title: str
  about: str
  fields: layout.Fields


def groups() -> list[Group]:
  """All fields, without those of the user's classes."""
  common = [_common(problem) for problem in CONFIGS]
  shared = {path: each for path, each in common[0].items() if all(other.get(path) == each for other in common)}
  made: dict[tuple[str, str], tuple[list[str], Group]] = {}
  for problem in CONFIGS:
    for owner, cls, fields in layout.alternatives({"problem": problem}):
      left = {path: _public(each) for path, each in fields.items() if owner or path not in shared}
      if not left or (cls is not None and is_own(cls)):
        continue
      about = _about(cls)
      key = (owner, str(left))
      made.setdefault(key, ([], Group(owner, about, left)))[0].append(problem)
  return [Group("All runs", "", shared), *(
      group._replace(title=f"{' and '.join(problems).capitalize()}{f', `{group.title}`' if group.title else ''}")
      for problems, group in made.values())]


def text(pattern: str = "") -> str:
  """The fields whose name, meaning or title contains a pattern, for a terminal; empty if there are none."""
  parts = []
  for group in groups():
    fields = {path: each for path, each in group.fields.items()
              if pattern.lower() in f"{path} {each.meaning} {group.title}".lower()}
    if fields:
      entries = (_entry(path, each) for path, each in fields.items())
      parts.append("\n".join([f"{group.title.replace('`', '')}:", *entries]))
  return "\n\n".join(parts)


def markdown() -> str:
  """The page docs/fields.md."""
  parts = [_PAGE]
  for group in groups():
    about = f"{textwrap.fill(group.about, 120)}\n\n" if group.about else ""
    parts.append(f"## {group.title}\n\n{about}{_table(group.fields)}")
  parts.append(f"## Sizes of language models\n\n{_sizes()}")
  return "\n".join(part.rstrip() + "\n" for part in parts)


def _common(problem: str) -> layout.Fields:
  """The fields of a problem that all its configs have."""
  return next(fields for owner, _, fields in layout.alternatives({"problem": problem}) if not owner)


def _public(field: Declared) -> Declared:
  """A field without the names that users have registered."""
  if not isinstance(field.choices, Registry):
    return field
  return field._replace(choices=[name for name, cls in field.choices.items() if not is_own(cls)])


def _about(cls: Any) -> str:
  """The docstring of a class, and the defaults that a learner changes in other sections."""
  if cls is None:
    return ""
  others = " and ".join(f"`{path}={text_of(value)}`" for path, value in cls.defaults.items())
  return " ".join((cls.__doc__ or "").split()) + (f" By default it sets {others}." if others else "")


def _entry(path: str, declared: Declared) -> str:
  """As in "  --config.train.epochs=100    int, at least 1", and the meaning below it."""
  kind = ", ".join(part for part in (kind_name(declared.kind), declared.allowed()) if part)
  width = min(_WIDTH, shutil.get_terminal_size((_WIDTH, 0)).columns)
  meaning = textwrap.fill(declared.meaning.replace("`", ""), width, initial_indent=" " * 6, subsequent_indent=" " * 6)
  return f"  --config.{path}={text_of(declared.default)}  ({kind})\n{meaning}"


def _table(fields: layout.Fields) -> str:
  rows = ["| field | type | default | allowed | meaning |", "| --- | --- | --- | --- | --- |"]
  for path, each in fields.items():
    allowed = ", ".join(f"`{choice}`" for choice in each.choices) if each.choices is not None else str(each.bounds)
    if each.kind == float | str:
      allowed = f"{each.bounds}, or {allowed}"
    kind = kind_name(each.kind).replace(" | ", " or ")  # a bar would end the cell
    default = text_of(each.default)
    rows.append(f"| `{path}` | {kind} | {f'`{default}`' if default else 'empty'} | {allowed} | {each.meaning} |")
  return "\n".join(rows) + "\n"


def _sizes() -> str:
  """The fields in which the sizes of language models differ."""
  fields = layout.fields_of({"problem": TEXT})
  changed: Iterator[str] = (path for path in fields if any(path in changes for changes in presets.SIZES.values()))
  rows = [f"| field | {' | '.join(f'`{size}`' for size in presets.SIZES)} |", "| --- |" + " --- |" * len(presets.SIZES)]
  for path in changed:
    values = (text_of(changes.get(path, fields[path].default)) for changes in presets.SIZES.values())
    rows.append(f"| `{path}` | {' | '.join(values)} |")
  return "\n".join(rows) + "\n"


if __name__ == "__main__":
  print(markdown(), end="")
