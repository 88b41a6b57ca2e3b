"""Switch layers: groups, stacked networks, less memory and less precision."""
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_switch import (
  ALL2,
  SMALL,
  WIDE,
  L,
  apply,
  assert_close,
  build,
  hidden,
  init,
  jit,
  loss_and_grad,
  make_windows,
  traced_loss_and_grad,
)

pytestmark = pytest.mark.slow


def test_stacked_networks_equal_separate_ones():
  network, windows = SMALL, make_windows(2)
  singles = [init(network, seed) for seed in (0, 1)]
  stacked = jax.tree.map(lambda *leaves: np.stack(leaves), *singles)
  joint = jit(jax.vmap(functools.partial(traced_loss_and_grad, network), (0, None, None)))(stacked, windows, ALL2)
  for i, variables in enumerate(singles):
    member = jax.tree.map(lambda leaf, i=i: np.asarray(leaf)[i], joint)
    assert_close(member, loss_and_grad(network, variables, windows, ALL2))
  losses = joint[0][1].loss
  assert abs(losses[0] - losses[1]) > 1e-3


def test_remat_changes_nothing():
  plain, frugal = (build(dropout=0.2, remat=r) for r in (False, True))
  windows, variables = make_windows(2), init(plain)
  assert jax.tree.structure(init(frugal)) == jax.tree.structure(variables)
  assert_close(*(loss_and_grad(network, variables, windows, ALL2) for network in (frugal, plain)), 1e-6)
  inside = str(jax.make_jaxpr(functools.partial(traced_loss_and_grad, frugal))(variables, windows, ALL2))
  assert "remat" in inside or "checkpoint" in inside


def test_bfloat16_computes_in_it_but_keeps_float32_parameters_and_losses():
  exact, rough, windows = WIDE, build(group_size=3 * L, dtype=jnp.bfloat16), make_windows(3)
  variables = init(rough)
  assert all(leaf.dtype == jnp.float32 for leaf in jax.tree.leaves(variables))
  states, _ = jax.eval_shape(lambda v, w: hidden.__wrapped__(rough, v, w, False), variables, windows)
  assert states.dtype == jnp.bfloat16
  a, b = (apply(network, variables, windows, None, False)[0] for network in (exact, rough))
  assert b.loss.dtype == b.log_probs.dtype == b.balance.dtype == jnp.float32
  assert 0 < abs(a.loss - b.loss) < 0.02 * a.loss
  (_, out), grad = loss_and_grad(rough, variables, windows, np.ones(3, bool))
  assert out.loss.dtype == jnp.float32
  assert all(leaf.dtype == jnp.float32 and np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(grad))
