"""Lists all fields, from their declarations.

    alma fields [PATTERN]                                      # as text
    python -m alma_jax.config.document > docs/fields.md        # as a page
"""
import shutil
import textwrap
from collections.abc import Iterable
from typing import Any

from alma_jax.config import layout
from alma_jax.config.fields import Declared, kind_name, listed, text_of
from alma_jax.config.registry import Registry, is_own
from alma_jax.config.schema import CONFIGS

_WIDTH = 100  # at most
_PAGE = """\
# Fields of a config

A config file sets a field by `c.train.epochs = 50`, the command line by `--config.train.epochs=50`. Where several
numbers are allowed, write `--config.train.learning_rate="(1e-3,4e-3)"`. `alma fields epochs` prints the fields whose
name or meaning contains "epochs".

Some fields exist only with the names in the title above them: `stream.price` needs `stream.schedule=adaptive`. If you
change such a name, its fields start from their defaults.

You see each field with its default, and in brackets its values where they are not obvious. Some learners and the files
under `configs/` change the defaults. A run's `config.json` holds the values of all its fields.

`python -m alma_jax.config.document > docs/fields.md` writes this page.
"""
_SHARED = 3  # how many names share a field that is listed once
_NATURAL = ({"at_least": 0}, {"at_least": 1}, {"above": 0})  # bounds that surprise nobody
# What stands on the page for the words of Declared.allowed.
_SIGNS = {"at least ": "≥ ", "above ": "> ", "at most ": "≤ ", "below ": "< ", "one of ": ""}

Group = tuple[str, str]  # (title, e.g. "Images and text, `stream.schedule=power`"; sentences below the title)


def groups() -> dict[Group, list[tuple[str, Declared]]]:
  """All fields (full name, Declared), without those of the user's classes."""
  problems: dict[tuple[str, str, str], list[str]] = {}  # with an equal field
  fields: dict[tuple[str, str, str], tuple[str, Declared]] = {}
  for problem in CONFIGS:
    for (owner, cls), own in layout.alternatives(problem).items():
      for path, each in own.items() if cls is None or not is_own(cls) else ():
        if isinstance(each.choices, Registry):
          each = each._replace(choices=[name for name, cls in each.choices.items() if not is_own(cls)])
        key = (owner, _about(cls), _row(path, each))
        problems.setdefault(key, []).append(problem)
        fields[key] = path, each
  made: dict[Group, list[tuple[str, Declared]]] = {("All runs", ""): []}
  for key, of in problems.items():
    title = "All runs" if len(of) == len(CONFIGS) else " and ".join(of).capitalize()
    made.setdefault((f"{title}, `{key[0]}`" if key[0] else title, key[1]), []).append(fields[key])
  return _gathered(made)


def _gathered(made: dict[Group, list[tuple[str, Declared]]]) -> dict[Group, list[tuple[str, Declared]]]:
  """With one group for the fields that several names share, before the first of their own groups."""
  names: dict[tuple[str, str], dict[str, None]] = {}  # titles of the groups that have a field, by (owner, row)
  for (title, _), fields in made.items():
    for path, each in fields:
      names.setdefault((_owner(title), _row(path, each)), {})[title] = None
  found: dict[Group, list[tuple[str, Declared]]] = {}
  for (title, about), fields in made.items():
    own: list[tuple[str, Declared]] = []
    for path, each in fields:
      sharing = names[_owner(title), _row(path, each)]
      if not _owner(title) or len(sharing) < _SHARED:
        own.append((path, each))
        continue
      shared = found.setdefault((_title(sharing), ""), [])
      if path not in (there for there, _ in shared):
        shared.append((path, each))
    found[title, about] = own
  return found


def _owner(title: str) -> str:
  """As in "learner.name"; empty for fields that every config of a problem has."""
  return title.partition("`")[2].partition("=")[0]


def _title(titles: Iterable[str]) -> str:
  """As in "Images, `learner.name`: `ens`, `sm`; text, `learner.name`: `btm`" of the titles of single names."""
  names: dict[str, list[str]] = {}
  for title in titles:
    section, _, name = title.partition("=")
    names.setdefault(section, []).append(f"`{name}")
  parts = [f"{section}`: {', '.join(each)}" for section, each in names.items()]
  return "; ".join([parts[0], *(part[0].lower() + part[1:] for part in parts[1:])])


def text(pattern: str = "") -> str:
  """The fields whose name, meaning or title contains a pattern, for a terminal; empty if there are none."""
  parts = []
  for (title, _), fields in groups().items():
    entries = [_entry(path, each) for path, each in fields
               if pattern.lower() in f"{path} {each.meaning} {title}".lower()]
    if entries:
      parts.append("\n".join([f"{title.replace('`', '')}:", *entries]))
  return "\n\n".join(parts)


def markdown() -> str:
  """The page docs/fields.md."""
  parts = [_PAGE]
  for (title, about), fields in groups().items():
    if fields:
      rows = "\n".join(_row(path, each) for path, each in fields)
      parts.append("\n\n".join(filter(None, (f"## {title}", textwrap.fill(about, 120), rows))) + "\n")
  return "\n".join(parts)


def _about(cls: Any) -> str:
  """The docstring of a class, and the defaults that a learner changes in other sections."""
  others = " and ".join(f"`{path}={text_of(value)}`" for path, value in (cls.defaults if cls else {}).items())
  about = " ".join(((cls.__doc__ if cls else None) or "").split())
  return f"{about} By default it sets {others}." if others else about


def _entry(path: str, declared: Declared) -> str:
  """As in "  --config.train.epochs=100    int, at least 1", and the meaning below it."""
  kind = listed(filter(None, (kind_name(declared.kind), declared.allowed())))
  width = min(_WIDTH, shutil.get_terminal_size((_WIDTH, 0)).columns)
  meaning = textwrap.fill(declared.meaning.replace("`", ""), width, initial_indent=" " * 6, subsequent_indent=" " * 6)
  return f"  --config.{path}={text_of(declared.default)}  ({kind})\n{meaning}"


def _row(path: str, declared: Declared) -> str:
  """As in "- `train.decay=0.0` (between 0 and 1): ..."; values that go without saying are left out."""
  choices = [f"`{choice}`" for choice in declared.choices or () if not declared.bounds]
  explained = choices and all(each in declared.meaning for each in choices)
  allowed = "" if explained or declared.bounds in _NATURAL else declared.allowed("`")
  for words, sign in _SIGNS.items():
    allowed = allowed.replace(words, sign)
  values = ", ".join(filter(None, ("several" * kind_name(declared.kind).startswith("tuple"), allowed)))
  return f"- `{path}={text_of(declared.default)}`{f' ({values})' * bool(values)}: {declared.meaning}"


if __name__ == "__main__":
  print(markdown(), end="")
