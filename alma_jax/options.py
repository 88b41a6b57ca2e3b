"""What a learner can be told: its fields under `learner.`, their defaults, what they may be.

One class each, by the name on the command line. Imports neither jax nor numpy.
"""
import dataclasses
from typing import ClassVar


@dataclasses.dataclass(frozen=True)
class Options:
  """What all learners' options have.

  Attributes:
    num_trained: networks that are trained side by side.
    choices: {field: what it may be}.
    stops_early: whether patience ends a stage unless the config says otherwise.
    num_experts: default of model.num_experts of image networks; None: they have none.
    init_from_scratch: whether every stage starts from fresh weights.
    keep_optimizer: whether a stage goes on with the optimiser's state.
  """
  num_trained: ClassVar[int] = 1
  choices: ClassVar[dict] = {}
  stops_early: ClassVar[bool] = True
  num_experts: ClassVar[int | None] = None
  init_from_scratch: ClassVar[bool] = False
  keep_optimizer: ClassVar[bool] = False


@dataclasses.dataclass(frozen=True)
class SM(Options):
  name: str = "sm"
  init_from_scratch: bool = False


@dataclasses.dataclass(frozen=True)
class Ens(Options):
  name: str = "ens"
  num_members: int = 5
  combine: str = "probabilities"
  init_from_scratch: bool = False

  choices: ClassVar = {"combine": ("probabilities", "logits", "vote")}
  stops_early = False

  @property
  def num_trained(self):
    return self.num_members


@dataclasses.dataclass(frozen=True)
class UMix(Options):
  name: str = "umix"
  num_members: int = 5  # trained jointly, as one
  combine: str = "mean"
  init_from_scratch: bool = False

  choices: ClassVar = {"combine": ("mean", "sum")}
  stops_early = False


@dataclasses.dataclass(frozen=True)
class GEns(Options):
  name: str = "gens"
  members_per_stage: int = 1
  init: str = "copy"
  combine: str = "probabilities"

  choices: ClassVar = {"combine": ("probabilities", "logits", "vote"), "init": ("copy", "scratch")}

  @property
  def num_trained(self):
    return self.members_per_stage


@dataclasses.dataclass(frozen=True)
class Bagging(GEns):
  name: str = "bagging"
  members_per_stage: int = 3
  combine: str = "logits"

  stops_early = False


@dataclasses.dataclass(frozen=True)
class Boosting(Options):
  name: str = "boosting"
  init: str = "last"
  weighting: str = "resample"
  coefficients: str = "validation"

  choices: ClassVar = {"init": ("last", "first", "scratch"), "weighting": ("resample", "loss"),
                       "coefficients": ("validation", "train")}


@dataclasses.dataclass(frozen=True)
class MoE(Options):
  name: str = "moe"
  gating: str = "soft"
  init_from_scratch: bool = False

  choices: ClassVar = {"gating": ("soft", "hard")}
  num_experts = 4


@dataclasses.dataclass(frozen=True)
class GMoE(MoE):
  name: str = "gmoe"
  grow_every: int = 1
  split_by: str = "loss"
  keep_optimizer: bool = False

  choices: ClassVar = {**MoE.choices, "split_by": ("loss", "usage", "random")}
  num_experts = 1


@dataclasses.dataclass(frozen=True)
class FF(Options):
  name: str = "ff"
  grow_every: int = 1
  growth_rate: float = 0.25
  num_candidates: int = 0
  grow_depth: bool = False
  score_points: int = 2
  score_batches: int = 8
  init_from_scratch: bool = False


@dataclasses.dataclass(frozen=True)
class HMoE(Options):
  name: str = "hmoe"
  init: str = "copy"
  min_shard: int = 10
  add_beyond: float = 0.0
  split_every: int = 0
  init_from_scratch: bool = False

  choices: ClassVar = {"init": ("copy", "scratch")}
  num_experts = 4


@dataclasses.dataclass(frozen=True)
class TextEns(Ens):
  num_members: int = 2

  choices: ClassVar = {"combine": ("probabilities",)}


@dataclasses.dataclass(frozen=True)
class TextGEns(GEns):
  init: str = "scratch"

  choices: ClassVar = {**GEns.choices, "combine": ("probabilities",)}


@dataclasses.dataclass(frozen=True)
class FlatGMoE(Options):
  name: str = "gmoe"
  add_experts: tuple[int, ...] = (2, 2, 4)  # to every mixture, before the stages 1, 2, ...; none later
  copies: str = "offset"
  noise: float = 1e-3
  init_from_scratch: bool = False

  choices: ClassVar = {"copies": ("offset", "plain")}


LEARNERS = {cls.name: cls for cls in (SM, Ens, UMix, GEns, Bagging, Boosting, MoE, GMoE, FF, HMoE)}
TEXT_LEARNERS = {cls.name: cls for cls in (SM, TextEns, TextGEns, FlatGMoE)}
