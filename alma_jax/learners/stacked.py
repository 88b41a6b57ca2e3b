"""Learners whose live part is a stack of networks of one shape.

SM, Ens, UMix and gEns are a few lines each on top of this.
"""
import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec as P

from alma_jax import cost, keys, models, sharding
from alma_jax import members as stacks
from alma_jax.learners import fit, program
from alma_jax.learners.base import GrowthReport, Learner, LearnerState
from alma_jax.types import Cost

_EXAMPLES = P((sharding.MEMBER, sharding.DATA))  # an evaluation's batch lies on all devices


def make(context, network, combine, *, spec=None, grow=None, final=False, emphasis=None, dress=None, members=None,
         scratch=None):
  """A learner whose live part is the config's `num_trained` stacked networks.

  SM, Ens and UMix are this; others add growth, or replace some of its functions.
  Predictions join all blocks: the frozen ones, then the live one.

  Args:
    context: Context of the run.
    network: models.Network or Mixture, of every member; each has its own
      initialisation, order and augmentation. Or a function from a state's spec
      to such a network.
    combine: how members' predictions are joined: probabilities, logits, vote.
    spec: the untrained state's spec, without `num_frozen`.
    grow: (state, data, fresh) -> (LearnerState, GrowthReport), called before
      every stage; fresh(spec) makes new members. None: it never grows.
    final: whether a block never changes again once its stage has ended.
    emphasis: (state, data) -> fit.Emphasis, or None.
    dress: (Variables, splits) -> Variables, sets what a fresh initialisation
      cannot know of the spec's `splits`; or None.
    members: (spec) -> (M, whether they have shards, see program.FitSpec); None:
      `num_trained` without.
    scratch: whether stages start from fresh weights; None: as the config says.

  Returns:
    Learner.
  """
  c = context.config
  scratch = c.learner.init_from_scratch if scratch is None else scratch
  network_of = network if callable(network) else lambda spec: network
  members = members or (lambda spec: (c.learner.num_trained, False))
  first = {"num_frozen": 0, **(spec or {})}
  stepwise = not context.task.in_epochs or models.loops_are_slow(network_of(first))
  mesh = sharding.make_mesh(c.learner.num_trained, c.devices, spread=not stepwise)
  example, shape = context.example, (1, *context.example_shape)
  val_rows = -(-context.max_val // context.task.eval_batch)
  emphasis = emphasis or (lambda state, data: fit.Emphasis())

  def fit_spec(spec):
    num_members, sharded = members(spec)
    return program.FitSpec(
        network_of(spec), context.task, c.train, num_members, val_rows, mesh, stepwise, sharded,
        c.learner.keep_optimizer)

  def fresh(stage, spec):
    raw_keys = keys.member_keys(c.seed, stage, keys.INIT, members(spec)[0])
    made = _init(network_of(spec), raw_keys, example)
    return sharding.put(dress(made, spec["splits"]) if dress else made, mesh)

  def grow_at(state, data):
    report = GrowthReport()
    if grow is not None:
      state, report = grow(state, data, functools.partial(fresh, data.stage))
    if data.stage and scratch:
      state = state._replace(live=fresh(data.stage, state.spec), opt=None)
    return state, report

  def finish(state, fit_state):
    live, opt, report = fit.finish(fit_state)
    return state._replace(live=live, opt=opt), report

  def count(state):
    one, num, num_members = models.count_params(state.live.params), len(blocks(state)), members(state.spec)[0]
    inner = network_of(state.spec)
    macs = num_members * cost.forward_macs(inner, shape)
    return Cost(one * num, macs, num_members * cost.training_flops(inner, shape), macs * num)

  def template(spec):
    made = fit_spec(spec)
    raw_keys = jax.ShapeDtypeStruct((made.num_members, 2), jnp.uint32)
    live = jax.eval_shape(functools.partial(_init, made.network), raw_keys, example)
    return LearnerState(spec, live, (live,) * spec["num_frozen"], fit.template(made, live).members.opt)

  def contribute(state, block, pool, which=None):
    return contribution(network_of(state.spec), context.task, mesh, combine, blocks(state)[block], pool, which)

  def predict(state, x):
    one = lambda member: context.task.answer(network_of(state.spec), member, x, combine)
    num = members(state.spec)[0]
    parts = [context.task.merge(stacks.apply(one, num, block)) for block in blocks(state)]
    return context.task.average(context.task.merge(stacks.stack(parts)), num * len(parts), combine)

  return Learner(
      init=lambda: LearnerState(first, fresh(0, first)),
      grow=grow_at,
      begin=lambda state, data: fit.begin(
          fit_spec(state.spec), state.live, data, emphasis(state, data), state.opt),
      advance=fit.advance,
      read=fit.read,
      finish=finish,
      complete=lambda state: True,
      num_blocks=lambda state: len(blocks(state)),
      num_final=lambda state: len(blocks(state)) if final else 0,
      contribution=contribute,
      resolve=lambda state, joined: context.task.resolve(
          joined, members(state.spec)[0] * len(blocks(state)), combine),
      predict=predict,
      cost=count,
      describe=lambda spec: _describe(network_of(spec), members(spec)[0] * (1 + spec["num_frozen"])),
      template=template,
      fit_template=lambda state: fit.template(fit_spec(state.spec), state.live),
      restore=lambda state: state._replace(
          **{name: sharding.put(getattr(state, name), mesh) for name in ("live", "frozen", "opt")}),
      save_fit=fit.save,
      restore_fit=lambda state, carry, cursor, data: fit.restore(
          fit_spec(state.spec), carry, cursor, data, emphasis(state, data)),
      num_rows=fit.num_rows,
      network=network_of,
      mesh=mesh)


def _describe(network, num):
  if isinstance(network, models.Mixture):
    return f"{num} uniform mixture{'s' if num > 1 else ''} of {network.size} networks"
  return f"{num} network{'s' if num > 1 else ''}"


def blocks(state):
  """Variables of all blocks, oldest first."""
  return (*state.frozen, state.live)


def append(state, live):
  """The state with its live block frozen and another one to be trained."""
  frozen = (*state.frozen, state.live)
  return state._replace(spec={**state.spec, "num_frozen": len(frozen)}, live=live, frozen=frozen)


@functools.partial(jax.jit, static_argnames="network")
def _init(network, raw_keys, example):
  return jax.vmap(lambda raw: network.init(jax.random.wrap_key_data(raw), example))(raw_keys)


def contribution(network, task, mesh, combine, variables, pool, which=None):
  """Joined contribution of stacked members to predictions on a pool.

  Args:
    network: models.Network or Mixture of each member.
    task: see tasks/__init__.py.
    mesh: devices, on which the variables lie whole; examples are shared out
      among all of them.
    combine: see classification.contribution; or "features" of images: the
      inputs of the last layer instead.
    variables: stacked Variables [M, ...].
    pool: the task's.
    which: int32 [N], examples of the pool; None: all.

  Returns:
    Dict of numpy float32 [N, K] ([N, L] of text), or {"features": [N, H]}.
  """
  which = np.arange(task.size(pool), dtype=np.int32) if which is None else which
  parts = [_contribute(network, task, mesh, combine, variables, pool, sharding.put(index, mesh, _EXAMPLES))
           for index, _ in program.batches(which, program.round_up(task.eval_batch, mesh.size))]
  parts = sharding.fetch(parts)
  return {key: np.concatenate([part[key] for part in parts])[:len(which)] for key in parts[0]}


@functools.partial(jax.jit, static_argnames=("network", "task", "mesh", "combine"))
def _contribute(network, task, mesh, combine, variables, pool, index):
  def local(variables, pool, index_B):
    taken = task.take(pool, index_B)
    x = task.inputs(pool, taken)
    mask = jnp.ones(index_B.shape[0], bool)

    def one(member):
      if combine == "features":
        return {"features": models.features(network, member, x)}
      output, _ = network.apply(member, x, mask, train=False)
      return task.contribution(output, taken, combine)

    size = jax.tree.leaves(variables)[0].shape[0]
    stacked = stacks.apply(one, size, variables)
    return task.merge(stacked)

  return jax.shard_map(local, mesh=mesh, check_vma=False, in_specs=(P(), P(), _EXAMPLES),
                       out_specs=_EXAMPLES)(variables, pool, index)
