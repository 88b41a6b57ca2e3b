"""Configs: reading them, learners and networks of the user's, and what identifies a run."""
import dataclasses
import errno
import json
import pathlib
import re
import subprocess
import sys
from typing import ClassVar

import numpy as np
import pytest
from runs import Closed

import alma_jax
from alma_jax import commands, main
from alma_jax import config as configs
from alma_jax.config import document, fields, learner_options, registry, schema, sections
from alma_jax.errors import BadInput, Stopped
from alma_jax.parallel import peers, runtime
from alma_jax.runs import experiment

CONFIGS = pathlib.Path(__file__).parents[1] / "configs"

def changed(learner, **changes):
  """The nested dict of a template with other values; __ stands for a dot."""
  tree = configs.base(learner).to_dict()
  for name, value in changes.items():
    configs.set_field(tree, name.replace("__", "."), value)
  return tree


def test_fields_that_go_together():
  for changes in ({"stream__schedule": "power", "stream__num_trainings": 20},
                  {"stream__schedule": "geometric", "stream__waiting_time": 21},  # the waiting time is not used
                  {"stream__schedule": "adaptive", "stream__price": 1e-9},
                  {"stream__memory_size": 71, "stream__replay_share": 0.5},
                  {"stream__memory_size": 1, "stream__replay_share": "uniform"},
                  {"train__steps": 100, "train__eval_every": 10, "train__patience": 8},
                  {"train__steps": 100, "train__patience": 200},
                  {"learner__average": 0.2, "learner__start": "average"}):
    configs.parse(changed("sm", **changes))
  tree = configs.language("sm").to_dict()
  for field, value in {"stream.memory_size": 4, "stream.replay_share": 0.5}.items():  # half of a batch of 8 windows
    configs.set_field(tree, field, value)
  assert configs.parse(tree).stream.memory_size == 4


def test_a_number_or_a_word_is_read_from_the_command_line():
  tree = configs.base("sm").to_dict()
  for text, value in (("0.25", 0.25), ("0", 0.0), ("uniform", "uniform")):
    read = configs.parse(configs.overridden(tree, {"stream.replay_share": text})).stream.replay_share
    assert (read, type(read)) == (value, type(value))


def test_stored_configs_without_the_new_fields_are_those_of_before():
  new = ("stream.replay_share", "stream.memory_size", "stream.schedule", "stream.num_trainings", "stream.exponent",
         "stream.factor", "stream.price", "train.steps", "train.eval_every", "train.decay", "train.label_smoothing",
         "learner.average", "learner.start", "learner.shrink", "learner.perturb")
  config = configs.parse(configs.base("ens"))
  old = json.loads(json.dumps(configs.to_dict(config)))
  for name in new:
    section, _, field = name.partition(".")
    del old[section][field]
  assert configs.parse(configs.completed(old)) == config
  assert configs.digest(old) == configs.digest(config)


@pytest.fixture
def forget():
  """After the test, removes what it has registered."""
  known = [learner_options.LEARNERS, learner_options.TEXT_LEARNERS, registry.LEARNERS, registry.TEXT_LEARNERS,
           registry.MODELS]
  before, networks = [dict(names) for names in known], [*sections.NETWORKS]
  yield
  for names, items in zip(known, before):
    names.clear()
    names.update(items)
  sections.NETWORKS[:] = networks


@dataclasses.dataclass(frozen=True)
class Fittest(alma_jax.Options):
  name: str = "fittest"
  every: int = alma_jax.field(1, "number of stages between two selections", at_least=1)
  rates: tuple[float, ...] = alma_jax.field((0.5,), "rates", above=0, below=1)
  pick: str = alma_jax.field("best", "the member", choices=("best", "any"))
  later: int = alma_jax.field(7, "an option that version 0.1 did not have", before=0)
  plain: bool = False

  defaults: ClassVar = {"train.patience": 0}


@pytest.mark.usefixtures("forget")
def test_options_of_a_registered_learner_are_checked_by_their_declarations():
  alma_jax.register_learner(Fittest, make=print)
  template = configs.base("fittest")
  of_all = dict(average=0.0, start="last", shrink=1.0, perturb=0.0)
  assert template.learner.to_dict() == dict(name="fittest", every=1, rates=(0.5,), pick="best", later=7, plain=False,
                                            **of_all)
  assert template.train.patience == 0  # from Fittest.defaults
  assert configs.parse(template).learner == Fittest()
  for text, sentence in (("every=0", "learner.every=0 should be at least 1."),
                         ("every=1.5", "learner.every='1.5' should be a whole number."),
                         ("rates=0.5,1", "learner.rates=(0.5, 1.0) should be strictly between 0 and 1."),
                         ("rates=x", "learner.rates='x' should be a number, or several as in (1,2)."),
                         ("pick=worst", "learner.pick='worst' is not one of best, any."),
                         ("plain=2", "learner.plain='2' should be True or False.")):
    field, _, value = text.partition("=")
    with pytest.raises(BadInput, match=re.escape(sentence)):
      configs.parse(configs.overridden(template.to_dict(), {f"learner.{field}": value}))


@pytest.mark.usefixtures("forget")
def test_options_of_a_registered_learner_may_be_added_later():
  alma_jax.register_learner(Fittest, make=print)
  config = configs.parse(changed("fittest", learner__later=0))
  old = json.loads(json.dumps(configs.to_dict(config)))
  del old["learner"]["later"]
  assert configs.parse(configs.completed(old)) == config
  assert configs.digest(old) == configs.digest(config) != configs.digest(configs.parse(configs.base("fittest")))
  new = configs.parse(changed("fittest", learner__later=3))
  assert configs.differences(old, new) == ["learner.later (0 there, 3 here)"]


def mine(*options, **namespace):
  return dataclasses.make_dataclass("Mine", [("name", str, "mine"), *options], bases=(alma_jax.Options,),
                                    namespace=namespace, frozen=True, kw_only=True)


@pytest.mark.parametrize(("cls", "sentence"), [
    (mine(("every", complex, alma_jax.field(1j, "stages"))), "Mine.every is of type .*; declare one of int,"),
    (mine(("pick", str, alma_jax.field("best", "", at_least=1))), "Mine.pick is of type str, which has no bounds"),
    (mine(("every", int)), "Mine.every has no default; declare it as alma_jax.field"),
    (mine(("every", int, alma_jax.field(0, "stages", at_least=1))), "Mine.every=0 should be at least 1."),
    (mine(("every", int, alma_jax.field("one", "stages"))), "Mine.every='one' should be a whole number."),
    (mine(defaults={"train.step": 3}), "Mine.defaults has the field 'train.step', .*; they have seed, dataset.name,"),
    (mine(defaults={"train.epochs": 0}), "Mine.defaults: train.epochs=0 should be at least 1."),
    (dataclasses.make_dataclass("Mine", [], bases=(alma_jax.Options,), frozen=True), "Mine.name has no default; write"),
    (type("Mine", (Fittest,), {"name": "mine"}), "Mine is not a dataclass; write @dataclasses.dataclass.frozen=True"),
    (dataclasses.make_dataclass("Mine", [("every", int)]), "Mine should be a frozen dataclass that inherits from"),
    ("fittest", "fittest should be a frozen dataclass that inherits from"),
])
@pytest.mark.usefixtures("forget")
def test_wrong_declarations_are_refused_when_a_learner_is_registered(cls, sentence):
  with pytest.raises(BadInput, match=sentence):
    alma_jax.register_learner(cls, make=print)


@pytest.mark.usefixtures("forget")
def test_a_registered_network_may_be_named():
  with pytest.raises(BadInput, match="model.name='small' is not one of mlp, vgg."):
    configs.parse(changed("sm", model__name="small"))
  for _ in range(2):  # a cell of a notebook, run twice
    alma_jax.register_model("small", print)
  assert configs.parse(changed("sm", model__name="small")).model.name == "small"
  with pytest.raises(BadInput, match=r"model.name='other' is not one of mlp, vgg, resnet, small\."):
    configs.parse(changed("sm", model__name="other"))


@pytest.mark.parametrize("kind", ["images", "language"])
def test_defaults_are_read_back_from_the_text_of_the_command_line(kind):
  tree = (configs.base("ff") if kind == "images" else configs.language("gmoe")).to_dict()
  for field, value in configs.flatten(tree).items():
    if field != "learner.name":
      assert configs.read_value(field, fields.text_of(value), tree) == value


def test_the_page_of_fields_is_up_to_date():
  page = CONFIGS.parent / "docs/fields.md"
  assert page.read_text() == document.markdown(), "run: python -m alma_jax.config.document > docs/fields.md"


def test_every_field_has_a_meaning_and_is_listed():
  listed = [document.text(), document.markdown()]
  for config, learners in ((schema.ImageConfig, learner_options.LEARNERS),
                           (schema.LanguageConfig, learner_options.TEXT_LEARNERS)):
    for options in learners.values():
      assert options.__doc__
      for path, each in schema.declared_fields(config, options).items():
        assert each.meaning, path
        if path != "learner.name":
          assert f"--config.{path}={fields.text_of(each.default)}  (" in listed[0]
          assert f"| `{path}` |" in listed[1]


def test_configs_and_help_need_neither_jax_nor_numpy():
  code = ("import sys\nfrom alma_jax import main\nfrom alma_jax import config\n"
          "config.parse(config.base())\nassert main.main(['--help']) == 0\n"
          "assert not {'jax', 'numpy'} & sys.modules.keys()")
  done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=CONFIGS.parent)
  assert done.returncode == 0, done.stderr
  assert "--config.learner.num_members=5  (int, at least 1)\n      number of models" in done.stdout


def test_a_text_is_read_by_the_declared_type():
  tree = changed("sm", train__learning_rate=1)  # as a config file may set it
  assert configs.parse(configs.overridden(tree, {"train.learning_rate": "0.5"})).train.learning_rate == 0.5
  tree = configs.language("sm").to_dict()
  tree["model"]["dropout"] = 0.1
  assert configs.parse(configs.overridden(tree, {"model.dropout": "0.1,0.2"})).model.dropout == (0.1, 0.2)


def test_a_field_that_a_config_file_leaves_out_may_be_given():
  tree = configs.base("sm").to_dict()
  del tree["log"], tree["checkpoint"]
  overrides = {"log.wandb": "mine", "log.progress": None, "log.tensorboard": "false", "log.label": "", "log.drift": "0",
               "log.lca": "0", "log.predictor": "true", "checkpoint.seconds": "1", "checkpoint.keep": "1",
               "checkpoint.keep_every": "0"}
  assert configs.parse(configs.overridden(tree, overrides)).checkpoint.seconds == 1.0


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


# Names of run folders hold the first 8 digits, and resuming compares all fields: the digests never change.
DIGESTS = {
    "digits.py:sm,authors": "digits-sm-dbbddb61cea0f13496047e8562c354d7deb95fb582dad4ba8380851a2e3c09f1",
    "digits.py:bagging": "digits-bagging-c894702d8806b4a58dca717e802f29de8587b4a25981b5a07c7cb9531b3d4bc3",
    "digits.py:ff,authors": "digits-ff-dd17bbb9bdf3b100f0e185eedcffaab9dde905509079c779be6deff7d632e9c2",
    "cifar.py:ens": "cifar10-ens-838f5ae3b4aa24bab49bc89cd06ee959d6297cc8a62356833c7565308b7433dc",
    "mnist.py:boosting,authors": "mnist-boosting-e5e9684841d175f995060b56ac9eb715ee2b2e67f6ae79f108ead2e1d6fde2b4",
    "mnist.py:umix": "mnist-umix-ed7b85e49e61aed2e0287b924f4e222b4ac24d55842205210891698dd6a4eed4",
    "folder.py:gmoe,authors": "folder_images-gmoe-95445defbf2572b77124e441e6c134fcbdcc422a7f1e520eb82ec24f23ae9ac5",
    "npz.py:hmoe,authors": "npz_data-hmoe-6046d0bcf1c6c1905c7561653c53715b933005a5ec38e1fad610c96176f3032b",
    "lm.py:sm,tiny": "tfds_tiny_shakespeare-sm-dd9edf8aafa37da41b0f55e5b5112e8a9870542778d440f21209107885cb260e",
    "lm.py:gens,large": "tfds_tiny_shakespeare-gens-fa34d404cb3871f0cd1e9a967a03ec66e158ebd2fd213da42002401b92230238",
    "lm.py:gmoe,base": "tfds_tiny_shakespeare-gmoe-cc28848584bde0cf985920a8eb2d2491472a5de97fc34aab82b02d2c525557c1",
}


@pytest.mark.parametrize("arg", DIGESTS)
def test_presets_keep_their_digests_and_default_folders(arg):
  file, _, learner = arg.partition(":")
  config = configs.parse(configs.load_file(str(CONFIGS / file), learner))
  folder, _, digest = DIGESTS[arg].rpartition("-")
  assert configs.digest(config) == digest
  assert configs.default_workdir(config) == f"runs/{folder}-{digest[:8]}"


def parsed(*args):
  return main._parse(args)[1]


@pytest.fixture
def run_command(monkeypatch):
  """Runs the command line with the outcome of experiment.run; (exit code, the message to the other processes)."""
  def run(outcome):
    left = []
    monkeypatch.setattr(main, "_watch_signals", lambda: (lambda: False, lambda: 129))
    monkeypatch.setattr(commands, "quiet", lambda: None)
    monkeypatch.setattr(runtime, "setup", lambda *unused, **named: None)
    monkeypatch.setattr(experiment, "run", outcome)
    monkeypatch.setattr(main, "_report", lambda run: "CER 1")
    monkeypatch.setattr(peers, "leave", lambda *news: left.append(news))
    return commands.exit_code(lambda: main._run(*main._parse([]))), left

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


def test_fields_without_a_value():
  config = parsed("--config.deterministic", "--noconfig.log.tensorboard", "--noconfig.log.progress", "--config.seed=3")
  assert (config.deterministic, config.log.tensorboard, config.log.progress, config.seed) == (True, False, False, 3)


def test_numbers_of_numpy_are_numbers():
  template = configs.base("sm")
  template.train.epochs, template.train.learning_rate = np.int64(1), np.float32(0.5)
  config = configs.parse(template)
  assert (config.train.epochs, config.train.learning_rate) == (1, 0.5)
  assert type(config.train.epochs) is int


def test_runs_of_version_0_1_keep_their_identity():
  config = configs.parse(configs.base("sm"))
  old = configs.to_dict(config)
  del old["dataset"]["image_size"]
  assert configs.differences(old, config) == []
  assert configs.differences(configs.to_dict(config), config) == []
  assert configs.parse(configs.completed(old)) == config
  assert "dataset.image_size" not in configs.identity(config)  # from which the default folder's name is made
  tree = configs.to_dict(config)
  tree["dataset"] |= dict(name="folder:x", data_dir="", image_size=32)
  resized = configs.parse(tree)
  assert configs.identity(resized)["dataset.image_size"] == 32
  tree["dataset"] = dict(name="folder:x", data_dir="")
  assert configs.differences(tree, resized) == ["dataset.image_size (0 there, 32 here)"]
  text = configs.to_dict(configs.parse(configs.language("sm")))
  assert configs.completed(text) == text
