"""Ens: N independently trained networks whose predictions are joined (§2)."""
import dataclasses
from typing import Any, ClassVar

from alma_jax.config import sections
from alma_jax.config.fields import field
from alma_jax.config.registry import TEXT, register
from alma_jax.learners.stacked import Stacked


@register
@dataclasses.dataclass(frozen=True)
class Options(sections.Options):
  """An ensemble of independently trained models."""
  name: str = "ens"
  num_members: int = field(5, "number of models", at_least=1)
  combine: str = field("probabilities", sections.COMBINE, choices=sections.COMBINATIONS)
  init_from_scratch: bool = field(False, sections.INIT_FROM_SCRATCH)

  stops_early: ClassVar[bool] = False
  members: ClassVar[str] = "num_members"

  @property
  def num_trained(self) -> int:
    return self.num_members

  def make(self, context: Any) -> Any:
    return Ens(context)


@register
@dataclasses.dataclass(frozen=True)
class TextOptions(Options):
  """An ensemble of independently trained models; their probabilities are averaged."""
  num_members: int = 2
  combine: str = field("probabilities", "the mean of the members' probabilities", choices=("probabilities",))

  defaults: ClassVar = {}

  problems: ClassVar[tuple[str, ...]] = (TEXT,)


class Ens(Stacked):
  """`num_members` networks; their probabilities are averaged, as in the paper, unless `combine` says otherwise."""
