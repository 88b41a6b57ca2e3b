"""expert: one expert of a flat hard mixture, trained without the others (docs/algorithms.md §6.1)."""
import dataclasses
import functools
from typing import Any

import numpy as np

from alma_jax.config import sections
from alma_jax.config.fields import field
from alma_jax.config.registry import register
from alma_jax.errors import BadInput
from alma_jax.growth import cluster
from alma_jax.learners import expert_stacks, gate, prediction, stacked
from alma_jax.learners.contract import Context, GrowthReport, LearnerState, StageResult
from alma_jax.parallel import sharding
from alma_jax.problems import classification
from alma_jax.training import loop
from alma_jax.types import Tree, Variables


@register
@dataclasses.dataclass(frozen=True)
class Options(sections.Options):
  """One expert of a flat hard mixture, trained without the others; `alma apart` makes such runs."""
  name: str = "expert"
  gate: str = field("", "file with the base network and the prototypes, written by `alma apart`")
  cluster: int = field(0, "cluster on whose examples the expert trains, from 0", at_least=0)
  init: str = field(
      "copy", "initial weights: a `copy` of the base network, if it has the same width, or fresh ones (`scratch`)",
      choices=("copy", "scratch"))
  init_from_scratch: bool = field(False, sections.INIT_FROM_SCRATCH)

  splits_data = True

  def make(self, context: Any) -> Any:
    return Expert(context)


class Expert(stacked.Stacked):
  """A network that is trained, in every stage, on the examples of its cluster, and selected on those of them that are
  held out (if there are none, on all that are held out).

  The clusters are those of a published gate, and never change. The expert starts as a copy of the base if `init` is
  `copy` and both have one width, else from new weights. It predicts for every example: who asks it decides by the gate.
  In a stage without examples of its cluster it stays as it is. Growth counts the pass of the base over the data of
  every stage.

  `host` has `gate`, the SHA-256 of the gate's file, and within a stage `train_own`, `val_own` and, if there is a
  memory, `memory_own`: bool, whether each example is the expert's.
  """
  combine = "probabilities"

  def __init__(self, context: Context):
    """Raises:
      BadInput: there is no such gate, or it has no such cluster.
    """
    super().__init__(context)
    self.scratch = False  # `grow` decides about it
    if context.num_train is not None:
      _ = self._gate  # before any computation

  def has_shards(self, spec: dict[str, object]) -> bool:
    return True

  @functools.cached_property
  def _gate(self) -> tuple[gate.Gate, str]:
    found, digest = gate.read(self.options.gate)
    if self.options.cluster >= len(found.counts):
      raise BadInput(f"learner.cluster={self.options.cluster} should be below {len(found.counts)}, the number of "
                     f"clusters of learner.gate={self.options.gate!r}.")
    return found, digest

  def grow(self, state: LearnerState, data: loop.StageData) -> tuple[LearnerState, GrowthReport]:
    (found, digest), options = self._gate, self.options
    if state.host.get("gate", digest) != digest:
      raise BadInput(f"learner.gate={options.gate!r} is another gate than that of the stages before; restore it, or "
                     "--overwrite the run.")
    base, variables = self.context.network(found.width), sharding.put(found.base, self.mesh)
    own = {}
    for name, which in (("train_own", data.train), ("val_own", data.val), ("memory_own", data.memory)):
      if len(which):
        features = expert_stacks.features(base, self._problem, self.mesh, variables, data.pool, which)
        own[name] = cluster.nearest(features, found.prototypes)[0] == options.cluster
    own = sharding.agree(own)
    live, taught = state.live, own["train_own"].any()
    if not data.stage and options.init == "copy" and found.width == self.context.config.model.width:
      live = variables
    elif data.stage and options.init_from_scratch and taught:
      live = self.fresh(data.stage, state.spec)
    looked = expert_stacks.feature_macs(base, self._shape) * (len(data.train) + len(data.val) + len(data.memory))
    return state._replace(live=live, host={**state.host, **own, "gate": digest}), GrowthReport(looked)

  def examples(self, state: LearnerState, data: loop.StageData) -> loop.Examples:
    host = state.host
    if "train_own" not in host:
      return loop.Examples()  # of an untrained state, whose memory is estimated
    memory = [data.memory[host["memory_own"]]] if len(data.memory) else None
    return loop.Examples(own=[data.train[host["train_own"]]], own_val=[self._val(state, data)], memory=memory)

  def perturbed(self, state: LearnerState, fresh: Variables) -> Variables:
    return super().perturbed(state, fresh) if state.host["train_own"].any() else state.live

  def finish(self, state: LearnerState, data: loop.StageData, trained: loop.Trained) -> StageResult:
    result = super().finish(state, data, trained)
    report = result.report
    if not state.host["train_own"].any():  # nothing was trained or validated
      report = report._replace(val=self._error(result.state, data.pool, self._val(state, data)))
    host = {key: value for key, value in state.host.items() if not key.endswith("_own")}
    return StageResult(result.state._replace(host=host), report)

  def describe(self, state: LearnerState) -> str:
    return f"the expert of cluster {self.options.cluster}"

  def _val(self, state: LearnerState, data: loop.StageData) -> np.ndarray:
    own = data.val[state.host["val_own"]]
    return own if len(own) else data.val

  def _error(self, state: LearnerState, pool: Tree, which: np.ndarray) -> float:
    """Error rate for the examples `which` of a pool."""
    answers = np.asarray(prediction.contributions(self, self._problem, state, 0, pool, which)["sum"])
    return classification.error_and_loss(answers.argmax(-1), answers, sharding.fetch(pool.y)[which])[0]
