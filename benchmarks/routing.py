"""Measures what hmoe's routing saves per prediction, in time and multiply-adds, against computing all experts.

    python benchmarks/routing.py [--experts E] [--turns T] [--cases mlp vgg]

The experts are untrained, and the random images are spread over all of them. "evaluation" is what a run does with a
test set, and "program" is the exported program, for several batch sizes. Each time is the median of alternating turns,
and each ratio is the median of the turns' ratios.
"""
import argparse
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import export

import alma_jax
from alma_jax import config as configs
from alma_jax.learners import expert_stacks, hmoe, prediction, stacked
from alma_jax.models import cost
from alma_jax.parallel import members
from alma_jax.runs import settings

CASES = {"mlp": (28, 28, 1), "vgg": (32, 32, 3)}
WIDTHS = {"mlp": 32, "vgg": 16}


def mixture(model: str, num_experts: int) -> tuple[Any, Any, np.ndarray]:
  """(setting, a state with untrained experts, images)."""
  rng = np.random.default_rng(0)
  x = rng.integers(0, 256, (2000, *CASES[model])).astype(np.uint8)
  y = np.arange(len(x)) % 10
  config = alma_jax.base_config("hmoe")
  config.model.name, config.model.width, config.model.num_experts = model, WIDTHS[model], num_experts
  config.stream.num_megabatches, config.stream.waiting_time, config.devices = 10, 1, 1
  setting = settings.prepare(configs.parse(config), (x[:1000], y[:1000], x[1000:], y[1000:]))
  learner: Any = setting.learner
  base = learner.init()
  pool = setting.protocol.source.test_pool(learner.mesh)
  features = expert_stacks.features(learner._base, setting.facts.problem, learner.mesh, base.live, pool,
                                    np.arange(1000))
  spec = {**base.spec, "num_experts": num_experts, "num_frozen": 1}
  host = dict(prototypes=features[:num_experts].astype(np.float64), counts=np.ones(num_experts, np.int64))
  return setting, base._replace(spec=spec, live=learner.fresh(0, spec), frozen=(base.live,), host=host), x[1000:]


class Dense(hmoe.HMoE):
  """Computes all experts and masks all answers but one."""

  def padded_contribution(self, state: Any, block: int, inputs: Any, mask_B: Any) -> Any:
    return self.contribution(state, block, inputs)

  def contribution(self, state: Any, block: int, inputs: Any) -> Any:
    prototypes = jnp.asarray(state.host["prototypes"], jnp.float32)
    features = stacked.contribute(self._base, self._problem, self.mesh, "features", state.frozen[0], inputs)["features"]
    nearest = jnp.square(features[:, None] - prototypes[None]).sum(-1).argmin(-1)
    total = 0.0
    for expert in range(state.spec["num_experts"]):
      network, one = self._expert(state, expert)
      answers = stacked.contribute(network, self._problem, self.mesh, self.combine, one, inputs)["sum"]
      total += jnp.where((nearest == expert)[:, None], answers, 0)
    return {"sum": total}


def program(learner: Any, state: Any, task: Any, shape: tuple[int, ...]) -> Callable[[Any], Any]:
  """The exported program, jitted."""
  weights = state.live, state.frozen
  predict = lambda weights, x: prediction.predict(
      learner, task, state._replace(live=weights[0], frozen=weights[1]), x.astype(jnp.float32) / 255)[1]
  batch, = export.symbolic_shape("batch")
  leaves = jax.tree.leaves(weights)
  flat = lambda leaves, x: predict(jax.tree.unflatten(jax.tree.structure(weights), leaves), x)
  made = export.export(jax.jit(flat), platforms=("cpu", "cuda", "tpu"))(
      leaves, jax.ShapeDtypeStruct((batch, *shape), np.uint8))
  return jax.jit(lambda x: made.call(leaves, x))


def compare(model: str, num_experts: int, turns: int) -> None:
  """Prints the tables of a network."""
  setting, state, images = mixture(model, num_experts)
  task, learner, shape = setting.facts.problem, setting.learner, (1, *CASES[model])
  dense, pool = Dense(learner.context), setting.protocol.source.test_pool(learner.mesh)
  one = cost.forward_macs(learner.network(state.spec), shape)
  base = expert_stacks.feature_macs(learner._base, shape)
  features = expert_stacks.features(learner._base, task, learner.mesh, state.frozen[0], pool, np.arange(1000))
  nearest = np.square(features[:, None] - state.host["prototypes"][None]).sum(-1).argmin(-1)
  print(f"\n{model} of width {WIDTHS[model]}, {num_experts} experts: multiply-adds per image "
        f"{learner.cost(state).predict_macs:,} as reported, {base + num_experts * one:,} with all experts")
  for num in (1, 8, 64, 512):
    block = members.block_size(num, num_experts)
    rows = sum(-(-count // block) * block for count in np.bincount(nearest[:num]))
    print(f"  a batch of {num}: {rows} rows through experts, {base + one * rows / num:,.0f} multiply-adds per image")
  print(f"{'':18} {'images':>6} {'dense ms':>9} {'routed ms':>9} {'ratio':>6}   difference")
  answer = lambda each, num: prediction.contributions(each, task, state, 0, pool, np.arange(num))["sum"]
  for num in (64, 1000):
    report("evaluation", num, turns, dense=lambda num=num: answer(dense, num),
           routed=lambda num=num: answer(learner, num))
  all_of_them, one_of_them = (program(each, state, task, CASES[model]) for each in (dense, learner))
  for num in (1, 8, 64, 512):
    x = images[:num]
    report("program", num, turns, dense=lambda x=x: all_of_them(x), routed=lambda x=x: one_of_them(x))


def report(name: str, num: int, turns: int, **run: Callable[[], Any]) -> None:
  """Prints a row of the table, after running both in `turns` alternating turns."""
  answers = {key: np.asarray(fn()) for key, fn in run.items()}  # compiles
  repeats = max(1, int(0.02 / min(_seconds(fn, 1) for fn in run.values())))
  times = [[_seconds(fn, repeats) * 1000 for fn in run.values()] for _ in range(turns)]
  before, after = np.array(times).T
  print(f"{name:18} {num:6} {np.median(before):9.2f} {np.median(after):9.2f} {np.median(after / before):6.2f}"
        f"   {np.abs(answers['dense'] - answers['routed']).max():.1e}", flush=True)


def _seconds(fn: Callable[[], Any], repeats: int) -> float:
  began = time.perf_counter()
  for _ in range(repeats):
    np.asarray(fn())
  return (time.perf_counter() - began) / repeats


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("--experts", type=int, default=4)
  parser.add_argument("--turns", type=int, default=7)
  parser.add_argument("--cases", nargs="+", default=list(CASES), choices=CASES)
  args = parser.parse_args()
  for model in args.cases:
    compare(model, args.experts, args.turns)


if __name__ == "__main__":
  main()
