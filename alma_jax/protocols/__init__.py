"""The protocols: in which way data reach a learner. This is the one place that makes them.

A data set names its protocol (`DataSet.protocol`): a class, or "module:Class" of this package, which is imported when
it is needed.
"""
import pkgutil
from typing import Any

from alma_jax.protocols.contract import Protocol


def of(config: Any) -> type[Protocol]:
  """The protocol of a config's data set."""
  named = config.dataset.protocol
  found: type[Protocol] = pkgutil.resolve_name(named) if isinstance(named, str) else named
  return found
