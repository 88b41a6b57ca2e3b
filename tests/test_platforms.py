"""Programs for GPUs and TPUs, where there is none: what learners would compile there, as jax lowers it."""
import importlib
import pkgutil
import re
import sys
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from runs import blobs, task_config, text_config
from stages import examine, setting_of, train

import alma_jax
import alma_jax.learners
from alma_jax import config as configs
from alma_jax.config.registry import LEARNERS
from alma_jax.runs import settings

# moe, ens, gens and bagging have the programs of others; sm is in test_precision, and expert needs a gate.
IMAGES = ["anytime", *(learner for learner in LEARNERS["images"]
                       if learner not in ("bagging", "ens", "expert", "gens", "moe", "sm"))]
JITTED = type(jax.jit(lambda: 0))


class Program(NamedTuple):
  """A program as StableHLO."""

  name: str  # of the jitted function
  text: str
  donated: int  # arrays that the caller gives up

  def count(self, pattern):
    return len(re.findall(pattern, self.text))


class Lowered:
  """Stands for a jitted function: lowers it for both platforms, instead of compiling it, and returns zeros."""

  def __init__(self, jitted, programs):
    self._jitted, self._programs, self._known = jitted, programs, {}

  def __call__(self, *args, **kwargs):
    leaves, structure = jax.tree.flatten((args, kwargs))
    if any(isinstance(leaf, jax.core.Tracer) for leaf in leaves):
      return self._jitted(*args, **kwargs)
    key = structure, *((leaf.shape, leaf.dtype) if isinstance(leaf, (jax.Array, np.ndarray)) else leaf
                       for leaf in leaves)
    if key not in self._known:
      traced = self._jitted.trace(*args, **kwargs)
      text = traced.lower(lowering_platforms=("cuda", "tpu")).as_text()
      donated = sum(each.donated for each in jax.tree.leaves(traced.args_info))
      self._programs.append(Program(self._jitted.__name__, text, donated))
      self._known[key] = traced.out_info
    return jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), self._known[key])

  def __getattr__(self, name):
    return getattr(self._jitted, name)


@pytest.fixture
def programs(monkeypatch):
  """[Program] of all that the test calls; the package's own choices are those for a GPU."""
  found, wrapped = [], {}
  monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
  for learner in pkgutil.iter_modules(alma_jax.learners.__path__, "alma_jax.learners."):
    importlib.import_module(learner.name)
  for name, module in list(sys.modules.items()):
    if name.startswith("alma_jax."):
      for key, value in list(vars(module).items()):
        if isinstance(value, JITTED):
          monkeypatch.setattr(module, key, wrapped.setdefault(id(value), Lowered(value, found)))
  jax.clear_caches()  # a trace of the same function with the choices for a CPU
  yield found
  jax.clear_caches()


def run(setting):
  """Two stages and a test; all numbers are 0."""
  examine(setting, train(setting)[0])


def check(programs, training="advance"):
  """jax can lower everything for both platforms, nothing calls the host, and a step writes where its state was."""
  assert {training, "initial_state", "selected", "_contribute"} <= {program.name for program in programs}
  for program in programs:
    targets = set(re.findall(r"custom_call @([\w$.]+)", program.text))
    assert not {target for target in targets if "callback" in target}, program.name
    if program.name == training:
      assert program.count(r"tf\.aliasing_output|jax\.buffer_donor") == program.donated > 3


@pytest.mark.parametrize("learner", IMAGES)
def test_images(programs, learner):
  run(setting_of(learner))
  check(programs)


def test_members_share_each_convolution(programs):
  """A step of an ensemble has as many convolutions as one of a network: members are an axis of them."""
  shape, counts = (32, 32, 3), {}
  for learner in ("sm", "ens"):
    programs.clear()
    run(setting_of(learner, (*blobs(60, shape), *blobs(30, shape, seed=1)), model__name="compact"))
    check(programs)
    counts[learner] = [program.count(r"stablehlo\.convolution\(") for program in programs if program.name == "advance"]
  assert counts["ens"] == counts["sm"]
  assert min(counts["sm"]) > 3


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_precision(programs, precision):
  """In bfloat16 every product of a step takes bfloat16 operands. In float32 nothing is bfloat16."""
  run(setting_of("sm", precision=precision))
  step = next(program for program in programs if program.name == "advance")
  products = re.findall(r"stablehlo\.dot_general .*: \((tensor<[^)]*)\)", step.text)
  assert len(products) > 5
  assert all(("bf16" in product) == (precision == "bfloat16") for product in products)
  assert ("bf16" in step.text) == (precision == "bfloat16")


def test_text(programs, books):
  run(settings.prepare(configs.parse(text_config(books, "gmoe", model__gates="tree"))))
  check(programs, "step")


@pytest.mark.parametrize("learner", ["mntdp", "replay", "select"])  # the others choose among paths as mntdp does
def test_task_streams(programs, learner, tmp_path):
  alma_jax.run(task_config(learner, stream__num_megabatches=2), tmp_path / "run")
  check(programs)
