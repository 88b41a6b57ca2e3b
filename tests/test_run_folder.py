"""Run folders that were changed, are incomplete or cannot be written: one sentence, and nothing is lost."""
import contextlib
import errno
import io
import json
import os
import pathlib
import shutil
import sys
import time
import types

import orbax.checkpoint as ocp
import pytest
import tqdm
from matplotlib.figure import Figure
from reports import change
from runs import Closed, alma, assert_same_run, interrupted, one_step_a_dispatch, slow, small_config
from tensorboardX.record_writer import RecordWriter

import alma_jax
from alma_jax import commands, errors, export, messages, sweep
from alma_jax import config as configs
from alma_jax.reports import page
from alma_jax.runs import plots, progress
from alma_jax.store import checkpoint, run_files, run_folder


def edit(path, **changes):
  tree = json.loads(path.read_text())
  for field, value in changes.items():
    *sections, name = field.split("__")
    part = tree
    for section in sections:
      part = part[section]
    part[name] = value
  path.write_text(json.dumps(tree))


def test_an_edited_config_is_noticed_by_its_checkpoints(tmp_path, arrays):
  assert interrupted(small_config(train__epochs=6, checkpoint__seconds=0.0), tmp_path, 4, data=arrays)
  edit(tmp_path / "config.json", train__epochs=5)
  with pytest.raises(alma_jax.BadInput, match=r"changed after .*: train.epochs \(6 in the checkpoint, 5 now\)"):
    alma_jax.run(small_config(train__epochs=5, checkpoint__seconds=0.0), tmp_path, data=arrays)
  assert json.loads((tmp_path / "config.json").read_text())["train"]["epochs"] == 5  # nothing was changed


def test_an_edited_config_of_a_finished_run_is_noticed(tmp_path, arrays):
  alma_jax.run(small_config(), tmp_path, data=arrays)
  edit(tmp_path / "config.json", train__epochs=5)
  for use in (lambda: alma_jax.run(small_config(train__epochs=5), tmp_path, data=arrays),
              lambda: alma_jax.load_run(tmp_path)):
    with pytest.raises(alma_jax.BadInput, match="config.json was changed after the run had finished"):
      use()
  edit(tmp_path / "config.json", train__epochs=2, checkpoint__seconds=1.0)  # the latter does not make it another run
  assert alma_jax.load_run(tmp_path).predict(arrays[2]).shape == (30, 3)


@pytest.mark.slow
def test_lost_checkpoints_are_an_error(tmp_path, arrays, capfd):
  config = small_config(train__epochs=6, checkpoint__seconds=0.0, stream__waiting_time=1)
  alma_jax.run(config, tmp_path / "whole", data=arrays)
  assert interrupted(config, tmp_path / "cut", 4, data=arrays)
  shutil.move(tmp_path / "cut" / "checkpoints", tmp_path / "away")
  before = (tmp_path / "cut" / "metrics.jsonl").read_text()
  with pytest.raises(alma_jax.BadInput, match="its folder checkpoints has disappeared"):
    alma_jax.run(config, tmp_path / "cut", data=arrays)
  assert (tmp_path / "cut" / "metrics.jsonl").read_text() == before
  (tmp_path / "cut" / "checkpoints").mkdir()
  capfd.readouterr()
  shutil.rmtree(tmp_path / "whole" / "checkpoints")
  with pytest.raises(alma_jax.BadInput, match="whole lacks its folder checkpoints, .* restore it"):
    alma_jax.load_run(tmp_path / "whole").predict(arrays[2])
  alma_jax.run(config, tmp_path / "cut", data=arrays)
  assert "no checkpoint has been saved in" in capfd.readouterr().err
  assert_same_run(tmp_path / "whole", tmp_path / "cut")


def test_an_overwrite_that_was_killed_leaves_a_run_that_goes_on(tmp_path, arrays):
  config = small_config()
  alma_jax.run(config, tmp_path / "whole", data=arrays)
  ours = [name for name in run_files.WRITTEN if (tmp_path / "whole" / name).exists()]
  assert ours[-1] == "config.json"
  for num in range(1, len(ours)):
    shutil.copytree(tmp_path / "whole", tmp_path / "cut")
    for name in ours[:num]:
      path = tmp_path / "cut" / name
      shutil.rmtree(path) if path.is_dir() else path.unlink()
    alma_jax.run(config, tmp_path / "cut", data=arrays)
    assert_same_run(tmp_path / "whole", tmp_path / "cut")
    shutil.rmtree(tmp_path / "cut")


@pytest.mark.parametrize("path", ["gs://b/run", "s3:/b/run", pathlib.Path("gs://b/run")])
def test_addresses_are_no_folders_for_what_writes_many_files(tmp_path, monkeypatch, capsys, path):
  monkeypatch.chdir(tmp_path)
  (tmp_path / "a.py").write_text("def get_sweep():\n  return []\n")
  for use in (lambda: run_files.local(path), lambda: export.export("run", out=path),
              lambda: page.write([], [], path)):
    with pytest.raises(alma_jax.BadInput, match=r"'(gs|s3)://?b/run' is an address, not a folder"):
      use()
  assert sweep.main(["--config=a.py", f"--workdir={path}"]) == 2
  assert "is an address, not a folder" in capsys.readouterr().err
  assert not [entry for entry in tmp_path.iterdir() if entry.name != "a.py"]
  for folder in ("C:/run", "C:\\run", "runs/a:/b", "~/a:b"):
    run_files.local(folder)


def test_a_damaged_summary_is_written_again_once_deleted(tmp_path, arrays):
  first = alma_jax.run(small_config(), tmp_path, data=arrays)
  for summary in ("{}", "[]", '{"cer": "2.4"}', '{"cer": 2.4}', "not JSON"):
    (tmp_path / "summary.json").write_text(summary)
    for use in (lambda: alma_jax.run(small_config(), tmp_path, data=arrays), lambda: alma_jax.load_run(tmp_path)):
      with pytest.raises(alma_jax.BadInput, match="summary.json"):
        use()
  (tmp_path / "summary.json").unlink()
  again = alma_jax.run(small_config(), tmp_path, data=arrays).summary
  assert again["cer"] == first.summary["cer"]


def test_what_was_changed_in_a_finished_run_is_written_again(tmp_path, arrays):
  alma_jax.run(small_config(), tmp_path, data=arrays)
  path, summary = tmp_path / "metrics.jsonl", tmp_path / "summary.json"
  lines, results = path.read_bytes(), summary.read_bytes()
  path.unlink()
  with pytest.raises(alma_jax.BadInput, match="metrics.jsonl has 0 of 4 mega-batches, although .*; restore it, or let"):
    alma_jax.load_run(tmp_path)
  for changed in (None, lines.replace(b'"error": 0', b'"error": 1', 1), lines[:-1], lines + lines):
    if changed is not None:
      path.write_bytes(changed)
    with pytest.warns(UserWarning, match="metrics.jsonl was not what the run has written, and was written again"):
      alma_jax.run(small_config(), tmp_path, data=arrays)
    assert path.read_bytes() == lines
  change(summary, cer=0.5)
  with pytest.warns(UserWarning, match="summary.json was not what the run has written"):
    assert alma_jax.run(small_config(), tmp_path, data=arrays).summary["cer"] != 0.5
  assert summary.read_bytes() == results
  change(summary, chance=None)  # it lacks a result
  with pytest.warns(UserWarning, match="summary.json was not what the run has written"):
    assert alma_jax.run(small_config(), tmp_path, data=arrays).summary == json.loads(results)
  shutil.rmtree(tmp_path / "checkpoints")  # nothing to compare with
  change(summary, cer=0.5)
  assert alma_jax.run(small_config(), tmp_path, data=arrays).summary["cer"] == 0.5


def test_changed_lines_are_noticed_before_training(tmp_path, arrays):
  config, path = small_config(train__epochs=6, checkpoint__seconds=0.0), tmp_path / "train.jsonl"
  assert interrupted(config, tmp_path, 5, data=arrays)
  text = path.read_bytes()
  num = text.count(b"\n")
  changed = r"line.* of .*train.jsonl is not what the run has written"
  for other, sentence in ((text.replace(b'"epoch"', b"epoch", 1), changed),
                          (text.replace(b'"epoch": 2', b'"epoch": 3', 1), changed),
                          (text[:-1], f"has {num - 1} whole lines, but the checkpoint covers {num};")):
    assert other != text
    path.write_bytes(other)
    with pytest.raises(alma_jax.BadInput, match=sentence):
      alma_jax.run(config, tmp_path, data=arrays)
  path.write_bytes(text)
  alma_jax.run(config, tmp_path, data=arrays)


@pytest.mark.parametrize(("old", "new"), [(b'"error": 0', b'"error": 1'), (b'"t"', b"\xff")])
def test_changed_metrics_are_written_again_from_the_checkpoint(tmp_path, arrays, old, new):
  config, path = small_config(train__epochs=6, checkpoint__seconds=0.0), tmp_path / "metrics.jsonl"
  assert interrupted(config, tmp_path, 5, data=arrays)
  text = path.read_bytes()
  path.write_bytes(text.replace(old, new, 1))
  with pytest.warns(UserWarning, match="metrics.jsonl was not what the run has written, and was written again"):
    alma_jax.run(config, tmp_path, data=arrays)
  assert path.read_bytes().startswith(text)


def test_a_finished_run_on_a_read_only_disk_shows_its_summary(tmp_path, arrays, monkeypatch):
  first = alma_jax.run(small_config(), tmp_path / "done", data=arrays)
  assert interrupted(small_config(train__epochs=6), tmp_path / "begun", 2, data=arrays)

  def refuse(self, *args, **kwargs):
    raise OSError(errno.EROFS, os.strerror(errno.EROFS))

  monkeypatch.setattr(run_folder.filelock.FileLock, "acquire", refuse)
  monkeypatch.setattr(run_folder, "write_bytes", refuse)
  monkeypatch.setattr(run_files, "write_bytes", refuse)
  again = alma_jax.run(small_config(), tmp_path / "done", data=arrays)
  assert again.summary == first.summary
  with pytest.raises(alma_jax.BadInput, match="differs in seed"):
    alma_jax.run(small_config(seed=1), tmp_path / "done", data=arrays)
  with pytest.raises(alma_jax.BadInput, match="done cannot be written, which --overwrite needs"):
    alma_jax.run(small_config(seed=1), tmp_path / "done", data=arrays, overwrite=True)
  with pytest.raises(alma_jax.BadInput, match="cannot be made or written: Read-only file system"):
    alma_jax.run(small_config(train__epochs=6), tmp_path / "begun", data=arrays)


def test_a_folder_that_another_process_writes_stays_as_it_is(tmp_path):
  identity = run_folder.Identity(configs.parse(small_config()), {"data_fingerprint": "a"}, {}, "the data")
  with run_folder.RunFolder(tmp_path, writes=False) as folder:
    folder.claim(identity, overwrite=False)
    folder.write_config()
    folder.write({"curve.png": b"a"})
    folder.publish("", 0, {"predictor.json": b"{}"})
    folder.check_and_cut("train.jsonl", 0, "")
    folder.append("train.jsonl", {"stage": 0})
    folder.mend("metrics.jsonl", b"")
    folder.note("compiling")
    folder.sync()
  assert not list(tmp_path.iterdir())


def test_other_errors_are_not_disk_problems():
  def raised(error, over, suppress=False):
    try:
      try:
        raise over
      except Exception as cause:
        if suppress:
          raise error from None
        raise error from cause
    except Exception as found:
      return errors.disk_problem(found)

  full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
  assert raised(KeyError("a"), full) == "no space left on device"
  assert raised(KeyError("a"), full, suppress=True) is None
  for number in (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EIO):
    text = os.strerror(number)
    assert errors.disk_problem(OSError(number, text)) == text.lower()
    assert errors.disk_problem(ValueError(f"INTERNAL: {text}")) == (
        None if number in (errno.EACCES, errno.EIO) else text.lower())


def test_a_lack_of_memory_gets_one_sentence(tmp_path, arrays, monkeypatch):
  no_memory = "run gets no more memory. What was saved before is kept"
  for error, sentence in (
      (MemoryError(), no_memory), (ValueError("RESOURCE_EXHAUSTED: Out of memory allocating"), no_memory),
      (OSError(errno.ENOMEM, os.strerror(errno.ENOMEM)), no_memory),
      (RuntimeError("can't start new thread"), "run gets no more threads. What was saved before is kept"),
      (ValueError("Invalid key: a"), r"run could not write a checkpoint \(Invalid key: a\)")):  # tensorstore's, without
    def fail(*unused, error=error, **named):
      raise error

    with monkeypatch.context() as patch:
      patch.setattr(ocp.CheckpointManager, "save", fail)
      with pytest.raises(alma_jax.Unsaved, match=sentence):
        alma_jax.run(small_config(), tmp_path / "run", data=arrays)
  assert alma_jax.run(small_config(), tmp_path / "run", data=arrays).summary


def test_a_picture_without_memory_is_a_lack_of_memory(monkeypatch):
  figure = Figure()

  def fail(*unused, **named):
    raise OSError("codec configuration error when writing image file")

  monkeypatch.setattr(figure, "savefig", fail)  # what Pillow raises if its compressor gets no memory
  with pytest.raises(MemoryError):
    plots.png(figure)
  monkeypatch.setattr(figure, "savefig", lambda *unused, **named: pathlib.Path("/no/such/font").read_bytes())
  with pytest.raises(FileNotFoundError):
    plots.png(figure)


def test_a_lack_of_memory_outside_of_a_run_gets_one_sentence(capsys):
  def fail():
    raise MemoryError("full")

  assert commands.exit_code(fail) == 1
  assert capsys.readouterr().err == "error: this process gets no more memory (full).\n"


@pytest.mark.parametrize("where", ["scalars", slow("lines"), slow("checkpoint")])
def test_a_full_disk_gets_one_sentence_and_loses_nothing(tmp_path, arrays, monkeypatch, where):
  config = small_config(train__epochs=3, train__batch_size=16, log__tensorboard=True)
  alma_jax.run(config, tmp_path / "whole", data=arrays)
  one_step_a_dispatch(monkeypatch)
  config.checkpoint.seconds = 0.0
  left = [6]

  def full(method):
    def write(*args, **kwargs):
      left[0] -= 1
      if left[0] < 0 and where != "checkpoint":
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
      if left[0] < 0:
        raise ValueError("RESOURCE_EXHAUSTED: Failed writing: No space left on device")
      return method(*args, **kwargs)
    return write

  with monkeypatch.context() as patched:
    if where == "lines":
      patched.setattr(run_folder.RunFolder, "append", full(run_folder.RunFolder.append))
    elif where == "scalars":
      patched.setattr(RecordWriter, "write", full(RecordWriter.write))
    else:
      patched.setattr(checkpoint.Checkpoints, "save", full(checkpoint.Checkpoints.save))
    with pytest.raises(alma_jax.Unsaved, match=r"cut cannot be written: no space left on device\. What was saved"):
      alma_jax.run(config, tmp_path / "cut", data=arrays)
  config.checkpoint.seconds = 30.0
  alma_jax.run(config, tmp_path / "cut", data=arrays)
  assert_same_run(tmp_path / "whole", tmp_path / "cut")


def test_a_run_folder_that_is_moved_while_the_run_writes(tmp_path, arrays, monkeypatch):
  config = small_config(train__epochs=3, train__batch_size=16)
  alma_jax.run(config, tmp_path / "whole", data=arrays)
  one_step_a_dispatch(monkeypatch)
  config.checkpoint.seconds, left = 0.0, [6]

  def moved():
    left[0] -= 1
    if not left[0]:
      (tmp_path / "run").rename(tmp_path / "moved")
    return False

  with pytest.raises(alma_jax.Unsaved, match="run was moved or deleted, .* goes on from its last checkpoint"):
    alma_jax.run(config, tmp_path / "run", data=arrays, should_stop=moved)
  config.checkpoint.seconds = 30.0
  alma_jax.run(config, tmp_path / "moved", data=arrays)
  assert_same_run(tmp_path / "whole", tmp_path / "moved")


def test_without_a_terminal_a_stage_is_a_line(tmp_path, arrays, capfd, monkeypatch):
  monkeypatch.delitem(sys.modules, "ipykernel", raising=False)  # in a notebook there is a bar
  phases = []
  note = lambda name, *unused, **named: phases.append(name) or contextlib.nullcontext()
  monkeypatch.setattr(progress, "sign", note)
  monkeypatch.setattr(messages, "sign", note)
  alma_jax.run(small_config(log__progress=True), tmp_path, data=arrays)
  stages = [line for line in capfd.readouterr().err.splitlines() if line.startswith("stage ")]
  assert [line[:12] for line in stages] == ["stage 1 of 2", "stage 2 of 2"]
  assert "left" in stages[0]
  assert "left" not in stages[1]
  assert {"loading the data", "compiling", "saving", "evaluating"} <= set(phases)


def begun(samples, stage):
  """A progress display of stages of so many samples, in a session that begins in a stage."""
  shown = progress.Progress(True, samples)
  shown.begin(None, types.SimpleNamespace(stage=stage))
  return shown


def test_a_run_goes_on_if_stderr_is_closed(tmp_path, arrays, monkeypatch):
  monkeypatch.delitem(sys.modules, "ipykernel", raising=False)
  for number, is_terminal in ((errno.EIO, True), (errno.EPIPE, False), (errno.ENOSPC, False)):
    with monkeypatch.context() as patched:
      patched.setattr(sys, "stderr", Closed(number, is_terminal))
      alma_jax.run(small_config(log__progress=True), tmp_path / str(number), data=arrays)
  bar = begun([10], 0)
  with monkeypatch.context() as patched:  # closed while it is shown
    patched.setattr(bar, "_bar", tqdm.tqdm(total=10, file=io.StringIO(), mininterval=0, disable=False))
    for name in ("refresh", "update", "close"):
      patched.setattr(bar._bar, name, lambda *unused, **named: Closed().write(""))
    bar.steps(1, 1.0, 0, 1, 10)
    with bar.phase("saving"):
      bar.line(dict(stage=0, error=0.1, seconds=1.0, updated=True), None, None)
    bar.close()


def test_time_left_after_a_resume_inside_a_stage(capfd, monkeypatch):
  monkeypatch.delitem(sys.modules, "ipykernel", raising=False)
  now = [100.0]
  monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
  shown = begun([50, 50, 50], 1)
  shown.skip(40)
  now[0] += 10.0  # for the 10 samples that were left
  shown.line(dict(stage=1, error=0.1, seconds=10.0, updated=True), None, None)
  assert capfd.readouterr().err == "stage 2 of 3: test error 0.1000, 10 s; about 50 s left\n"


def test_a_session_that_has_trained_next_to_nothing_does_not_guess_the_time_left(capfd, monkeypatch):
  monkeypatch.delitem(sys.modules, "ipykernel", raising=False)
  now = [100.0]
  monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
  shown = begun([100] * 4, 1)
  shown.skip(95)
  now[0] += 2.0  # for 5 samples and an evaluation
  shown.line(dict(stage=1, error=0.1, seconds=2.0, updated=True), None, None)
  assert "left" not in capfd.readouterr().err
  with shown.phase(progress.COMPILING):
    now[0] += 60.0
  now[0] += 40.0
  shown.line(dict(stage=2, error=0.1, seconds=10.0, updated=True), None, None)
  assert "; about 40 s left" in capfd.readouterr().err  # 42 s for 105 samples, without compiling


def test_a_training_that_takes_long_says_how_much_is_done_and_left(capfd, monkeypatch):
  monkeypatch.delitem(sys.modules, "ipykernel", raising=False)
  monkeypatch.setattr(messages, "_LONG", 0.001)
  monkeypatch.setattr(messages, "_AGAIN", 0.01)
  now = [100.0]
  monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
  shown = begun([1600, 3200], 0)
  with shown.training(0):
    for done in (20, 40, 60, 80):  # dispatched, while 0, 20, 40 and 60 are through
      assert "left" not in getattr(shown._bar, "bar_format", "")
      shown.steps(20, 2.0, 0, done, 800)
      now[0] += 10.0
    time.sleep(0.3)
  assert capfd.readouterr().err.splitlines()[-1] == (  # 720 and 2320 steps of 0.5 s are left
      "training stage 1 of 2, for 40 s so far: step 80 of 800, about 6 min left in this stage, 19 min in the run")
  assert shown._bar.bar_format.endswith("| 6 min left, run 19 min")
  with shown.training(1):
    shown.steps(20, 2.0, 1, 20, 1600)
  assert "left" not in shown._bar.bar_format


@pytest.mark.parametrize(("path", "sentence"), [
    ("x" * 300, "a name of 300 bytes; use at most 255"),
    ("é" * 200, "a name of 400 bytes; use at most 255"),
    ("/".join(["d" * 200] * 25), "bytes, of which at most 3896 are allowed")])
def test_paths_that_are_too_long_get_one_sentence(tmp_path, path, sentence):
  """Before anything is computed, wherever a command writes; where it only reads, the system says so."""
  long, data = tmp_path / path, tmp_path / "x.npz"
  for name, *args in [("main", "--config=configs/digits.py:sm", f"--workdir={long}"),
                      ("export", f"--workdir={long}"), ("report", long), ("status", long), ("compare", long, long),
                      ("report", tmp_path, f"--out={long}"),
                      ("sweep", "--config=configs/sweeps/digits.py", "--dry_run", f"--workdir={long}"),
                      ("predict", f"--workdir={tmp_path}", data, f"--out={long}.csv"),
                      ("evaluate", f"--workdir={tmp_path}", f"--data={data}", f"--out={long}.json")]:
    done = alma(name, *args)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), (name, done.stderr)
    if name not in ("predict", "evaluate") and args[0] != tmp_path:
      assert sentence in done.stderr
  for kind in ("npz", "folder", "live", "text", "tasks"):
    config = {"text": "lm.py:sm,tiny", "tasks": "tasks.py:independent"}.get(kind, f"{kind}.py:sm")
    done = alma("main", f"--config=configs/{config}", f"--config.dataset.name={kind}:{long}")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), (kind, done.stderr)


def test_the_default_name_of_a_run_folder_is_never_too_long():
  config = configs.parse(small_config(dataset__name="npz:" + "x" * 230 + ".npz"))
  folder = configs.default_workdir(config).removeprefix("runs/")
  assert len(folder) == len("npz_" + "x" * 230 + "-sm-12345678")
  shortened = [configs.default_workdir(configs.parse(small_config(dataset__name="npz:" + "x" * num + ".npz")))
               for num in (300, 301)]
  assert [len(folder.removeprefix("runs/")) for folder in shortened] == 2 * [100 + len("-sm-12345678")]
  assert len({*shortened}) == 2


def test_configs_that_differ_have_run_folders_of_their_own():
  names = {"model__name": "vgg", "train__optimizer": "adam", "stream__schedule": "geometric", "learner__average": 0.5,
           "stream__memory_policy": "window", "dataset__name": "npz:b/c.npz"}
  configs_ = [small_config(**{"stream__replay_share": 0.5, "dataset__name": "npz:b_c.npz"} | {name: value})
              for name, value in [("seed", 0), *names.items()]]
  assert len({configs.default_workdir(configs.parse(config)) for config in configs_}) == len(configs_)


def test_what_takes_long_is_named(capfd, monkeypatch):
  monkeypatch.setattr(messages, "_LONG", 0.01)
  with messages.sign("compiling"):
    time.sleep(0.5)
  said = capfd.readouterr().err.splitlines()
  assert said[0] == "compiling"
  assert said[1].startswith("compiling took 0.")
  monkeypatch.setattr(messages, "_AGAIN", 0.01)
  heard = []
  with messages.heard(lambda name, seconds: heard.append(name)), messages.sign("waiting", shown=False):
    while not heard:
      time.sleep(0.01)
    with messages.sign("reading"):
      while heard[-1:] != ["reading"]:
        time.sleep(0.01)
      time.sleep(0.5)
    time.sleep(0.1)
  assert heard == ["waiting", "reading", "waiting", ""]
  first, *again, last = capfd.readouterr().err.splitlines()
  assert (first, last[:13]) == ("reading", "reading took ")
  assert all(line.startswith("reading, for ") and line.endswith(" so far") for line in again)
  assert again
  with messages.sign("training", ends=False):
    time.sleep(0.5)
  said = capfd.readouterr().err.splitlines()
  assert said
  assert all(line.startswith("training, for ") for line in said)
  monkeypatch.setattr(messages, "_LONG", 60.0)
  with messages.sign("saving"):
    pass
  assert not capfd.readouterr().err


def test_the_training_of_a_stage_that_takes_long_is_named(tmp_path, arrays, monkeypatch):
  one_step_a_dispatch(monkeypatch)
  monkeypatch.setattr(messages, "_LONG", 0.001)
  heard = []
  with messages.heard(lambda name, seconds: heard.append(name)):
    alma_jax.run(small_config(train__epochs=20, train__batch_size=4), tmp_path, data=arrays)
  assert {"training stage 1 of 2", "training stage 2 of 2"} <= {*heard}


def test_resuming_counts_stages_and_epochs_from_one(tmp_path, arrays, capfd, monkeypatch):
  one_step_a_dispatch(monkeypatch)
  config = small_config(train__epochs=6, train__batch_size=16, checkpoint__seconds=1e9)  # 4 steps an epoch
  skipped = []
  monkeypatch.setattr(progress.Progress, "skip", lambda self, samples: skipped.append(samples))
  assert interrupted(config, tmp_path, 24 + 9, data=arrays)  # in the third epoch of the second stage
  assert interrupted(config, tmp_path, 0, data=arrays)
  assert "in stage 2 of 2, after epoch 2\n" in capfd.readouterr().err
  assert max(skipped) == 6 * 54 * 9 // 24  # of 6 epochs of 54 samples each, 9 of 24 dispatches
