"""Run folders and predictors that another version has written are refused in one sentence."""
import json
import shutil

import pytest
from reports import change
from runs import small_config

import alma_jax
from alma_jax import cli
from alma_jax import config as configs
from alma_jax.monitor import board
from alma_jax.runs import exporting
from alma_jax.sweeps import Sweep, jobs, states

REFUSAL = ("{} holds a run of alma_jax 0.1 (config.json: format None), but this version reads only format 3; "
           "run it again, with --overwrite or in another folder, or use the version that wrote it.")


@pytest.fixture(scope="module")
def old(tmp_path_factory):
  """A folder of two finished runs; that of 0.1 has written `old`."""
  root = tmp_path_factory.mktemp("formats")
  for name in ("new", "old"):
    alma_jax.run(config(), root / "runs" / name)
  exporting.export(root / "runs/new", out=root / "predictor")
  change(root / "runs/old/config.json", format=None, alma_jax_version="0.1")
  return root


def config():
  return small_config(dataset__name="digits", log__predictor=True)


def said(capsys, *args):
  """(exit code, standard output, standard error) of a command."""
  code = cli.main([str(arg) for arg in args])
  out, err = capsys.readouterr()
  return code, out, err


def test_an_old_run_does_not_go_on_and_can_be_overwritten(tmp_path):
  alma_jax.run(config(), tmp_path)
  change(tmp_path / "config.json", format=None, alma_jax_version="0.1")
  with pytest.raises(alma_jax.BadInput) as refused:
    alma_jax.run(config(), tmp_path)
  assert str(refused.value) == REFUSAL.format(tmp_path)
  alma_jax.run(config(), tmp_path, overwrite=True)
  assert json.loads((tmp_path / "config.json").read_text())["format"] == 3


@pytest.mark.parametrize("command", [
    ["predict", "--workdir={}", "x.npz"], ["evaluate", "--workdir={}", "--data=digits"], ["export", "--workdir={}"],
    ["serve", "--workdir={}"], ["compare", "{}", "{}"], ["status", "{}"], ["report", "{}"]])
def test_commands_refuse_an_old_run(old, capsys, command):
  code, out, err = said(capsys, *(arg.format(old / "runs/old") for arg in command))
  assert (code, out, err.count("\n")) == (2, "", 1)
  assert REFUSAL.format(old / "runs/old") in err


def test_commands_on_many_runs_name_an_old_one_in_a_line(old, capsys):
  for command, expected in (("status", 3), ("report", 0)):
    code, out, err = said(capsys, command, old / "runs")
    assert code == expected
    assert str(old / "runs/new") in out or command == "report"
    assert [line for line in err.splitlines() if REFUSAL.format(old / "runs/old") in line]
  refused, new = board.Board([str(old / "runs")]).runs()
  assert "problem" not in new
  assert refused["problem"] == REFUSAL.format(old / "runs/old")


def test_a_sweep_refuses_the_folder_of_an_old_run(old):
  (job,) = jobs.make(Sweep("digits", [{"learner": "sm"}]), old / "runs")
  assert states.state(job._replace(workdir=old / "runs/old"), {}).line == REFUSAL.format(old / "runs/old")


@pytest.mark.parametrize(("changes", "words"), [
    ({"format": None}, "is of another version of alma_jax: it has format None, and this version reads format 1)"),
    ({"classes": 0}, "has classes=0, which should be a whole number above 0)"),
    ({"class_names": ["0"]}, "has class_names=['0'], which should be 10 names)"),
    ({"example_shape": [8, 8]}, "has example_shape=[8, 8], which should be [D] or [H, W, C])"),
    ({"dtype": "float64"}, "has dtype='float64', which should be uint8 or float32)"),
    ({"normalization": {"mean": [0.0]}},
     "has normalization={'mean': [0.0]}, which should be a mean and a std for each column, channel or pixel)"),
    ({"task": {"number": 1}}, "has task={'number': 1}, which should be the number and the name of a task)"),
    ({"sha256": None}, "has sha256=None, which should be the SHA-256 of each file)"),
    ({"vocabulary": 9}, "has sequence_length=None, which should be a whole number above 0)"),
    ({"example_shape": [64], "normalization": None},
     "says that inputs are uint8 [64], but the program takes uint8 [8, 8, 1])")])
def test_the_description_of_a_predictor_is_checked(old, tmp_path, capsys, changes, words):
  place = shutil.copytree(old / "predictor", tmp_path / "predictor")
  change(place / "predictor.json", **changes)
  code, out, err = said(capsys, "predict", f"--workdir={place}", "x.npz")
  assert (code, out, err.count("\n")) == (2, "", 1)
  assert f"predictor.json {words}; " in err


def test_the_format_takes_no_part_in_the_identity_of_a_run(old):
  tree = json.loads((old / "runs/new/config.json").read_text())
  assert configs.digest(tree) == configs.digest(tree | {"format": 3})


def test_a_field_that_was_added_since_does_not_part_a_run_from_its_folder(tmp_path):
  with pytest.raises(alma_jax.Stopped):
    alma_jax.run(config(), tmp_path, should_stop=lambda: True)
  tree = json.loads((tmp_path / "config.json").read_text())
  del tree["train"]["shift"]
  (tmp_path / "config.json").write_text(json.dumps(tree))
  assert alma_jax.run(config(), tmp_path).summary["num_megabatches"] == 4
  assert configs.changed_since(configs.identity(tree), configs.parse(config()), "there", "here") == []
  moved = configs.parse(small_config(dataset__name="digits", train__shift=1))
  assert configs.changed_since(configs.identity(tree), moved, "there", "here") == ["train.shift (absent there, 1 here)"]
