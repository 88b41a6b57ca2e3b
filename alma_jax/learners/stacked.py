"""Learners that train a stack of networks of one shape side by side: the base class of all learners here."""
import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from alma_jax import keys, models
from alma_jax.learners.contract import Context, Contribution, GrowthReport, Learner, LearnerState, StageResult
from alma_jax.models import cost
from alma_jax.parallel import members as stacks
from alma_jax.parallel import sharding
from alma_jax.training import loop, optimizers
from alma_jax.types import Cost, Tree, Variables


class Stacked(Learner):
  """A learner whose live block is a stack of networks; its predictions join the frozen blocks and the live one.

  As it stands it is an ensemble of `Options.num_trained` networks that never grows: each has its own initialisation,
  order of examples and augmentation. A subclass replaces what it does differently, most often `grow` and `finish`.

  Attributes:
    context: Context of the run.
    options: the learner's own options, `context.config.learner`.
    combine: how the networks' predictions are joined: probabilities, logits or vote.
    scratch: whether every stage starts from fresh weights.
  """
  freezes: bool = False
  shapes_recur: bool = False
  combine: str = "logits"
  options: Any  # an instance of the learner's own subclass of Options

  def __init__(self, context: Context):
    self.context, self.options, self._problem = context, context.config.learner, context.problem
    self.combine = self.options.combine or self.combine
    self.scratch: bool = self.options.init_from_scratch
    self._stepwise = not self._problem.in_epochs or models.loops_are_slow(self.network(self.first_spec()))
    self.mesh: Mesh = sharding.make_mesh(self.options.num_trained, context.config.devices, spread=not self._stepwise)
    self._val_rows = -(-context.max_val // self._problem.eval_batch)
    self._shape = (1, *context.example_shape)

  # --------------------------------------------------------------------- what most subclasses change

  def facts(self) -> dict[str, Any]:
    """Static facts of the untrained state, besides `num_frozen`."""
    return {}

  def network(self, spec: dict[str, Any]) -> Any:
    """The network of each member, models.Network or Mixture, of a state with this `spec`."""
    return self.context.network()

  def num_members(self, spec: dict[str, Any]) -> int:
    """Number of stacked networks."""
    return self.options.num_trained

  def has_shards(self, spec: dict[str, Any]) -> bool:
    """Whether each member has its own training examples, in different numbers."""
    return False

  def grow(self, state: LearnerState, data: loop.StageData) -> tuple[LearnerState, GrowthReport]:
    """Changes the state before a training; see contract.Learner. It changes nothing."""
    return state, GrowthReport()

  def examples(self, state: LearnerState, data: loop.StageData) -> loop.Examples:
    """Which examples of the stage the members train on, and with which weights. All of them, with weight 1."""
    return loop.Examples()

  def dress(self, variables: Variables, spec: dict[str, Any]) -> Variables:
    """Sets those variables of a freshly initialised network that `spec` determines, such as trees of gates."""
    return variables

  # --------------------------------------------------------------------- the contract

  def first_spec(self) -> dict[str, Any]:
    """`spec` of the untrained state."""
    return {"num_frozen": 0, **self.facts()}

  def init(self) -> LearnerState:
    return LearnerState(self.first_spec(), self.fresh(0, self.first_spec()))

  def training(self, state: LearnerState, data: loop.StageData) -> loop.Training:
    """What the training loop has to do: it starts from `live`, or from fresh weights if `scratch` is set."""
    variables, opt = state.live, state.opt
    if data.stage and self.scratch:
      variables, opt = self.fresh(data.stage, state.spec), None
    elif data.stage and (self.options.shrink != 1 or self.options.perturb):
      variables = self.perturbed(state, self.fresh(data.stage, state.spec))
    return loop.Training(self.fit_spec(state.spec), variables, data, self.examples(state, data), opt)

  def finish(self, state: LearnerState, data: loop.StageData, trained: loop.Trained) -> StageResult:
    """The state after a training, with the selected members in `live`.

    `trained.val` has the validation loss and the problem's metric (`error` of images) of every member, float [M].
    """
    live, average = (trained.variables, None) if trained.last is None else (trained.last, trained.variables)
    return StageResult(state._replace(live=live, opt=trained.opt, average=average), trained.report)

  def num_blocks(self, state: LearnerState) -> int:
    """Number of blocks of a prediction: the frozen ones and the live one."""
    return len(blocks(state))

  def contribution(self, state: LearnerState, block: int, inputs: Tree) -> Contribution:
    """The contribution of one block to the predictions for a batch, see contract.Learner; jax must be able to trace it.

    In an exported predictor the batch has one example. A subclass that predicts by other weights, such as an average
    that it keeps in `state.host`, calls this with a state that has them as `live`.
    """
    return contribute(self.network(state.spec), self._problem, self.mesh, self.combine, blocks(state)[block], inputs)

  def only_network(self, state: LearnerState) -> Variables | None:
    first, *others = blocks(state)
    if others or jax.tree.leaves(first)[0].shape[0] != 1:
      return None
    one: Variables = jax.tree.map(lambda leaf: leaf[0], sharding.fetch(first))
    return one

  def resolve(self, state: LearnerState, joined: Contribution) -> Any:
    """The prediction, see contract.Learner, from the joined contributions of all blocks."""
    return self._problem.resolve(joined, self.num_members(state.spec) * len(blocks(state)), self.combine)

  def cost(self, state: LearnerState) -> Cost:
    """Parameters and multiply-adds per example, of all blocks and members."""
    one, num, network = models.count_params(state.live.params), len(blocks(state)), self.network(state.spec)
    num_members = self.num_members(state.spec)
    macs = num_members * cost.forward_macs(network, self._shape)
    flops = num_members * optimizers.flops(self.context.config.train, network, self._shape)
    return Cost(one * (num - 1 + state.num_held), macs, flops, macs * num * self.context.num_views)

  def describe(self, state: LearnerState) -> str:
    """Text for people: how many networks there are."""
    num = self.num_members(state.spec) * (1 + state.spec["num_frozen"])
    return f"{num} network{'s' if num > 1 else ''}"

  def template(self, spec: dict[str, Any]) -> LearnerState:
    made = self.fit_spec(spec)
    raw_keys = jax.ShapeDtypeStruct((made.num_members, 2), jnp.uint32)
    live = jax.eval_shape(functools.partial(initialized, made.network), raw_keys, self.context.example)
    opt = loop.template(made, live).members.opt
    return LearnerState(spec, live, (live,) * spec["num_frozen"], opt, average=live)

  # --------------------------------------------------------------------- tools for subclasses

  def fit_spec(self, spec: dict[str, Any]) -> loop.FitSpec:
    """Static facts of a training of a state with this `spec`."""
    train: Any = self.context.config.train
    return loop.FitSpec(
        self.network(spec), self._problem, train, self.num_members(spec), self._val_rows, self.mesh,
        self._stepwise, self.has_shards(spec), self.options.keep_optimizer, self.options.average,
        bool(self.options.average) and self.options.start == "last" and not self.scratch)

  def fresh(self, stage: int, spec: dict[str, Any]) -> Variables:
    """Freshly initialised variables [M, ...] on the mesh, different at every stage."""
    raw_keys = keys.member_keys(self.context.config.seed, stage, keys.INIT, self.num_members(spec))
    made = initialized(self.network(spec), raw_keys, self.context.example)
    return sharding.put(self.dress(made, spec), self.mesh)

  def append(self, state: LearnerState, live: Variables) -> LearnerState:
    """The state with its live block, as it predicts, frozen and another one to be trained."""
    frozen = (*state.frozen, state.predicting)
    return state._replace(spec={**state.spec, "num_frozen": len(frozen)}, live=live, frozen=frozen, average=None)

  def perturbed(self, state: LearnerState, fresh: Variables) -> Variables:
    """Shrink and perturb (Ash and Adams, 2020): shrink θ + perturb θ_fresh, of the parameters of the live block."""
    mixed = jax.tree.map(lambda old, new: self.options.shrink * old + self.options.perturb * new, state.live.params,
                         fresh.params)
    return sharding.put(state.live._replace(params=mixed), self.mesh)

  def take(self, variables: Variables, which: Sequence[int] | np.ndarray) -> Variables:
    """Members `which` of stacked variables, in that order and as often as they are named; on the mesh."""
    index = np.asarray(which)
    return sharding.put(jax.tree.map(lambda leaf: leaf[index], sharding.fetch(variables)), self.mesh)


def blocks(state: LearnerState) -> tuple[Variables, ...]:
  """Variables of all blocks as they predict, oldest first."""
  return (*state.frozen, state.predicting)


def contribute(network: Any, problem: Any, mesh: Mesh, combine: str, variables: Variables,
               inputs: Tree) -> Contribution:
  """Joined contribution of stacked members to the predictions for a batch; traceable.

  Args:
    network: models.Network or Mixture of each member.
    problem: see problems/contract.py.
    mesh: devices, each of which holds all variables. A batch that is sharded over devices stays sharded.
    combine: see the problem's `contribution`; or "features" of images: the inputs of the last layer instead.
    variables: stacked Variables [M, ...].
    inputs: as Learner.contribution.

  Returns:
    Dict of float32 arrays [B, ...]; of "features" {"features": [B, H]} of the only member.
  """
  return _contribute(network, problem, sharding.dividing(mesh, inputs), combine, variables, inputs)


def initialized(network: Any, raw_keys: jax.Array, example: Tree) -> Variables:
  """Initial variables [M, ...] of a member for each raw key.

  They are computed on the CPU where jax has one, also if the run has a GPU: for a GPU, XLA took as long to
  compile this function as to compile the training (docs/results.md).
  """
  shapes = cost.stand_in(network, len(raw_keys), example)
  if shapes is not None:
    return shapes
  cpus = _cpus()
  if isinstance(raw_keys, jax.core.Tracer) or not cpus:  # inside another function, which decides where it runs
    return _init_elsewhere(network, raw_keys, example)
  with jax.default_device(cpus[0]):
    return _init_on_cpu(network, np.asarray(raw_keys), example)


def _cpus() -> list[jax.Device]:
  try:
    return jax.local_devices(backend="cpu")
  except RuntimeError:  # JAX_PLATFORMS names others only
    return []


def _init_members(network: Any, raw_keys: jax.Array, example: Tree) -> Variables:
  return jax.vmap(lambda raw: network.init(jax.random.wrap_key_data(raw), example))(raw_keys)


# This runs once or once a stage. With less optimisation by LLVM it compiles three times as fast, and returns the same
# bits (python benchmarks/cold.py digits:ens).
_init_on_cpu = jax.jit(_init_members, static_argnames="network", compiler_options={"xla_backend_optimization_level": 1})
_init_elsewhere = jax.jit(_init_members, static_argnames="network")


@functools.partial(jax.jit, static_argnames=("network", "problem", "mesh", "combine"))
def _contribute(network: Any, problem: Any, mesh: Mesh | None, combine: str, variables: Variables,
                inputs: Tree) -> Contribution:
  def local(variables: Variables, inputs: Tree) -> Contribution:
    def one(member: Variables) -> Contribution:
      if combine == "features":
        return {"features": models.features(network, member, inputs)}
      return problem.contribution(network, member, inputs, combine)

    stacked = stacks.apply(one, jax.tree.leaves(variables)[0].shape[0], variables)
    return {"features": stacked["features"][0]} if combine == "features" else problem.merge(stacked)

  if mesh is None:
    return local(variables, inputs)
  divided = sharding.EXAMPLES
  return jax.shard_map(local, mesh=mesh, check_vma=False, in_specs=(P(), divided), out_specs=divided)(
      variables, inputs)
