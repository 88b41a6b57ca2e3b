"""The options of every learner: the fields under `learner.`, declared once each.

One class per learner. `LEARNERS` and `TEXT_LEARNERS` map names on the command line to classes. Imports neither jax nor
numpy.
"""
import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar

from alma_jax.config.fields import field

_INIT_FROM_SCRATCH = "whether every stage starts from fresh weights, instead of those selected in the stage before"
_COMBINE = ("how predictions are combined: the mean of the members' `probabilities`, the mean of their `logits`, or "
            "one `vote` per member")
_COMBINE_CHOICES = ("probabilities", "logits", "vote")
_GROW_EVERY = "number of stages from one growth to the next"


@dataclasses.dataclass(frozen=True)
class Options:
  """Base class of the options of a learner.

  A subclass is a frozen dataclass. It gives `name` a default, and declares its own options with `field`. Code that
  works for every learner reads the properties below; a subclass may replace each by an option or by a property.

  Attributes:
    name: name of the learner on the command line and in configs.
    defaults: defaults of fields in other sections, where the learner needs others than the declared ones, e.g.
      {"train.optimizer": "sgd"}.
    stops_early: whether its stages stop early in the authors' code; `:LEARNER,authors` does so, too.
    splits_data: whether every expert trains on examples of its own; then each takes `train.steps`.
    has_experts: whether the learner uses `model.num_experts`; for other learners of images it has to be 1.
  """
  name: str = field("", "the learner; it is chosen behind the colon of --config=configs/NAME.py:LEARNER")
  average: float = field(
      0.0, "horizon of an exponential average of the weights, as a share of a stage's steps; the average predicts, and "
      "is selected and exported; 0: none", at_least=0, at_most=1, before=0.0)
  start: str = field(
      "last", "what a stage starts from if there is an average: the `last` weights, which are then held besides it, or "
      "the `average`", choices=("last", "average"), before="last")
  shrink: float = field(
      1.0, "factor of the weights at the beginning of every stage but the first (Ash and Adams, 2020)", at_least=0,
      at_most=1, before=1.0)
  perturb: float = field(
      0.0, "factor of freshly initialised weights that are added there", at_least=0, before=0.0)

  defaults: ClassVar[Mapping[str, Any]] = {}
  stops_early: ClassVar[bool] = True
  splits_data: ClassVar[bool] = False
  has_experts: ClassVar[bool] = False

  @property
  def num_trained(self) -> int:
    """Number of networks that are trained side by side."""
    return 1

  @property
  def init_from_scratch(self) -> bool:
    """Whether every stage starts from fresh weights."""
    return False

  @property
  def keep_optimizer(self) -> bool:
    """Whether a stage continues with the optimiser's state of the stage before."""
    return False


@dataclasses.dataclass(frozen=True)
class SM(Options):
  """A single model that every stage trains further."""
  name: str = "sm"
  init_from_scratch: bool = field(False, _INIT_FROM_SCRATCH)


@dataclasses.dataclass(frozen=True)
class Ens(Options):
  """An ensemble of independently trained models."""
  name: str = "ens"
  num_members: int = field(5, "number of models", at_least=1)
  combine: str = field("probabilities", _COMBINE, choices=_COMBINE_CHOICES)
  init_from_scratch: bool = field(False, _INIT_FROM_SCRATCH)

  stops_early: ClassVar[bool] = False

  @property
  def num_trained(self) -> int:
    return self.num_members


@dataclasses.dataclass(frozen=True)
class UMix(Options):
  """Several models that are trained jointly as one: their logits are combined before the loss."""
  name: str = "umix"
  num_members: int = field(5, "number of models", at_least=1)
  combine: str = field(
      "mean", "how the models' logits are combined; `sum` is the behaviour of the authors' code",
      choices=("mean", "sum"))
  init_from_scratch: bool = field(False, _INIT_FROM_SCRATCH)

  stops_early: ClassVar[bool] = False


@dataclasses.dataclass(frozen=True)
class GEns(Options):
  """A growing ensemble: every stage after the first freezes the old members and adds new ones."""
  name: str = "gens"
  members_per_stage: int = field(1, "number of members that every stage adds", at_least=1)
  init: str = field(
      "copy", "initial weights of new members: a `copy` of the last members, or from `scratch`",
      choices=("copy", "scratch"))
  combine: str = field("probabilities", _COMBINE, choices=_COMBINE_CHOICES)

  @property
  def num_trained(self) -> int:
    return self.members_per_stage

  @property
  def init_from_scratch(self) -> bool:
    return self.init == "scratch"


@dataclasses.dataclass(frozen=True)
class Bagging(GEns):
  """A growing ensemble whose new members each train on a bootstrap sample of the stage's examples."""
  name: str = "bagging"
  members_per_stage: int = 3
  combine: str = "logits"

  stops_early: ClassVar[bool] = False


@dataclasses.dataclass(frozen=True)
class Boosting(Options):
  """A growing ensemble whose new member concentrates on the examples that the old members get wrong (SAMME)."""
  name: str = "boosting"
  init: str = field(
      "last", "initial weights of a new member: those of the `last` or the `first` member, or from `scratch`",
      choices=("last", "first", "scratch"))
  weighting: str = field(
      "resample", "how a new member uses the weights of the examples: its epochs are drawn by them (`resample`), or "
      "they multiply the losses (`loss`)", choices=("resample", "loss"))
  coefficients: str = field(
      "validation", "the data from which the weights of the members are computed", choices=("validation", "train"))

  @property
  def init_from_scratch(self) -> bool:
    return self.init == "scratch"


@dataclasses.dataclass(frozen=True)
class MoE(Options):
  """A mixture of experts in each hidden layer of the MLP, or in blocks 2 to 5 of the VGG, behind a tree of gates."""
  name: str = "moe"
  gating: str = field(
      "soft", "whether all experts contribute by their weights (`soft`), or gates choose one (`hard`)",
      choices=("soft", "hard"))
  init_from_scratch: bool = field(False, _INIT_FROM_SCRATCH)

  defaults: ClassVar = {"model.num_experts": 4}
  has_experts = True


@dataclasses.dataclass(frozen=True)
class GMoE(MoE):
  """A growing mixture of experts: growth splits one expert of each mixture in two."""
  name: str = "gmoe"
  grow_every: int = field(1, _GROW_EVERY, at_least=1)
  split_by: str = field(
      "loss", "the expert that is split: the one with the largest summed validation `loss`, the one with the largest "
      "`usage`, or a `random` one", choices=("loss", "usage", "random"))
  keep_optimizer: bool = field(
      False, "whether a stage continues with the optimiser's moments of the stage before; both halves of a split "
      "expert get those of their parent")

  defaults: ClassVar = {"model.num_experts": 1}


@dataclasses.dataclass(frozen=True)
class FF(Options):
  """Firefly: growth widens the layers, by splitting neurons and adding new ones where that lowers the loss most."""
  name: str = "ff"
  grow_every: int = field(1, _GROW_EVERY, at_least=1)
  growth_rate: float = field(
      0.25, "how much a growth adds, in neurons or parameters (`growth_of`), as a multiple of the initial number",
      above=0)
  growth_of: str = field(
      "neurons", "what `growth_rate` counts: `neurons`, as in the authors' code, or `parameters`, as the paper says",
      choices=("neurons", "parameters"), before="neurons")
  num_candidates: int = field(
      0, "number of candidates for new neurons in each layer; 0: as many as `model.width`; the authors' code uses 70",
      at_least=0)
  grow_depth: bool = field(False, "whether growth may also add residual layers")
  score_points: int = field(2, "number of strengths at which candidates are scored", at_least=1)
  score_batches: int = field(8, "number of batches on which candidates are scored", at_least=1)
  init_from_scratch: bool = field(False, _INIT_FROM_SCRATCH)


@dataclasses.dataclass(frozen=True)
class HMoE(Options):
  """A flat hard mixture: the examples are clustered by their features, and each cluster has a network of its own."""
  name: str = "hmoe"
  init: str = field(
      "copy", "initial weights of the experts: a `copy` of the base network, or from `scratch`",
      choices=("copy", "scratch"))
  min_shard: int = field(10, "a cluster is removed if fewer examples than this have ever belonged to it", at_least=1)
  add_beyond: float = field(
      0.0, "if `min_shard` examples are farther from all prototypes than this multiple of the root mean square "
      "distance in the first clustering, they form a new cluster; 0: no clusters are added", at_least=0)
  split_every: int = field(
      0, "number of stages from one split of the cluster with the largest validation loss to the next; 0: no cluster "
      "is split", at_least=0)
  em_rounds: int = field(
      1, "number of times that the experts of a stage are trained. Before each but the first time, every prototype "
      "moves to the mean of the training examples on which its expert has the least loss of all (hard EM)", at_least=1,
      before=1)
  expert_widths: tuple[int, ...] = field(
      (), "widths of the networks of the experts, which take turns, as in (8,32): expert 0, 2, ... has the first one. "
      "An expert of another width than `model.width` starts from scratch; empty: all have `model.width`", at_least=1,
      before=())
  init_from_scratch: bool = field(False, _INIT_FROM_SCRATCH)

  defaults: ClassVar = {"model.num_experts": 4}
  splits_data = True
  has_experts = True


@dataclasses.dataclass(frozen=True)
class Expert(Options):
  """One expert of a flat hard mixture, trained without the others; `alma apart` makes such runs."""
  name: str = "expert"
  gate: str = field("", "file with the base network and the prototypes, which `alma apart` has published")
  cluster: int = field(0, "number of the cluster on whose examples the expert trains, from 0", at_least=0)
  init: str = field(
      "copy", "initial weights: a `copy` of the base network, if it has the same width, or from `scratch`",
      choices=("copy", "scratch"))
  init_from_scratch: bool = field(False, _INIT_FROM_SCRATCH)

  splits_data = True


@dataclasses.dataclass(frozen=True)
class TextEns(Ens):
  """An ensemble of independently trained models; their probabilities are averaged."""
  num_members: int = 2
  combine: str = field("probabilities", "the mean of the members' probabilities", choices=("probabilities",))

  defaults: ClassVar = {}


@dataclasses.dataclass(frozen=True)
class TextGEns(GEns):
  """A growing ensemble: every stage freezes the old members and adds new ones; their probabilities are averaged."""
  init: str = "scratch"
  combine: str = field("probabilities", "the mean of the members' probabilities", choices=("probabilities",))


@dataclasses.dataclass(frozen=True)
class FlatGMoE(Options):
  """A Switch Transformer whose mixtures grow: the experts with the largest validation loss are duplicated."""
  name: str = "gmoe"
  add_experts: tuple[int, ...] = field(
      (2, 2, 4), "number of experts that every mixture gains before stages 1, 2, ...; later stages add no experts",
      at_least=0)
  copies: str = field(
      "offset", "how experts are duplicated: `offset` preserves the function; `plain` does not, and is the paper's way",
      choices=("offset", "plain"))
  noise: float = field(
      1e-3, "standard deviation of the noise that makes the routers of the two copies differ", at_least=0)
  init_from_scratch: bool = field(False, _INIT_FROM_SCRATCH)


@dataclasses.dataclass(frozen=True)
class BTM(Options):
  """Branch-Train-Merge: copies of one language model train on a domain each; the context weights their predictions."""
  name: str = "btm"
  num_domains: int = field(4, "number of domains, each of which has a network of its own", at_least=1)
  domains: str = field(
      "tfidf", "how the documents are divided: k-means of their `tfidf`, or at `random`", choices=("tfidf", "random"))
  seed_share: float = field(
      0.5, "share of the steps of the first stage that train one network on all documents, of which the experts are "
      "copies", above=0, below=1)


LEARNERS: dict[str, type[Options]] = {
    cls.name: cls for cls in (SM, Ens, UMix, GEns, Bagging, Boosting, MoE, GMoE, FF, HMoE, Expert)}
TEXT_LEARNERS: dict[str, type[Options]] = {cls.name: cls for cls in (SM, TextEns, TextGEns, FlatGMoE, BTM)}
