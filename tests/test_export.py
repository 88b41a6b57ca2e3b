"""Exported predictors predict as the run does, in a process that has only jax."""
import dataclasses
import json
import subprocess
import sys
from typing import ClassVar

import flax.linen as nn
import numpy as np
import pytest
from runs import blobs, slow, text_config
from test_predictor import load

import alma_jax
from alma_jax import export
from alma_jax.errors import BadInput
from alma_jax.learners import hmoe, sm
from alma_jax.models import layers
from alma_jax.predictors import folder, predictor


@pytest.mark.parametrize(("learner", "changes"), [
    slow("boosting", {}), ("gens", {"learner__combine": "vote"}), slow("ens", {"learner__combine": "logits"}),
    slow("gmoe", {"learner__gating": "hard"}), slow("ff", {}),
    ("sm", {"train__test_augment": True, "train__augment": True})])
def test_predictors_answer_as_the_run(tmp_path, make_config, arrays, learner, changes):
  run = alma_jax.run(make_config(learner, **changes), tmp_path / "run", data=arrays)
  place = export.export(run)
  assert place == tmp_path / "run/export"
  images = arrays[2]
  if learner == "gens":
    np.testing.assert_allclose(_ask(place, images[..., None], tmp_path), run.predict(images), atol=2e-6)
  for part in (images, images[:3], images[:1]):  # any number of them
    np.testing.assert_allclose(load(place).predict(part[..., None]), run.predict(part), atol=2e-6)
  facts = json.loads((place / "predictor.json").read_text())
  assert (facts["classes"], facts["example_shape"], facts["dtype"], facts["stage"]) == (3, [6, 6, 1], "uint8", 1)
  assert len(facts["normalization"]["mean"]) == 1


def test_an_exported_mixture_has_no_room_for_more_experts(tmp_path, make_config, arrays):
  """Of 5 stages, the third has 3 experts in a network with room for 5, all of which a run computes."""
  config = make_config("gmoe", stream__num_megabatches=5, stream__waiting_time=1, train__epochs=1,
                       checkpoint__keep_every=1)
  run = alma_jax.run(config, tmp_path / "run", data=arrays)
  for stage, num in ((0, 1), (2, 3)):
    stored = folder.read(export.export(run.path, stage=stage, out=tmp_path / f"stage{stage}"))
    found = predictor.load(stored).program
    np.testing.assert_allclose(found(arrays[2][..., None])[1], run.predict(arrays[2], stage=stage), atol=2e-6)
    # h(D+1) and h(h+1) of an expert, 2(D+1) and 2(h+1) of a gate, with h=4, D=36; the last layer has 3(h+1)
    params = num * (4 * 37 + 4 * 5) + (num - 1) * 2 * (37 + 5) + 3 * 5
    trees = 2 * (num * (num - 1) * 2 + num) if num > 1 else 0
    assert sum(leaf.size for leaf in found._weights) == params + trees
  assert run.spec(2)["size"] == 5
  (tmp_path / "file").touch()
  with pytest.raises(BadInput, match="the predictor cannot be written to"):
    export.export(run, out=tmp_path / "file")


@pytest.mark.slow
def test_a_convolutional_network_is_exported(tmp_path, make_config):
  data = (*blobs(80, (9, 8, 3)), *blobs(12, (9, 8, 3), seed=1))
  config = make_config(model__name="compact", model__width=2, train__epochs=1)
  run = alma_jax.run(config, tmp_path / "run", data=data)
  np.testing.assert_allclose(load(export.export(run)).predict(data[2][:5]), run.predict(data[2][:5]), atol=1e-5)


class Counting(nn.Module):
  """A network that computes with the size of the batch, as Python and numpy know it."""
  width: int
  num_classes: int
  dtype: object
  axis: str | None

  @nn.compact
  def __call__(self, x, mask, train):
    x = x.reshape(len(x), -1) + np.zeros((len(x), 1), np.float32)
    x = nn.relu(nn.Dense(self.width)(x))
    return layers.Head(self.num_classes, self.dtype, name="output")(x if len(x) > 0 else 2 * x)


class Reshaping(sm.SM):
  """A learner that does so."""

  def contribution(self, state, block, inputs):
    found = super().contribution(state, block, inputs.reshape(len(inputs), *inputs.shape[1:]))
    return {name: part.reshape(len(inputs), -1) for name, part in found.items()}


@dataclasses.dataclass(frozen=True)
class Reshape(sm.Options):
  """SM of a user."""
  name: str = "reshaping"

  def make(self, context):
    return Reshaping(context)


@dataclasses.dataclass(frozen=True)
class CountingModel(alma_jax.Model):
  """A network of a user."""
  name: str = "counting"

  def module(self, num_classes, dtype, axis):
    return Counting(self.width, num_classes, dtype, axis)


@pytest.mark.parametrize(("learner", "model"), [
    ("sm", "counting"), ("reshaping", "mlp"), slow("hmoe", "counting")])
def test_own_code_may_count_the_examples_of_a_batch(tmp_path, make_config, arrays, learner, model):
  alma_jax.register(Reshape)
  alma_jax.register(CountingModel)
  run = alma_jax.run(make_config(learner, model__name=model, log__predictor=True), tmp_path / "run", data=arrays)
  images = arrays[2]
  for part in (images, images[:1]):
    np.testing.assert_allclose(load(run.path / "predictor").predict(part[..., None]), run.predict(part), atol=2e-6)


class Small(hmoe.HMoE):
  """A mixture that changes nothing in its predictions."""

  def grow(self, state, data):
    return super().grow(state, data)


class Sharp(hmoe.HMoE):
  """A mixture that computes with the size of the batch."""

  def resolve(self, state, joined):
    return super().resolve(state, {name: part.reshape(len(part), -1) for name, part in joined.items()})


@dataclasses.dataclass(frozen=True)
class OwnHMoE(hmoe.Options):
  """HMoE of a user."""
  name: str = "own_hmoe"

  made: ClassVar[type] = hmoe.HMoE

  def make(self, context):
    return self.made(context)


@pytest.mark.slow
@pytest.mark.parametrize("cls", [Small, Sharp])
def test_one_example_at_a_time_only_if_own_code_predicts(tmp_path, make_config, arrays, monkeypatch, cls):
  alma_jax.register(OwnHMoE)
  monkeypatch.setattr(OwnHMoE, "made", cls)
  seen, contribution = [], hmoe.HMoE.contribution
  monkeypatch.setattr(hmoe.HMoE, "contribution", lambda self, state, block, inputs: (
      seen.append(inputs.shape[0]), contribution(self, state, block, inputs))[1])
  monkeypatch.setattr(hmoe.HMoE.contribution, "__module__", hmoe.__name__)
  run = alma_jax.run(make_config("own_hmoe", train__epochs=1), tmp_path / "run", data=arrays)
  place = export.export(run)
  assert (seen == [1]) == (cls is Sharp)
  for part in (arrays[2], arrays[2][:1]):
    np.testing.assert_allclose(load(place).predict(part[..., None]), run.predict(part), atol=2e-6)


class Spoken(sm.SM):
  """A language model of a user, with a loaded array."""
  loaded: tuple[int, ...] = (1, 2)
  seen: list[int] = []  # noqa: RUF012

  def __init__(self, context):
    super().__init__(context)
    self.weights = np.array(self.loaded)

  def contribution(self, state, block, inputs):
    self.seen.append(inputs.tokens.shape[0])
    return super().contribution(state, block, inputs)


@dataclasses.dataclass(frozen=True)
class Speak(sm.Options):
  """SM of a user."""
  name: str = "spoken"

  def make(self, context):
    return Spoken(context)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:the vocabulary has")
def test_a_learner_with_several_learning_rates_is_the_users_too(tmp_path, books, monkeypatch):
  alma_jax.register(Speak)
  config = text_config(books, stream__num_megabatches=1)
  config.learner.name, config.train.learning_rate = "spoken", (0.01, 0.02)
  run = alma_jax.run(config, tmp_path / "run")
  monkeypatch.setattr(Spoken, "loaded", (1, 3))
  Spoken.seen.clear()
  with pytest.warns(UserWarning, match="the arrays that 'spoken' loads have changed"):
    export.export(run)
  assert Spoken.seen == [1]


def _ask(place, x, scratch):
  """The prediction of the exported predictor, in a process that cannot import this package."""
  np.save(scratch / "x.npy", x)
  code = (f"import sys, numpy; sys.modules['alma_jax'] = sys.modules['flax'] = None\n"
          f"sys.path.insert(0, {str(place)!r})\n"
          f"import load; numpy.save({str(scratch / 'y.npy')!r}, load.predict(numpy.load({str(scratch / 'x.npy')!r})))")
  subprocess.run([sys.executable, "-c", code], check=True)
  return np.load(scratch / "y.npy")
