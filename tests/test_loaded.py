"""Arrays that a user's own network or learner loads belong to the run: with others it is another run."""
import sys
import types

import numpy as np
import pytest
from runs import alma, blobs, small_config
from stages import setting_of
from test_live import drop, interrupted, live_config, make_folder

import alma_jax
from alma_jax import config as configs
from alma_jax.config import code
from alma_jax.runs import loaded

NETWORK = '''
import dataclasses, functools, pathlib
import flax.linen as nn
import jax.numpy as jnp
import numpy as np
import alma_jax
from alma_jax.models import layers

FILE = pathlib.Path(__file__).parent / "body.npy"
{before}

class OnBody(nn.Module):
  width: int
  num_classes: int
  dtype: object
  axis: str | None

  @nn.compact
  def __call__(self, x, mask, train):
    x = x.reshape(x.shape[0], -1)
    {body}
    return layers.Head(self.num_classes, self.dtype, name="output")(x)


@alma_jax.register
@dataclasses.dataclass(frozen=True)
class Model(alma_jax.Model):
  name: str = "on_body"

  def module(self, num_classes, dtype, axis):
    return OnBody(self.width, num_classes, dtype, axis)


def get_config(learner="sm"):
  config = alma_jax.base_config(learner)
  config.model.name, config.model.width = "on_body", 4
  return config
'''
LEARNER = '''
import dataclasses, pathlib
import numpy as np
import alma_jax

FILE = pathlib.Path(__file__).parent / "body.npy"
{before}

class Taught(alma_jax.Stacked):
  {body}


@alma_jax.register
@dataclasses.dataclass(frozen=True)
class Options(alma_jax.Options):
  name: str = "taught"

  def make(self, context):
    return Taught(context)


def get_config(learner="taught"):
  return alma_jax.base_config(learner)
'''
WAYS = {
    "frozen": (NETWORK, "BODY = np.load(FILE)", "x = nn.relu(x @ jnp.asarray(BODY))"),
    "loaded_late": (NETWORK, "", "x = nn.relu(x @ jnp.asarray(np.load(FILE)))"),
    "imported": (NETWORK, "import bodies", "x = nn.relu(x @ bodies.BODY)"),
    "initial": (NETWORK, "", "x = x @ self.param('body', lambda key: jnp.asarray(np.load(FILE)))"),
    "attribute": (LEARNER, "", """def __init__(self, context):
    super().__init__(context)
    self.teacher = {"body": np.load(FILE)}"""),
    "named": (LEARNER, "BODY = np.load(FILE)", """def grow(self, state, data):
    assert BODY.size
    return super().grow(state, data)"""),
    "start": (LEARNER, "", """def init(self):
    return super().init()._replace(host={"body": np.load(FILE)})"""),
    "inherited": (LEARNER.replace("Taught(alma_jax.Stacked)", "Taught(Base)"), """BODY = np.load(FILE)

class Base(alma_jax.Stacked):
  def grow(self, state, data):
    assert BODY.size
    return super().grow(state, data)
""", "pass"),
    "none": (NETWORK, "", "x = x * 2.0"),
}


@pytest.fixture
def own(tmp_path, monkeypatch):
  """A folder for config files that register the network on_body or the learner taught."""
  (tmp_path / "bodies.py").write_text("import pathlib, numpy as np\n"
                                      "BODY = np.load(pathlib.Path(__file__).parent / 'body.npy')\n")
  monkeypatch.setattr(sys, "path", [*sys.path])
  return tmp_path


def body(folder, seed, size=36):
  np.save(folder / "body.npy", np.random.default_rng(seed).normal(size=(size, 5)).astype(np.float32))
  sys.modules.pop("bodies", None)


@pytest.mark.parametrize("way", WAYS)
def test_other_arrays_have_another_digest(own, way):
  text, before, inside = WAYS[way]
  (own / "mine.py").write_text(text.replace("{before}", before).replace("{body}", inside))
  learner, changes = ("sm", {"model__name": "on_body"}) if text is NETWORK else ("taught", {})
  name = changes.get("model__name", learner)
  found = []
  for seed in (0, 0, 1):
    body(own, seed)
    configs.load_file(str(own / "mine.py"))
    found.append(setting_of(learner, seed=len(found), **changes).arrays[name])
  assert found[0] == found[1]
  assert (found[0] == found[2]) == (way == "none")


@pytest.mark.parametrize(("before", "inside"), [
    ("TABLE = {1: np.arange(3), 'one': None}", """def __init__(self, context):
    super().__init__(context)
    self.table = TABLE"""),
    ("from alma_jax import keys", """def __init__(self, context):
    super().__init__(context)
    self.order = keys.rng(context.config.seed, 100).permutation(10)"""),
    ("SEEN = np.arange(3)", """def init(self):
    SEEN[:] += 1
    return super().init()"""),
    ("""class Slotted:
  __slots__ = "made"
  def __init__(self, context):
    self.made = alma_jax.Stacked(context)
  def __getattr__(self, name):
    if name == "__dict__":
      raise AttributeError
    return getattr(self.made, name)""", "pass\n\nTaught = Slotted")])
def test_what_is_no_loaded_array_does_no_harm(own, before, inside):
  (own / "mine.py").write_text(LEARNER.replace("{before}", before).replace("{body}", inside))
  configs.load_file(str(own / "mine.py"))
  assert len({setting_of("taught", seed=seed).arrays["taught"] for seed in (0, 0, 3)}) == 1


def test_a_run_compares_its_arrays_once(own, monkeypatch):
  (own / "mine.py").write_text(NETWORK.replace("{before}", "").replace("{body}", "x = x @ jnp.asarray(np.load(FILE))"))
  body(own, 0)
  configs.load_file(str(own / "mine.py"))
  data, asked = (*blobs(60), *blobs(30, seed=1)), []
  run = alma_jax.run(small_config("sm", model__name="on_body"), own / "run", data=data)
  monkeypatch.setattr(loaded, "digests", lambda *args: asked.append(args) or {})
  for _ in range(2):
    run.predict(data[2])
  assert len(asked) == 1


def test_files_of_python_and_of_packages_are_no_files_of_the_user(own, monkeypatch):
  """Python, or a virtual environment, may lie below the folder of the user's file."""
  found = {"json": "lib/json.py", "package": ".venv/lib/site-packages/package.py", "debian": "dist-packages/debian.py",
           "helper": "helper.py", "deep": "parts/deep.py"}
  for name, path in found.items():
    (own / path).parent.mkdir(parents=True, exist_ok=True)
    (own / path).write_text("import deep\n" if name == "helper" else "")
    module = types.ModuleType(name)
    module.__file__ = str(own / path)
    monkeypatch.setitem(sys.modules, name, module)
  sys.modules["helper"].deep = sys.modules["deep"]
  (own / "mine.py").write_text(LEARNER.replace("{before}", "import json, package, debian, helper").replace(
      "{body}", "def facts(self):\n    return {}"))
  configs.load_file(str(own / "mine.py"))
  assert list(code.code_of(configs.parse(small_config("taught")))) == ["taught", "helper.py", "parts/deep.py"]


def test_a_run_with_other_weights_is_refused(own):
  (own / "mine.py").write_text(NETWORK.replace("{before}", "import bodies").replace(
      "{body}", "x = nn.relu(x @ bodies.BODY)"))
  command = ["main", "--config=mine.py:sm", "--config.stream.num_megabatches=2", "--config.train.epochs=1",
             "--config.devices=1", "--workdir=run"]
  body(own, 0, 64)
  done = alma(*command, cwd=own)
  assert done.returncode == 0, done.stderr
  images = blobs(5, (8, 8))[0]
  before = alma_jax.load_run(own / "run").predict(images)
  body(own, 1, 64)
  done = alma(*command, cwd=own)
  assert (done.returncode, done.stderr.count("\n")) == (2, 1)
  assert "differs in the arrays that 'on_body' loads (same name, other contents); choose another" in done.stderr
  with pytest.warns(UserWarning, match="the arrays that 'on_body' loads have changed since the run in .* began"):
    assert not np.array_equal(alma_jax.load_run(own / "run").predict(images), before)
  body(own, 0, 64)
  (own / "bodies.py").write_text((own / "bodies.py").read_text() + "# another version\n")
  done = alma(*command, cwd=own)
  assert (done.returncode, "run is complete" in done.stderr) == (0, True)
  assert "the file bodies.py has changed since the run in run began" in done.stderr


@pytest.mark.slow
def test_a_live_run_keeps_its_digest_when_a_class_comes(own, arrays):
  (own / "mine.py").write_text(NETWORK.replace("{before}", "").replace("{body}", "x = x @ jnp.asarray(np.load(FILE))"))
  folder, (x, y) = make_folder(own / "live", arrays), arrays[:2]
  for t, classes in enumerate(([0, 2], [0, 1, 2]), 1):
    which = np.flatnonzero(np.isin(y, classes))[20 * t:][:24]
    drop(folder, t, x[which], y[which])
  body(own, 0)
  configs.load_file(str(own / "mine.py"))
  config = live_config(folder, "sm", model__name="on_body", stream__waiting_time=1, train__epochs=1)
  (folder / "end").touch()
  while interrupted(config, own / "run", 2):
    pass
  body(own, 1)
  with pytest.raises(alma_jax.BadInput, match="differs in the arrays that 'on_body' loads"):
    alma_jax.run(config, own / "run")
