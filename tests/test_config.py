"""Every check of a config, by the sentence it raises."""
import pytest

from alma_jax import config as configs
from alma_jax.errors import BadInput

BAD = [
    ("seed", -1, "seed=-1 should be at least 0"),
    ("seed", 2**31, "below 2**31"),
    ("stream.waiting_time", 21, "stream.waiting_time=21 exceeds stream.num_megabatches=20"),
    ("stream.waiting_time", 0, "at least 1"),
    ("stream.num_megabatches", 0, "at least 1"),
    ("stream.replay", 1.5, "between 0 and 1"),
    ("stream.replay", -0.1, "between 0 and 1"),
    ("stream.val_fraction", 0.0, "strictly between 0 and 1"),
    ("stream.val_fraction", 1.0, "strictly between 0 and 1"),
    ("stream.untrained_error", "zero", "chance, model"),
    ("learner.num_members", 0, "learner.num_members=0 should be at least 1"),
    ("learner.combine", "mean", "probabilities, logits, vote"),
    ("model.name", "resnet", "mlp, vgg"),
    ("model.width", 0, "at least 1"),
    ("model.num_experts", 2, "for the learners moe, gmoe, hmoe, not ens"),
    ("train.epochs", 0, "train.epochs=0 should be at least 1"),
    ("train.batch_size", 0, "at least 1"),
    ("train.optimizer", "lion", "adadelta, sgd, adam"),
    ("train.learning_rate", 0.0, "above 0"),
    ("train.learning_rate", float("nan"), "a finite number"),
    ("checkpoint.seconds", float("inf"), "a finite number"),
    ("train.momentum", 0.9, "need train.optimizer='sgd'"),
    ("train.nesterov", True, "need train.optimizer='sgd'"),
    ("train.patience", -1, "at least 0"),
    ("checkpoint.keep", 0, "at least 1"),
    ("precision", "float16", "float32, bfloat16"),
    ("train.epochs", 2.5, "train.epochs=2.5 should be a whole number"),
    ("train.epochs", True, "a whole number"),
    ("train.augment", 1, "True or False"),
    ("dataset.name", 3, "a string"),
]


@pytest.mark.parametrize(("field", "value", "sentence"), BAD)
def test_bad_fields_are_named(field, value, sentence):
  tree = configs.base("ens").to_dict()
  inner = tree
  *path, last = field.split(".")
  for key in path:
    inner = inner[key]
  inner[last] = value
  with pytest.raises(BadInput) as error:
    configs.parse(tree)
  assert sentence in str(error.value)
  assert field.split(".")[-1] in str(error.value)


def test_unknown_and_missing_fields_list_the_options():
  tree = configs.base("sm").to_dict()
  tree["train"]["epoch"] = 3
  with pytest.raises(BadInput, match=r"no field 'train.epoch'; .* epochs, batch_size"):
    configs.parse(tree)
  tree = configs.base("sm").to_dict()
  del tree["model"]["width"]
  with pytest.raises(BadInput, match="lacks the field 'model.width'"):
    configs.parse(tree)


def test_a_learner_takes_only_its_own_fields():
  tree = configs.base("sm").to_dict()
  tree["learner"]["num_members"] = 3
  with pytest.raises(BadInput, match="learner 'sm' has no field 'learner.num_members'"):
    configs.parse(tree)


def test_unknown_learner_lists_the_learners():
  with pytest.raises(BadInput, match="no learner 'foo'; the learners are sm, ens, umix, gens"):
    configs.base("foo")


@pytest.mark.parametrize("learner", configs.LEARNERS)
def test_round_trip_through_json(learner):
  config = configs.parse(configs.base(learner))
  assert configs.parse(configs.to_dict(config)) == config


def test_identity_leaves_out_what_changes_no_result():
  a, b = configs.base("sm"), configs.base("sm")
  b.dataset.data_dir, b.checkpoint.seconds, b.log.progress, b.devices = "x", 1.0, False, 4
  assert configs.identity(configs.parse(a)) == configs.identity(configs.parse(b))
  assert configs.default_workdir(configs.parse(a)) == configs.default_workdir(configs.parse(b))
  b.train.epochs = 7
  assert configs.default_workdir(configs.parse(a)) != configs.default_workdir(configs.parse(b))
  assert configs.default_workdir(configs.parse(a)).startswith("runs/digits-sm-")
