"""ConfigDicts in which setting a name, such as `stream.schedule`, exchanges the fields that depend on it."""
from typing import Any

from ml_collections import ConfigDict

from alma_jax.config import layout


class Section(ConfigDict):
  """A section of a config, such as `config.stream`."""
  of: tuple[str, str] | None = None  # (problem, name of the section); None: like any ConfigDict

  def __setitem__(self, key: str, value: Any) -> None:
    if self.of and key in self and value != self[key]:
      problem, section = self.of
      flat, path = {"problem": problem, **layout.flatten({section: self.to_dict()})}, f"{section}.{key}"
      before = layout.fields_of(flat)
      if path in before and before[path].classes is not None:
        after = layout.nested(layout.renamed(flat, path, value))[section]
        with self.unlocked():
          for old in [name for name in self if f"{section}.{name}" in before and name not in after]:
            del self[old]
          for name, new in after.items():
            super().__setitem__(name, new)
    super().__setitem__(key, value)

  def copy_and_resolve_references(self, visit_map: Any = None) -> Any:
    return _of(super().copy_and_resolve_references(visit_map), self.of)

  def __setstate__(self, state: dict[str, Any]) -> None:
    super().__setstate__(state)
    _of(self, state.get("of"))


def config_dict(flat: layout.Tree) -> ConfigDict:
  """The ConfigDict of a flat config. It accepts values of any type; `parse` checks them later."""
  config = ConfigDict(type_safe=False)
  for name, value in layout.nested(flat).items():
    config[name] = (_of(Section(value, type_safe=False), (flat["problem"], name)) if isinstance(value, dict) else value)
  return config


def _of(section: Section, of: tuple[str, str] | None) -> Section:
  object.__setattr__(section, "of", of)  # ConfigDict would make it a field
  return section
