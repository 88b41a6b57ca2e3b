"""gEns: an ensemble that grows by k members a stage; old ones are frozen (§2)."""
import dataclasses
from typing import Any, ClassVar

from alma_jax.config import sections
from alma_jax.config.fields import field
from alma_jax.config.registry import TEXT, register
from alma_jax.learners import stacked
from alma_jax.learners.contract import GrowthReport, LearnerState
from alma_jax.training import loop


@register
@dataclasses.dataclass(frozen=True)
class Options(sections.Options):
  """A growing ensemble: every stage after the first freezes the old members and adds new ones."""
  name: str = "gens"
  members_per_stage: int = field(1, "members that every stage adds", at_least=1)
  init: str = field(
      "copy", "initial weights of new members: a `copy` of the last ones, or fresh ones (`scratch`)",
      choices=("copy", "scratch"))
  combine: str = field("probabilities", sections.COMBINE, choices=sections.COMBINATIONS)

  members: ClassVar[str] = "members_per_stage"

  @property
  def num_trained(self) -> int:
    return self.members_per_stage

  @property
  def init_from_scratch(self) -> bool:
    return self.init == "scratch"

  def make(self, context: Any) -> Any:
    return GEns(context)


@register
@dataclasses.dataclass(frozen=True)
class TextOptions(Options):
  """A growing ensemble: every stage freezes the old members and adds new ones; their probabilities are averaged."""
  init: str = "scratch"
  combine: str = field("probabilities", "the mean of the members' probabilities", choices=("probabilities",))

  problems: ClassVar[tuple[str, ...]] = (TEXT,)


class GEns(stacked.Stacked):
  """Every stage trains `members_per_stage` new members.

  New members start as copies of the last ones (`init="copy"`, as in the authors' code for images; members are then
  successive checkpoints of one model) or from scratch.
  """
  freezes = True

  def grow(self, state: LearnerState, data: loop.StageData) -> tuple[LearnerState, GrowthReport]:
    if not data.stage:
      return state, GrowthReport()
    return self.append(state, state.live), GrowthReport(repeat=True)
