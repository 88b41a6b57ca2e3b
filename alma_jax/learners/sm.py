"""SM: a single model, trained on one stage after another (docs/algorithms.md §2)."""
import dataclasses
from typing import Any, ClassVar

from alma_jax.config import sections
from alma_jax.config.fields import field
from alma_jax.config.registry import IMAGES, TEXT, register
from alma_jax.learners.stacked import Stacked


@register
@dataclasses.dataclass(frozen=True)
class Options(sections.Options):
  """A single model that every stage trains further."""
  name: str = "sm"
  init_from_scratch: bool = field(False, sections.INIT_FROM_SCRATCH)

  problems: ClassVar[tuple[str, ...]] = (IMAGES, TEXT)

  def make(self, context: Any) -> Any:
    return SM(context)


class SM(Stacked):
  """One network."""
