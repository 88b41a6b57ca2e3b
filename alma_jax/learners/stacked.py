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
from alma_jax.tasks import classification
from alma_jax.types import Cost

_EXAMPLES = P((sharding.MEMBER, sharding.DATA))  # an evaluation's batch lies on all devices


def make(context, network, combine, *, init_from_scratch=False, grow=None):
  """A learner whose live part is the config's `num_trained` stacked networks.

  SM, Ens and UMix are this; gEns adds a `grow`. Predictions join all blocks:
  the frozen ones, then the live one.

  Args:
    context: Context of the run.
    network: models.Network or Mixture, of every member; each has its own
      initialisation, order and augmentation.
    combine: how members' predictions are joined: probabilities, logits, vote.
    init_from_scratch: whether every stage starts from a fresh initialisation.
    grow: (state, fresh) -> LearnerState, called before every stage but the
      first with a function that makes M fresh members; None: never grows.

  Returns:
    Learner.
  """
  c = context.config
  num_members = c.learner.num_trained
  stepwise = models.loops_are_slow(network)
  mesh = sharding.make_mesh(num_members, c.devices, spread=not stepwise)
  example = np.zeros((1, *context.example_shape), np.float32)
  val_rows = -(-context.max_val // program.VAL_BATCH)
  spec = program.FitSpec(network, context.task, c.train, num_members, val_rows, mesh, stepwise)

  def fresh(stage):
    raw_keys = keys.member_keys(c.seed, stage, keys.INIT, num_members)
    return sharding.put(_init(network, raw_keys, example), mesh)

  def grow_at(state, data):
    if data.stage == 0:
      return state, GrowthReport()
    if init_from_scratch:
      state = state._replace(live=fresh(data.stage))
    if grow is not None:
      state = grow(state, lambda: fresh(data.stage))
    return state, GrowthReport()

  def finish(state, fit_state, data):
    live, report = fit.finish(spec, fit_state, data)
    return state._replace(live=live), report

  def blocks(state):
    return (*state.frozen, state.live)

  def count(state):
    one = models.count_params(state.live.params)
    macs = num_members * cost.forward_macs(network, example.shape)
    flops = num_members * cost.training_flops(network, example.shape)
    num = len(blocks(state))
    return Cost(one * num, macs, flops, macs * num)

  raw_keys = jax.ShapeDtypeStruct((num_members, 2), jnp.uint32)
  live_shapes = jax.eval_shape(functools.partial(_init, network), raw_keys, example)

  def restore(spec_json, live, frozen):
    return LearnerState(spec_json, sharding.put(live, mesh), sharding.put(frozen, mesh))

  return Learner(
      init=lambda: LearnerState({"num_frozen": 0}, fresh(0)),
      grow=grow_at,
      begin=lambda state, data: fit.begin(spec, state.live, data),
      advance=lambda fit_state, data, rows: fit.advance(spec, fit_state, data, rows),
      read=lambda records, data: fit.read(spec, data, records),
      finish=finish,
      num_blocks=lambda state: len(blocks(state)),
      num_final=lambda state: len(blocks(state)) if grow is not None else 0,
      contribution=lambda state, block, pool: contribution(spec, combine, blocks(state)[block], pool),
      resolve=lambda state, joined: classification.resolve(joined, num_members * len(blocks(state)), combine),
      cost=count,
      template=lambda spec_json: (live_shapes, (live_shapes,) * spec_json["num_frozen"]),
      fit_template=lambda state: fit.template(spec, state.live),
      restore=restore,
      save_fit=lambda fit_state: fit.save(spec, fit_state),
      restore_fit=lambda carry, cursor, data: fit.restore(spec, carry, cursor, data),
      num_rows=lambda data: fit.num_rows(spec, data),
      mesh=mesh)


@functools.partial(jax.jit, static_argnames="network")
def _init(network, raw_keys, example):
  return jax.vmap(lambda raw: network.init(jax.random.wrap_key_data(raw), example))(raw_keys)


def contribution(spec, combine, variables, pool):
  """Joined contribution of stacked members to predictions on a whole pool.

  Args:
    spec: program.FitSpec; its network, task and mesh are used.
    combine: see classification.contribution.
    variables: stacked Variables [M, ...], on every device; the examples are
      shared out among all of them.
    pool: classification.Pool of N examples.

  Returns:
    Dict of numpy float32 [N, K].
  """
  total, batch, parts = pool.x.shape[0], program.round_up(program.VAL_BATCH, spec.mesh.size), []
  for start in range(0, total, batch):
    index = np.minimum(np.arange(start, start + batch, dtype=np.int32), np.int32(total - 1))
    index = sharding.put(index, spec.mesh, _EXAMPLES)
    parts.append(_contribute(spec, combine, variables, pool, index))
  parts = sharding.fetch(parts)
  return {key: np.concatenate([part[key] for part in parts])[:total] for key in parts[0]}


@functools.partial(jax.jit, static_argnames=("spec", "combine"))
def _contribute(spec, combine, variables, pool, index):
  def local(variables, pool, index_B):
    x = spec.task.inputs(pool, spec.task.take(pool, index_B))
    mask = jnp.ones(index_B.shape[0], bool)

    def one(member):
      logits, _ = spec.network.apply(member, x, mask, train=False)
      return classification.contribution(logits, combine)

    size = jax.tree.leaves(variables)[0].shape[0]
    stacked = stacks.apply(one, size, variables)
    return {key: part.max(0) if key == "top" else part.sum(0) for key, part in stacked.items()}

  return jax.shard_map(local, mesh=spec.mesh, check_vma=False, in_specs=(P(), P(), _EXAMPLES),
                       out_specs=_EXAMPLES)(variables, pool, index)
