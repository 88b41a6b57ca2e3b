"""Configs: names that choose fields, declarations, what users register, and what identifies a run."""
import copy
import dataclasses
import errno
import functools
import itertools
import json
import pathlib
import pickle
import re
import sys
from typing import ClassVar

import numpy as np
import pytest
from runs import Closed, small_config

import alma_jax
from alma_jax import commands, main
from alma_jax import config as configs
from alma_jax.config import document, fields, layout, registry
from alma_jax.errors import BadInput, Stopped
from alma_jax.parallel import peers, runtime
from alma_jax.runs import experiment

CONFIGS = pathlib.Path(__file__).parents[1] / "configs"
TEMPLATES = {"images": configs.base, "text": configs.language, "tasks": configs.tasks}
LEARNERS = [(problem, name) for problem, names in registry.LEARNERS.items() for name in names]
# A name and a field that exists only with it, for every name that chooses fields.
CHOICES = [("images", "stream.schedule", "power", "stream.num_trainings", 5),
           ("images", "stream.schedule", "geometric", "stream.factor", 1.5),
           ("text", "stream.schedule", "adaptive", "stream.price", 1e-9),
           ("images", "train.optimizer", "sgd", "train.momentum", 0.9),
           ("tasks", "train.optimizer", "sgd", "train.nesterov", False),
           ("images", "dataset.name", "live:x", "dataset.settle_seconds", 2.0),
           ("text", "dataset.name", "live:x", "dataset.idle_seconds", 2.0),
           ("tasks", "dataset.name", "tasks:x.py", "dataset.image_size", 8)]


# ---------------------------------------------------------------- names choose fields


@pytest.mark.parametrize(("problem", "name", "value", "field", "given"), CHOICES)
def test_a_name_and_its_field_may_come_in_any_order(problem, name, value, field, given):
  """On the command line, in a config file, and for a sweep."""
  template = TEMPLATES[problem]().to_dict()
  changes = {name: value, field: given}
  wanted = configs.parse(configs.nested(configs.changed(configs.flatten(template), changes)))
  assert configs.flatten(configs.to_dict(wanted))[field] == given
  for order in itertools.permutations(changes):
    texts = {path: fields.text_of(changes[path]) for path in order}
    assert configs.parse(configs.overridden(template, texts)) == wanted
    config = TEMPLATES[problem]()
    for path in order:
      section, key = path.split(".")
      config[section][key] = changes[path]
    copies = copy.deepcopy(config), pickle.loads(pickle.dumps(config)), config.copy_and_resolve_references()
    for made in (config, *copies):
      assert configs.parse(made) == wanted


@pytest.mark.parametrize(("problem", "name", "value", "field", "given"), CHOICES)
def test_a_field_does_not_exist_without_its_name(problem, name, value, field, given):
  template = TEMPLATES[problem]().to_dict()
  assert field not in configs.flatten(template)
  with pytest.raises(BadInput, match=f"{field} is a field of "):
    configs.overridden(template, {field: fields.text_of(given)})
  section, key = field.split(".")
  template[section][key] = given
  with pytest.raises(BadInput, match=f"{field} is a field of .*; leave the field out, or change {name}"):
    configs.parse(template)


def test_a_changed_name_keeps_what_both_classes_declare():
  config = configs.base("sm")
  config.model.width, config.dataset.name = 5, "folder:x"
  config.dataset.image_size, config.model.name = 16, "vgg"
  assert (config.model.width, config.dataset.name) == (5, "folder:x")
  config.stream.bogus = 1  # a field that no class has stays, and is refused
  config.stream.schedule = "geometric"
  with pytest.raises(BadInput, match="there is no field 'stream.bogus'"):
    configs.parse(config)


def test_a_config_keeps_the_classes_that_it_has_chosen(tmp_path):
  """Also one that lacks fields; `load_config` completes it."""
  (tmp_path / "mine.py").write_text("from ml_collections import ConfigDict\n\ndef get_config(change='relabel'):\n"
                                    "  return ConfigDict({'dataset': {'name': 'drift:digits', 'change': change}})\n")
  config = alma_jax.load_config(f"{tmp_path}/mine.py:rotate")
  assert (config.dataset.change, config.dataset.degrees, config.learner.name) == ("rotate", 90.0, "ens")
  config.dataset.name = "drift:cifar10"
  assert config.dataset.change == "rotate"
  for tree in (config, configs.load_file(str(tmp_path / "mine.py"))):
    with pytest.raises(BadInput, match="dataset.name='digits' has no field dataset.change, which"):
      configs.overridden(tree if isinstance(tree, dict) else tree.to_dict(), {"dataset.name": "digits"})
  configs.overridden({"problem": "images", "dataset": {"name": "drift:mnist"}}, {"dataset.name": "digits"})


def test_a_field_that_is_left_out_has_its_default():
  tree = configs.base("sm").to_dict()
  del tree["log"], tree["checkpoint"], tree["train"]["epochs"]
  assert configs.parse(tree) == configs.parse(configs.base("sm"))
  assert configs.parse(configs.overridden(tree, {"checkpoint.seconds": "1"})).checkpoint.seconds == 1.0


@pytest.mark.parametrize(("problem", "learner"), LEARNERS)
def test_round_trip_through_json(problem, learner):
  config = configs.parse(TEMPLATES[problem](learner))
  assert configs.parse(json.loads(json.dumps(configs.to_dict(config)))) == config
  assert configs.digest(json.loads(json.dumps(configs.to_dict(config)))) == configs.digest(config)


# ---------------------------------------------------------------- declarations


def test_fields_that_go_together():
  for changes in ({"stream.schedule": "power", "stream.num_trainings": 20},
                  {"stream.schedule": "adaptive", "stream.price": 1e-9},
                  {"stream.memory_size": 71, "stream.replay_share": 0.5},
                  {"stream.memory_size": 1, "stream.replay_share": "uniform"},
                  {"train.steps": 100, "train.eval_every": 10, "train.patience": 8},
                  {"train.steps": 100, "train.patience": 200},
                  {"learner.average": 0.2, "learner.start": "average"}):
    configs.parse(configs.nested(configs.changed(configs.flatten(configs.base("sm").to_dict()), changes)))
  tree = configs.language("sm").to_dict()
  tree["stream"] |= {"memory_size": 4, "replay_share": 0.5}  # half of a batch of 8 windows
  assert configs.parse(tree).stream.memory_size == 4


@pytest.mark.parametrize(("problem", "path", "given", "wanted"), [
    ("images", "stream.replay_share", "0.25", 0.25), ("images", "stream.replay_share", "uniform", "uniform"),
    ("images", "stream.replay_share", 0, 0.0), ("images", "train.learning_rate", "0.5", 0.5),
    ("images", "train.learning_rate", 1, 1.0), ("images", "train.learning_rate", np.float32(0.5), 0.5),
    ("images", "train.epochs", np.int64(1), 1), ("images", "train.augment", "True", True),
    ("text", "model.dropout", "0.1,0.2", (0.1, 0.2)), ("text", "model.dropout", 0.1, (0.1,)),
    ("text", "model.dropout", np.array([0.1, 0.2]), (0.1, 0.2))])
def test_a_value_is_converted_to_the_declared_type(problem, path, given, wanted):
  """Of the command line, of a config file, and of numpy."""
  section, name = path.split(".")
  tree = TEMPLATES[problem]().to_dict()
  tree[section][name] = given
  value = getattr(getattr(configs.parse(tree), section), name)
  assert (value, type(value)) == (wanted, type(wanted))


@pytest.mark.parametrize("problem", TEMPLATES)
def test_defaults_are_read_back_from_the_text_of_the_command_line(problem):
  flat = configs.flatten(TEMPLATES[problem]().to_dict())
  for path, field in configs.fields_of(flat).items():
    if path not in configs.FIXED:
      assert field.accept(fields.text_of(flat[path]), path) == flat[path]


def test_the_page_of_fields_is_up_to_date():
  page = CONFIGS.parent / "docs/fields.md"
  assert page.read_text() == document.markdown(), "run: python -m alma_jax.config.document > docs/fields.md"


def test_every_field_has_a_meaning_and_is_listed():
  text, page = document.text(), document.markdown()
  for problem in TEMPLATES:
    for part in layout.alternatives(problem).values():
      for path, each in part.items():
        assert each.meaning, path
        assert f"--config.{path}={fields.text_of(each.default)}  (" in text
        assert f"- `{path}={fields.text_of(each.default)}`" in page
  assert "train.momentum" in document.text("MOMENTUM")
  assert not document.text("no such field")


# ---------------------------------------------------------------- what users register


@dataclasses.dataclass(frozen=True)
class Fittest(alma_jax.Options):
  name: str = "fittest"
  every: int = alma_jax.field(1, "number of stages between two selections", at_least=1)
  rates: tuple[float, ...] = alma_jax.field((0.5,), "rates", above=0, below=1)
  pick: str = alma_jax.field("best", "the member", choices=("best", "any"))
  plain: bool = False

  defaults: ClassVar = {"train.patience": 0}

  def make(self, context):
    return context


def test_options_of_a_registered_learner_are_checked_by_their_declarations():
  alma_jax.register(Fittest)
  template = configs.base("fittest")
  assert template.learner.to_dict() == dict(name="fittest", every=1, rates=(0.5,), pick="best", plain=False,
                                            average=0.0, start="last", shrink=1.0, perturb=0.0)
  assert template.train.patience == 0  # from Fittest.defaults
  assert configs.parse(template).learner == Fittest()
  for text, sentence in (("every=0", "learner.every=0 should be at least 1."),
                         ("every=1.5", "learner.every='1.5' should be a whole number."),
                         ("rates=0.5,1", "learner.rates=(0.5, 1.0) should be above 0 and below 1."),
                         ("rates=x", "learner.rates='x' should be a number, or several as in (1,2)."),
                         ("pick=worst", "learner.pick='worst' should be one of best, any."),
                         ("plain=2", "learner.plain='2' should be True or False.")):
    field, _, value = text.partition("=")
    with pytest.raises(BadInput, match=re.escape(sentence)):
      configs.parse(configs.overridden(template.to_dict(), {f"learner.{field}": value}))


def mine(base, **inside):
  return dataclasses.dataclass(frozen=True)(type("Mine", (base,), inside))


def options(*declared, **namespace):
  namespace = {"make": lambda self, context: context} | namespace
  return dataclasses.make_dataclass("Mine", [("name", str, "mine"), *declared], bases=(alma_jax.Options,),
                                    namespace=namespace, frozen=True, kw_only=True)


@pytest.mark.parametrize(("cls", "sentence"), [
    (options(("every", complex, alma_jax.field(1j, "stages"))), "Mine.every is of type .*; declare one of int,"),
    (options(("every", int)), "Mine.every has no default; declare it as alma_jax.field"),
    (options(("every", int, alma_jax.field(0, "stages", at_least=1))), "Mine.every=0 should be at least 1."),
    (options(("every", int, alma_jax.field("one", "stages"))), "Mine.every='one' should be a whole number."),
    (type("Mine", (Fittest,), {"name": "mine"}), "Mine is not a dataclass; write @dataclasses.dataclass.frozen=True"),
    (mine(object), "Mine should inherit from alma_jax.Options, TaskOptions, Model"),
    (mine(alma_jax.Options), "Mine.name has no default; write"),
    (mine(alma_jax.Options, name="mine", problems=("tasks",)), "should be a tuple of one or more of 'images'"),
    (mine(alma_jax.DataSet, name="my:data"), "Mine.name='my:data' should have no colon"),
    (mine(alma_jax.Options, name="sm"), "the learner 'sm' exists already"),
    (mine(alma_jax.Model, name="mlp"), "the network 'mlp' exists already"),
    (mine(alma_jax.DataSet, name="digits"), "the data set 'digits' exists already"),
    (mine(alma_jax.Optimizer, name="adam"), "the optimiser 'adam' exists already"),
])
def test_what_cannot_be_registered(cls, sentence):
  with pytest.raises(BadInput, match=sentence):
    alma_jax.register(cls)


def test_a_class_of_the_users_is_replaced():
  for _ in range(2):  # a cell of a notebook, run twice
    alma_jax.register(Fittest)
  alma_jax.register(options(defaults={"train.step": 3}))
  with pytest.raises(BadInput, match="there is no field 'train.step'"):
    configs.base("mine")


def test_a_learner_of_the_users_hides_a_recipe():
  alma_jax.register(dataclasses.make_dataclass("Mine", [("name", str, "anytime")], bases=(Fittest,), frozen=True))
  assert configs.base("anytime").learner.every == 1


# ---------------------------------------------------------------- the identity of a run


def test_identity_leaves_out_what_changes_no_result():
  a, b = configs.base("sm"), configs.base("sm")
  a.dataset.name = b.dataset.name = "mnist"
  b.dataset.data_dir, b.checkpoint.seconds, b.log.progress, b.devices = "x", 1.0, False, 4
  assert configs.identity(configs.parse(a)) == configs.identity(configs.parse(b))
  assert configs.default_workdir(configs.parse(a)) == configs.default_workdir(configs.parse(b))
  b.train.epochs = 7
  assert configs.default_workdir(configs.parse(a)) != configs.default_workdir(configs.parse(b))
  assert configs.default_workdir(configs.parse(a)).startswith("runs/mnist-sm-")
  differ = configs.differences(configs.to_dict(configs.parse(a)), configs.parse(b))
  assert differ == ["train.epochs (100 there, 7 here)"]


@pytest.mark.parametrize(("changes", "field"), [
    ({}, None), ({"memory_policy": "window"}, "stream.memory_policy"), ({"memory_size": 5}, "stream.memory_size")])
def test_a_run_goes_on_without_the_fields_that_it_lacks_at_their_defaults_only(changes, field):
  tree = configs.base("anytime,v1")
  stored = configs.to_dict(configs.parse(tree))
  del stored["stream"]["memory_policy"], stored["stream"]["memory_size"]
  tree.stream.update(changes)
  differ = configs.differences(stored, configs.parse(tree))
  assert [each.split()[0] for each in differ if each.split()[0] != "stream.window"] == ([field] if field else [])


# ---------------------------------------------------------------- the command line


def parsed(*args):
  return main._parse(args)[1]


@pytest.fixture
def run_command(monkeypatch):
  """Runs the command line with the outcome of experiment.run; (exit code, the message to the other processes)."""
  def run(outcome):
    left = []
    monkeypatch.setattr(commands, "quiet", lambda: None)
    monkeypatch.setattr(runtime, "setup", lambda *unused, **named: None)
    monkeypatch.setattr(experiment, "run", outcome)
    monkeypatch.setattr(main, "_report", lambda run: "CER 1")
    monkeypatch.setattr(peers, "leave", lambda *news: left.append(news))
    return commands.exit_code(lambda: main._run(*main._parse([]), lambda: False, lambda: 129)), left

  return run


@pytest.mark.parametrize("number", [errno.EIO, errno.EPIPE])
def test_only_a_report_that_nobody_reads_gives_141(run_command, monkeypatch, number):
  def raising(error):
    def run(*unused, **named):
      raise error
    return run

  monkeypatch.setattr(sys, "stderr", Closed(number))
  assert run_command(raising(Stopped("saved."))) == (129, [()])
  assert run_command(raising(BadInput("bad."))) == (2, [])
  monkeypatch.setattr(sys, "stdout", Closed(number))
  assert run_command(lambda *unused, **named: None) == (141, [()])


def test_if_a_field_is_given_twice_the_last_counts():
  config = parsed(f"--config={CONFIGS}/lm.py:sm,tiny", "--config.train.learning_rate=1e-3", "--config.seed=1",
                  "--config.train.learning_rate=2e-3", "--config.seed=2")
  assert config.train.learning_rate == (2e-3,)
  assert config.seed == 2


def test_fields_may_stand_before_or_without_the_config_file():
  config = parsed("--config.train.epochs=3", f"--config={CONFIGS}/digits.py:sm", "--config.model.width", "5",
                  "--config.deterministic", "--config.log.progress=false")
  assert (config.learner.name, config.train.epochs, config.model.width) == ("sm", 3, 5)
  assert (config.deterministic, config.log.progress) == (True, False)
  config = parsed("--config.train.epochs=3")
  assert (config.dataset.name, config.learner.name, config.train.epochs) == ("digits", "ens", 3)


def test_numbers_that_no_float_can_be_are_refused():
  tree = configs.base().to_dict()
  tree["train"]["learning_rate"] = 10**400
  with pytest.raises(BadInput, match="train.learning_rate=1000"):
    configs.parse(tree)


@pytest.mark.parametrize(("exponent", "grown", "steps"), [(0.0, 16, 80), (0.25, 16, 40), (0.5, 16, 20), (1.0, 1000, 1)])
def test_later_stages_may_have_fewer_steps(exponent, grown, steps):
  train = configs.parse(small_config(train__steps=80, train__steps_exponent=exponent)).train
  assert train.plan(100).steps == 80
  assert train.plan(100, 0.5, grown).steps == steps


def test_the_first_stage_may_have_more_steps():
  train = configs.parse(small_config(train__steps=80, train__first_steps=2.5)).train
  assert [train.plan(100, 0.5, grown).steps for grown in (1.0, 1.01, 16)] == [200, 80, 80]


def test_a_stage_has_at_most_so_many_passes_over_its_new_examples():
  limited = functools.partial(small_config, train__batch_size=20, train__most_passes=2.5)
  train = configs.parse(limited(train__steps=800)).train
  assert [train.plan(num).steps for num in (10, 1600, 2000, 6400, 7000)] == [212, 212, 261, 800, 800]
  more = configs.parse(limited(train__steps=800, train__first_steps=3.0)).train
  assert [more.plan(2000, grown=grown).steps for grown in (1.0, 2.0)] == [250 + 2150 / 50, 261]
  assert train.plan(2000, 0.75).steps == 261  # however much of a batch is old
  short = configs.parse(limited(train__steps=80)).train
  assert short.plan(10).steps == 80
  long = configs.parse(limited(train__steps=8000)).train
  assert long.plan(10).steps == 200 + 7800 / 50
