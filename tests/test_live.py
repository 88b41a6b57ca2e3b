"""Live streams of images: the run is that of an offline stream of the same parts, whatever happens on the way."""
import base64
import dataclasses
import io
import json
import os
import re
import time
import tracemalloc
import zlib

import numpy as np
import pyarrow
import pytest
from matplotlib import figure, patches
from PIL import Image
from pyarrow import parquet
from runs import alma, interrupted, launch, lines, slow, small_config

import alma_jax
from alma_jax import config as configs
from alma_jax import keys, messages
from alma_jax.data import datasets, examples, feed, inbox, unpacking
from alma_jax.errors import BadInput
from alma_jax.monitor import board, view
from alma_jax.protocols import drift
from alma_jax.runs import listeners, plots, settings
from alma_jax.store import metrics, run_files

CURVE = plots.curve  # other tests draw none


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
  monkeypatch.setattr(feed, "_POLL_SECONDS", 0.01)


def live_config(folder, learner="sm", **changes):
  changes = {"stream__num_megabatches": 0, "dataset__name": f"live:{folder}", **changes}
  return small_config(learner, **changes)


def drop(folder, t, x, y, name=None):
  """Makes the arrays an entry of the stream."""
  path = folder / "stream" / (name or f"{t:03d}.npz")
  np.savez(path.with_name(f".{path.name}"), x=x, y=y)  # numpy adds no further suffix
  path.with_name(f".{path.name}").rename(path)
  old = path.stat().st_mtime - 100
  os.utime(path, (old, old))


class Parts:
  """The parts of an offline stream, as entries whose examples a live stream puts in the same order."""

  def __init__(self, config, data):
    self._megabatches, self._data = settings.prepare(configs.parse(config), data).protocol.source.megabatches, data

  def drop(self, folder, t):
    part = np.concatenate(self._megabatches.part(t))
    order = keys.rng(0, keys.STREAM, t).permutation(len(part))
    drop(folder, t, *(array[part][np.argsort(order)] for array in self._data[:2]))


def make_folder(path, data=None):
  (path / "stream").mkdir(parents=True)
  if data is not None:
    np.savez(path / "test.npz", x=data[2], y=data[3])
  return path


def assert_same_results(first, second):
  for name in ("metrics.jsonl", "train.jsonl"):
    assert lines(first, name) == lines(second, name)
  found = [json.loads((path / "summary.json").read_text()) for path in (first, second)]
  clean = [{key: value for key, value in summary.items() if not key.endswith("seconds") and key != "config_sha256"}
           for summary in found]
  assert clean[0] == clean[1]


def rejected(run):
  return {line["name"]: line["reason"] for line in lines(run, "rejected.jsonl")}


def notices(run):
  return [(line["notice"], line["name"]) for line in lines(run, "notices.jsonl")]


# ---------------------------------------------------------------- equal to the offline run


@pytest.mark.parametrize(("learner", "changes"), [
    ("sm", {}), slow("anytime", {"train__steps": 10, "model__width": 8, "stream__memory_size": 40}),
    slow("hmoe", {"stream__replay": 0.5}),
    # The room for experts decides how gmoe rounds, and follows from the number of stages.
    slow("gmoe", {"model__num_experts": 2, "stream__num_megabatches": 4})])
def test_a_live_run_equals_the_offline_run_over_the_same_parts(tmp_path, arrays, learner, changes):
  """As that of gens in test_normalization.py."""
  offline = small_config(learner, **changes)
  alma_jax.run(offline, tmp_path / "offline", data=arrays)
  folder, parts = make_folder(tmp_path / "live", arrays), Parts(offline, arrays)
  for t in range(1, 5):
    parts.drop(folder, t)
  (folder / "end").touch()
  config = live_config(folder, learner, **changes)
  alma_jax.run(config, tmp_path / "whole")
  assert_same_results(tmp_path / "offline", tmp_path / "whole")


@pytest.mark.parametrize(("waiting_time", "schedule"), [(3, "every"), slow(1, "geometric")])
def test_results_do_not_depend_on_when_entries_arrive(tmp_path, arrays, waiting_time, schedule):
  """Entries arrive one by one between stops; the end becomes known last, when a mega-batch still waits for training."""
  changes = {"stream__waiting_time": waiting_time, "stream__schedule": schedule, "stream__replay": 0.5}
  offline = small_config("sm", **changes)
  alma_jax.run(offline, tmp_path / "offline", data=arrays)
  folder, parts = make_folder(tmp_path / "live", arrays), Parts(offline, arrays)
  config = live_config(folder, "sm", **changes)
  for t in range(1, 5):
    parts.drop(folder, t)
    assert interrupted(config, tmp_path / "run", 30)
    assert len(lines(tmp_path / "run", "metrics.jsonl")) == t
    if t == 2:  # what was used is not needed in the folder any more
      (folder / "stream" / "001.npz").unlink()
  (folder / "end").touch()
  run = alma_jax.run(config, tmp_path / "run")
  assert_same_results(tmp_path / "offline", tmp_path / "run")
  assert len(run.metrics["t"]) == 4
  assert notices(tmp_path / "run") == [("disappeared", "001.npz")]


@pytest.mark.parametrize("learner", ["anytime", "anytime,tiny", "ens"])
def test_every_mega_batch_is_trained_on_unless_a_schedule_is_named(learner):
  section = configs.load_file("configs/live.py", learner)["stream"]
  assert (section["schedule"], section["waiting_time"], section["num_megabatches"]) == ("every", 1, 0)


def test_what_a_schedule_leaves_at_the_end_is_said(tmp_path, arrays, capsys):
  folder, parts = make_folder(tmp_path / "live", arrays), Parts(small_config(), arrays)
  for t in range(1, 5):
    parts.drop(folder, t)
  (folder / "end").touch()
  fields = {"stream__schedule": "geometric", "stream__factor": 2.9}
  run = alma_jax.run(live_config(folder, **fields), tmp_path / "run")
  assert run.metrics["updated"].tolist() == [True, False, True, False]
  assert "stream.schedule=geometric: its last mega-batch was not trained on" in capsys.readouterr().err
  # The same folder under another name is the same stream; another test set is not.
  assert alma_jax.run(live_config(f"{folder}/", **fields), tmp_path / "run").summary == run.summary
  np.savez(folder / "test.npz", x=arrays[2][:5], y=arrays[3][:5])
  with pytest.raises(BadInput, match=r"the test set, the classes.txt or the first mega-batch of .* .restore them"):
    alma_jax.run(live_config(folder, **fields), tmp_path / "run")


def test_without_a_test_set_nothing_is_called_a_test_error(tmp_path, arrays, monkeypatch):
  """The prequential error is the metric.

  Wherever it is shown: the terminal, the picture, TensorBoard, the card, status, compare, board, report.
  """
  folder, parts = make_folder(tmp_path / "live"), Parts(small_config(), arrays)
  for t in range(1, 5):
    parts.drop(folder, t)
  (folder / "end").touch()
  drawn, tags = [], set()
  monkeypatch.setattr(plots, "curve", CURVE)
  monkeypatch.setattr(figure.Figure, "savefig", lambda made, *_, **__: drawn.append(made))
  monkeypatch.setattr(listeners._Events, "write", lambda self, entry, step: tags.update(entry))
  fields = ["--config=configs/live.py:sm", f"--config.dataset.name=live:{folder}", "--config.train.epochs=2",
            "--config.model.width=4", "--config.train.batch_size=64", "--config.log.predictor=true"]
  runs = [tmp_path / "runs" / f"s{seed}" for seed in (0, 1)]
  for seed, run in enumerate(runs):
    done = alma("main", *fields, f"--config.seed={seed}", f"--workdir={run}")
    assert done.returncode == 0
  run, found = alma_jax.load_run(runs[0]), lines(runs[0], "metrics.jsonl")
  assert [line["error"] for line in found] == [pytest.approx(2 / 3), *[line["prequential_error"] for line in found[1:]]]
  assert all(line["loss"] is None for line in found)
  assert run.summary["cer"] == pytest.approx(sum(line["error"] for line in found))
  mean = np.mean([line["prequential_error"] for line in found[1:]])
  assert run.summary["mean_error"] == view.view(runs[0]).mean_prequential == pytest.approx(mean)
  assert run.predict(arrays[2][..., None]).shape == (30, 3)
  assert "stage 1: " in done.stderr
  assert "stage 2: prequential error 0." in done.stderr
  assert "  prequential error 0." in done.stdout
  assert "   mean over 3 mega-batches, each tested before it is used; lower is better\n" in done.stdout
  assert {"val_error", "prequential_error"} <= tags
  assert not {"error", "untrained_error"} & tags
  assert len(drawn) == 2
  for axes in drawn[0].axes:
    assert axes.get_ylabel() == "prequential error"
    assert "prequential error" in axes.get_title()
    stair = next(patch for patch in axes.patches if isinstance(patch, patches.StepPatch))
    assert stair.get_data().edges.tolist() == [1.5, 2.5, 3.5, 4.5]
  assert run.summary["measured"] == "prequential error"
  assert "cer_from_zero" not in run.summary
  assert "a test set only if" in alma("evaluate", f"--workdir={runs[0]}").stderr
  newest = sorted((runs[0] / "predictor").glob("*/"))[-1]
  card = (newest / "model_card.md").read_text()
  assert "test set" not in card
  assert "| prequential error" in card
  assert json.loads((newest / "predictor.json").read_text())["metrics"]["error"] is None
  shown = board.shown(view.view(runs[0]))
  assert (shown["error"], shown["curve"], shown["prequential_only"]) == (None, [[], []], True)
  looks = [alma("status", tmp_path / "runs"), alma("compare", *runs, f"--out={tmp_path / 'both.png'}"),
           alma("report", tmp_path / "runs", f"--out={tmp_path / 'report'}"), alma("report", tmp_path / "runs")]
  assert [each.returncode for each in looks] == [0] * 4
  assert drawn[2].axes[0].get_ylabel() == "prequential error"
  assert any(axes.get_ylabel() == "prequential error" for made in drawn[3:] for axes in made.axes)
  said = "".join(each.stdout for each in looks) + (tmp_path / "report/report.md").read_text()
  without = re.sub(r"[Pp]requential ([a-z]+ )*error|[Pp]requential CER|live:\S+", "", said)
  assert not re.search(r"error|CER", without), without


# ---------------------------------------------------------------- the end of a stream


def test_entries_are_no_new_data(tmp_path, arrays):
  folder, parts = make_folder(tmp_path / "live", arrays), Parts(small_config(), arrays)
  for t in range(1, 3):
    parts.drop(folder, t)
  (folder / "end").touch()
  alma_jax.run(live_config(folder, log__predictor=True), tmp_path / "run")
  refused = alma("evaluate", "--workdir", tmp_path / "run", "--data", folder / "stream/001.npz")
  assert refused.returncode == 2
  assert "30 of the 30 examples" in refused.stderr
  assert "are in the stream of the run" in refused.stderr
  assert alma("evaluate", "--workdir", tmp_path / "run", "--data", folder / "test.npz").returncode == 0


def test_a_stream_ends_when_nothing_has_come_for_long_or_at_a_limit(tmp_path, arrays):
  folder, parts = make_folder(tmp_path / "live", arrays), Parts(small_config(), arrays)
  for t in range(1, 4):
    parts.drop(folder, t)
  first = alma_jax.run(live_config(folder, dataset__idle_seconds=0.2), tmp_path / "first")
  parts.drop(folder, 4)
  second = alma_jax.run(live_config(folder, stream__num_megabatches=3), tmp_path / "second")
  for run in (first, second):
    assert run.metrics["t"].tolist() == [1, 2, 3]
    assert run.metrics["updated"].tolist() == [False, True, True]


def test_an_ended_stream_without_data_is_refused(tmp_path):
  folder = make_folder(tmp_path / "live")
  (folder / "end").touch()
  with pytest.raises(BadInput, match="has ended without a mega-batch"):
    alma_jax.run(live_config(folder), tmp_path / "run")
  assert not (tmp_path / "run").exists()
  (folder / "end").unlink()
  with pytest.raises(BadInput, match="none came within dataset.idle_seconds=0.1; raise it, or add entries"):
    alma_jax.run(live_config(folder, dataset__idle_seconds=0.1), tmp_path / "run")


# ---------------------------------------------------------------- bad entries


def test_entries_that_cannot_be_used_are_set_aside(tmp_path, arrays, capsys):
  folder, x, y = make_folder(tmp_path / "live", arrays), *arrays[:2]
  stream = folder / "stream"
  (stream / "000.npz").write_bytes(b"no archive")
  (stream / "001.csv").write_text("a,b\n")
  (stream / "002.npz").mkdir()  # a folder, without images
  (stream / "003.npz.part").write_text("ignored")
  drop(folder, 0, x[:30], y[:30], "010.npz")
  drop(folder, 0, x[:30, :5], y[:30], "012.npz")
  drop(folder, 0, x[:30].astype(np.float32), y[:30], "013.npz")
  drop(folder, 0, x[:1], y[:1], "017.npz")
  drop(folder, 0, arrays[2], arrays[3], "019.npz")
  os.mkfifo(stream / "022.npz")  # whoever opens it would wait for ever
  write_folder(stream / "023", x[:6], y[:6], ["0", "1", "2"])
  os.mkfifo(stream / "023" / "0" / "pipe.png")
  drop(folder, 0, x[:30], np.array(["bird", "cat", "dog"])[y[:30]], "024.npz")
  np.savez(stream / "025.npz", x_train=x, y_train=y, x_test=x, y_test=y)  # a mega-batch has no parts
  drop(folder, 0, np.concatenate([arrays[2][:3], x[30:60]]), np.concatenate([arrays[3][:3], y[30:60]]), "030.npz")
  (folder / "end").touch()
  run = alma_jax.run(live_config(folder, dataset__settle_seconds=0.0), tmp_path / "run")
  assert len(run.metrics["t"]) == 2
  reasons = rejected(tmp_path / "run")
  for name, part in {
      "000.npz": "not an .npz file", "001.csv": "give an .npz or .parquet file", "002.npz": "no images in folders",
      "012.npz": "has examples of shape [5, 6], but the stream has [6, 6, 1]",
      "013.npz": "dtype float32, but the stream has uint8", "017.npz": "1 example", "019.npz": "in the test set",
      "022.npz": "is no file and no folder", "023": "pipe.png is no file and no folder",
      "024.npz": "its labels are names, such as 'bird'", "025.npz": "which cannot be read here"}.items():
    assert part in reasons.pop(name)
  assert not reasons
  printed = capsys.readouterr().err
  assert "030.npz: 3 of 33 examples are also in the test set, so its error is too low" in printed
  assert "set aside" in printed


def bomb(folder, num):
  """A small .npz file of many examples, all zero."""
  path = folder / "stream" / "002.npz"
  np.savez_compressed(path, x=np.zeros((num, 6, 6), np.uint8), y=np.zeros(num, np.int8))
  return path


@pytest.mark.parametrize(("field", "least", "sentence"), [
    ("max_examples", 40, "it holds 200 examples, more than dataset.max_examples=40; split the entry"),
    ("max_bytes", 36 * 100, "more than dataset.max_bytes=3600; split the entry")])
def test_an_entry_that_is_too_large_is_set_aside(tmp_path, arrays, field, least, sentence):
  folder, (x, y, *_) = make_folder(tmp_path / "live"), arrays
  drop(folder, 1, x[:30], y[:30])
  bomb(folder, 200)
  parquet.write_table(pyarrow.table({"x": [[0] * 36] * 200, "y": [0] * 200}), folder / "stream" / "003.parquet")
  write_folder(folder / "stream" / "004", np.zeros((200, 6, 6), np.uint8), [0] * 200, ["0"])
  drop(folder, 5, x[30:60], y[30:60])
  (folder / "end").touch()
  config = live_config(folder, dataset__settle_seconds=0.0, **{f"dataset__{field}": least})
  alma_jax.run(config, tmp_path / "run")
  found = rejected(tmp_path / "run")
  assert [*found] == ["002.npz", "003.parquet", "004"]
  for reason in found.values():
    assert sentence in reason
    assert reason.count(". ") == 0
  assert [line["name"] for line in lines(tmp_path / "run", "stream.jsonl")] == ["001.npz", "005.npz"]


def test_a_large_entry_is_refused_before_it_is_unpacked(tmp_path):
  """As one that holds 30 million images: neither memory nor time for them is needed."""
  (tmp_path / "stream").mkdir()
  path, tracked = bomb(tmp_path, 3_000_000), unpacking.Limits(1_000_000, 0)
  tracemalloc.start()
  with unpacking.limited(tracked), pytest.raises(BadInput, match="it holds 3,000,000 examples"):
    examples.Reader().whole(path)
  assert tracemalloc.get_traced_memory()[1] < 2**22
  tracemalloc.stop()


def test_what_takes_long_in_a_run_is_shown(tmp_path, arrays, monkeypatch):
  """While an entry is read, `alma status` names it."""
  folder, parts = make_folder(tmp_path / "live", arrays), Parts(small_config(), arrays)
  for t in (1, 2):
    parts.drop(folder, t)
  (folder / "end").touch()
  monkeypatch.setattr(messages, "_LONG", 0.01)
  read, seen = examples.Reader.whole, []

  def slowly(reader, path):
    if path.name == "002.npz":
      while not (tmp_path / "run" / run_files.DOING).exists():
        time.sleep(0.01)
      seen.append(view.cells(view.view(tmp_path / "run")))
    return read(reader, path)

  monkeypatch.setattr(examples.Reader, "whole", slowly)
  alma_jax.run(live_config(folder, stream__waiting_time=1), tmp_path / "run")
  assert seen[0]["state"] == "alive"
  assert seen[0]["notes"].startswith("reading 002.npz for 0")
  assert not (tmp_path / "run" / run_files.DOING).exists()


def test_a_repaired_entry_is_used(tmp_path, arrays):
  folder, parts = make_folder(tmp_path / "live", arrays), Parts(small_config(), arrays)
  parts.drop(folder, 1)
  (folder / "stream" / "002.npz").write_bytes(b"broken")
  config = live_config(folder, dataset__settle_seconds=0.0)
  assert interrupted(config, tmp_path / "run", 20)
  assert [*rejected(tmp_path / "run")] == ["002.npz"]
  assert interrupted(config, tmp_path / "run", 20)  # it is not read, nor reported, again
  assert len(lines(tmp_path / "run", "rejected.jsonl")) == 1
  assert view.view(tmp_path / "run").arrivals == ["1 entry set aside (rejected.jsonl)"]
  parts.drop(folder, 2)
  assert interrupted(config, tmp_path / "run", 60)
  (folder / "end").touch()
  assert len(alma_jax.run(config, tmp_path / "run").metrics["t"]) == 2  # after a restart it is used no second time
  assert not view.view(tmp_path / "run").arrivals


# ---------------------------------------------------------------- folders and Parquet files


def png(image):
  file = io.BytesIO()
  Image.fromarray(image).save(file, format="png")
  return file.getvalue()


def write_folder(path, x, y, names):
  for i, (image, label) in enumerate(zip(x, y)):
    (path / names[label]).mkdir(parents=True, exist_ok=True)
    (path / names[label] / f"{i:03d}.png").write_bytes(png(image))


def write_parquet(path, x, y, names=None, column="image"):
  table = pyarrow.table({column: [{"bytes": png(image), "path": None} for image in x], "label": list(y)})
  if names:
    info = {"info": {"features": {"label": {"names": names, "_type": "ClassLabel"}}}}
    table = table.replace_schema_metadata({"huggingface": json.dumps(info)})
  parquet.write_table(table, path)


def test_all_formats_make_one_stream(tmp_path, arrays):
  folder, (x, y, *test), names = make_folder(tmp_path / "live"), arrays, ["bird", "cat", "dog"]
  write_folder(folder / "test", *test, names)
  write_folder(folder / "stream" / "1", x[:30], y[:30], names)
  write_parquet(folder / "stream" / "2.parquet", x[30:60], y[30:60], names)
  write_parquet(folder / "stream" / "3.parquet", x[60:90], [names[label] for label in y[60:90]], column="img")
  drop(folder, 4, x[90:], np.array(names)[y[90:]], "4.npz")
  drop(folder, 5, x[:30], np.array(names)[y[:30]], "5.npz")  # the content of the first
  (folder / "end").touch()
  config = live_config(folder, dataset__settle_seconds=0.0, train__epochs=15, train__batch_size=8)
  run = alma_jax.run(config, tmp_path / "run")
  assert run.metrics["t"].tolist() == [1, 2, 3, 4, 5]
  assert run.summary["final_error"] < 0.3
  assert [line["new_classes"] for line in lines(tmp_path / "run", "stream.jsonl")] == [names, [], [], [], []]
  assert notices(tmp_path / "run") == [("duplicate", "5.npz")]


# One byte of its description of a column is wrong. pyarrow ends the process that asks for this description.
DAMAGED_PARQUET = zlib.decompress(base64.b85decode(
    b"c-oavv2MaJ5Ph~%D+3F|S+V3H3s#T<Do8M8=^sQ)U0q}qBq(WU;a~Vfexf}`RH;yxp6<@4d-tBtuAf#j0%_7ENiGyAyF?*;Cj4*+K*kV)"
    b"vuD_n?dP&IwxjixM)61YPAM8Crdl9V$Mq)cJtd%lli9;|?_UFhBd&M;CG4Q3v8HseG%zCtbDJRsbggTbR=@T&mUjb5R7_LGb(cnNa^rTI"
    b"9rq&G-E;M?SM>VhA9Z~dTDp`E6nW#@_s{S#SvSqZx9#DapF(@w9^Uf#a{4%(nbHF6_~NMf@4o@wc`U5"))


def test_columns_of_parquet_files(tmp_path, arrays):
  """CIFAR-100 has two columns of labels; tables have lists of numbers. `alma evaluate` and `predict` read the same."""
  folder, (x, y, x_test, y_test) = make_folder(tmp_path / "live"), arrays
  values = lambda part: part.reshape(len(part), -1) / 255
  table = lambda x, y, name: pyarrow.table({"row": values(x).tolist(), name: y, "coarse_label": y // 2})
  for t in range(3):
    part = slice(30 * t, 30 * t + 30)
    parquet.write_table(table(x[part], y[part], "fine_label"), folder / "stream" / f"{t}.parquet")
  parquet.write_table(table(x_test, y_test, "fine_label"), folder / "test.parquet")
  (folder / "end").touch()
  fields = dict(dataset__settle_seconds=0.0, dataset__image_column="row", train__epochs=15, train__batch_size=8,
                log__predictor=True)
  with pytest.raises(BadInput, match="it has the columns fine_label and coarse_label, and any of them may be the label"
                                     "; choose it with dataset.label_column"):
    alma_jax.run(live_config(folder, **fields), tmp_path / "none")
  config = live_config(folder, dataset__label_column="fine_label", **fields)
  run = alma_jax.run(config, tmp_path / "run")
  assert (run.metrics["t"].tolist(), run.summary["final_error"] < 0.3) == ([1, 2, 3], True)
  data, given = tmp_path / "new.parquet", [f"--workdir={tmp_path / 'run'}", "--image_column=row"]
  parquet.write_table(table(x_test, y_test, "name_label").drop_columns("coarse_label"), data)
  done = alma("evaluate", *given, f"--data={data}")  # the only label
  assert (done.returncode, done.stdout[:12]) == (0, f"error {run.summary['final_error']:.4f}"), done.stderr
  done = alma("evaluate", *given, f"--data={folder / 'test.parquet'}", "--label_column=coarse_label")
  assert done.returncode == 0
  done = alma("evaluate", *given, f"--data={folder / 'test.parquet'}")
  assert (done.returncode, "any of them may be the label" in done.stderr) == (2, True)
  assert alma("predict", *given, data).stdout.count("\n") == 1 + len(x_test)
  done = alma("predict", given[0], data)
  assert (done.returncode, "it has no column image, img, images or x; its columns are row" in done.stderr) == (2, True)


def test_a_damaged_parquet_file_is_set_aside(tmp_path, arrays):
  folder, (x, y) = make_folder(tmp_path / "live", arrays), arrays[:2]
  write_parquet(folder / "stream/1.parquet", x[:30], y[:30])
  (folder / "stream/2.parquet").write_bytes(DAMAGED_PARQUET)
  (folder / "end").touch()
  run = alma_jax.run(live_config(folder, dataset__settle_seconds=0.0), tmp_path / "run")
  assert len(run.metrics["t"]) == 1
  (reason,) = rejected(tmp_path / "run").values()
  assert "not a readable Parquet file (Definition level histogram size mismatch" in reason


# ---------------------------------------------------------------- classes


@pytest.mark.parametrize("learner", ["sm", slow("umix")])
def test_a_new_class_adds_an_output(tmp_path, arrays, learner):
  """As in the live runs of test_cuts.py, with other learners."""
  folder, (x, y) = make_folder(tmp_path / "live", arrays), arrays[:2]
  for t, classes in enumerate(([0, 2], [0, 2], [0, 1, 2], [0, 1, 2]), 1):
    which = np.flatnonzero(np.isin(y, classes))[20 * t:][:24]
    drop(folder, t, x[which], y[which])
  (folder / "end").touch()
  options = {"learner__num_members": 2} if learner == "umix" else {}
  config = live_config(folder, learner, stream__waiting_time=1, train__epochs=12, **options)
  run = alma_jax.run(config, tmp_path / "whole")
  found = lines(tmp_path / "whole", "metrics.jsonl")
  assert [line.get("new_classes") for line in found] == [None, None, ["1"], None]
  assert found[2]["num_params"] > found[1]["num_params"]
  assert run.predict(arrays[2][..., None]).shape == (30, 3)
  if learner == "sm":
    assert found[1]["error"] >= 1 / 3 > found[3]["error"]
    protocol = settings.prepare(configs.parse(config), run=run.path).protocol
    before = dict(vars(protocol.source))
    assert [protocol.facts(ends).problem.num_outputs for ends in ((1, 2, 3), (1, 2))] == [3, 2]
    assert all(vars(protocol.source)[name] is value for name, value in before.items())  # to ask changes nothing


def test_a_class_that_has_not_come_counts_as_an_error_in_an_evaluation_too(tmp_path, arrays):
  folder, (x, y) = make_folder(tmp_path / "live", arrays), arrays[:2]
  for t in (1, 2):
    which = np.flatnonzero(y != 1)[20 * t:][:20]
    drop(folder, t, x[which], y[which])
  (folder / "end").touch()
  run = alma_jax.run(live_config(folder, stream__waiting_time=1, train__epochs=12), tmp_path / "run")
  assert alma("evaluate", f"--workdir={run.path}", f"--out={tmp_path / 'scores.json'}").returncode == 0
  scores = json.loads((tmp_path / "scores.json").read_text())
  assert scores["error"] == run.summary["final_error"] >= 1 / 3
  assert sum(each["label"] == "unknown" for each in scores["mistakes"]) == (arrays[3] == 1).sum()


def test_labels_are_names_of_classes_in_the_order_of_their_arrival(tmp_path, arrays, monkeypatch):
  """`alma evaluate` scores by these names, as the run does."""
  folder, (x, y) = make_folder(tmp_path / "live", arrays), arrays[:2]
  for t, classes in enumerate(([2], [1, 2], [0, 1, 2], [0, 1, 2]), 1):
    which = np.flatnonzero(np.isin(y, classes))[8 * t:][:30]
    drop(folder, t, x[which], y[which])
  (folder / "end").touch()
  config = live_config(folder, stream__waiting_time=1, train__epochs=12, train__batch_size=8, log__predictor=True)
  run = alma_jax.run(config, tmp_path / "run")
  args = ("evaluate", f"--workdir={run.path}", f"--data={folder / 'test.npz'}", f"--out={tmp_path / 'scores.json'}")
  assert alma(*args).returncode == 0
  scores = json.loads((tmp_path / "scores.json").read_text())
  assert alma(*args[:2]).stdout.startswith(f"error {scores['error']:.4f} ")
  assert run.summary["final_error"] < 0.5
  assert scores["error"] == run.summary["final_error"]
  order = ["1", "0", "2"]  # of the classes of other data
  places = np.array([order.index(str(label)) for label in arrays[3]])
  write_parquet(tmp_path / "named.parquet", arrays[2], places, order)
  np.savez(tmp_path / "floats.npz", x=arrays[2], y=arrays[3].astype(float))
  made = datasets.from_arrays("tfds:made", dict(x_train=x, y_train=y, x_test=arrays[2], y_test=places))
  monkeypatch.setattr(datasets, "load", lambda *_: dataclasses.replace(made, class_names=tuple(order)))
  for data in (tmp_path / "named.parquet", tmp_path / "floats.npz", "tfds:made"):
    assert alma(*args[:2], f"--data={data}", f"--out={tmp_path / 'other.json'}").returncode == 0
    other = json.loads((tmp_path / "other.json").read_text())
    said = [[(each["label"], each["predicted"]) for each in found.pop("mistakes")] for found in (other, dict(scores))]
    assert said[0] == said[1]
    assert other == {name: it for name, it in scores.items() if name != "mistakes"} | dict(data=str(data))
  (folder / "stream/002.npz").unlink()
  done = alma(*args)
  assert "1 of the 4 entries that the run has used are not there any more" in done.stderr
  assert (done.returncode, json.loads((tmp_path / "scores.json").read_text())) == (0, scores | dict(overlap=0))


def test_labels_that_are_the_same_are_one_class(tmp_path, arrays):
  """Spaces, the two ways of Unicode to write é, and leading zeros make no new class, also in the test set and data.

  A name that is only alike is pointed out.
  """
  folder, (x, y, x_test, y_test) = make_folder(tmp_path / "live"), arrays
  nights = [["0", "1", "café"], ["00", " 1", "cafe\u0301 "], ["0", "01", "Café"]]
  for t, names in enumerate(nights):
    drop(folder, t, x[30 * t:30 * t + 30], np.array(names)[y[30 * t:30 * t + 30]])
  np.savez(folder / "test.npz", x=x_test, y=np.array(["000", "1\t", "café"])[y_test])
  (folder / "end").touch()
  run = tmp_path / "run"
  done = launch("configs/live.py:sm", f"--config.dataset.name=live:{folder}", "--config.train.epochs=15",
                "--config.train.batch_size=8", "--config.log.drift=0", "--config.log.predictor=true",
                f"--workdir={run}")
  assert done.returncode == 0, done.stderr
  assert [line["new_classes"] for line in lines(run, "stream.jsonl")] == [["0", "1", "café"], [], ["Café"]]
  assert "2.npz: the new class 'Café' resembles 'café'" in done.stderr
  assert done.stderr.count("resembles") == 1
  assert "1.npz: the label '00' means the class '0'; leading zeros do not count" in done.stderr
  assert done.stderr.count("leading zeros do not count") == 1
  assert lines(run, "metrics.jsonl")[1]["error"] < 0.3
  data = tmp_path / "more.npz"
  np.savez(data, x=x_test, y=np.array(["00", "1 ", "cafe\u0301"])[y_test])
  scored = alma("evaluate", f"--workdir={run}", f"--data={data}", "--allow_overlap")
  assert (scored.returncode, scored.stdout[:8]) == (0, "error 0."), scored.stderr
  np.savez(data, x=x_test, y=np.array(["0", "1", "CAFÉ"])[y_test])
  assert "did you mean 'café'?" in alma("evaluate", f"--workdir={run}", f"--data={data}", "--allow_overlap").stderr


def test_declared_classes(tmp_path, arrays):
  folder, (x, y) = make_folder(tmp_path / "live", arrays), arrays[:2]
  (folder / "classes.txt").write_text("cat\r\n\r\ndog \r\nbird\r\n", encoding="utf-8-sig")
  drop(folder, 1, x[y < 2], y[y < 2])
  for t, names in enumerate((["cat", "dog", "bird"], None, ["cat", "cow", "bird"], ["Cat", "dog", "bird"]), 2):
    part = slice(20 * t, 20 * t + 20)
    drop(folder, t, x[part], y[part] + 1 if names is None else np.array(names)[y[part]])
  (folder / "end").touch()
  run = alma_jax.run(live_config(folder), tmp_path / "run")
  assert run.predict(arrays[2][..., None]).shape == (30, 3)
  used = lines(tmp_path / "run", "stream.jsonl")
  assert [(line["num"], line["new_classes"]) for line in used] == [(80, []), (20, [])]
  known = "which classes.txt does not know; its classes are cat, dog, bird"
  assert list(rejected(tmp_path / "run").values()) == [
      "it has the label 3, but classes.txt has 3 classes, 0 to 2.", f"it has the class 'cow', {known}.",
      f"it has the class 'Cat', {known}; did you mean 'cat'?"]
  (folder / "classes.txt").write_text("1\n01\n")
  with pytest.raises(BadInput, match="names a class twice, '1' and '01'"):
    alma_jax.run(live_config(folder), tmp_path / "other")


# ---------------------------------------------------------------- drift


def test_topics_are_no_drift_of_text():
  """Means that scatter by 0.2 nats around a falling loss, windows by 0.6, and at last a jump by 1 nat."""
  rng, detector = np.random.default_rng(0), drift.Detector(0.002, "perplexity", np.log(8192))

  def alarm(t, mean):
    losses = rng.normal(mean + rng.normal(0, 0.2), 0.6, 300)
    line = {"perplexity": np.exp(losses.mean()), metrics.DEVIATION: losses.std()}
    return detector.update(line, 300)

  for t in range(1, 101):
    assert not alarm(t, 4.5 + 2 * t ** -0.5)
  assert detector.update({"perplexity": 100.0}, 300) == {}  # its stage had no log.drift
  for value, deviation in ((np.inf, np.nan), (np.inf, 0.6), (100.0, np.nan), (None, None)):
    assert detector.update({"perplexity": value, metrics.DEVIATION: deviation}, 300) == {}
  raised = next(filter(None, (alarm(t, 5.7) for t in range(3))))
  assert np.exp(4.5) < raised[drift.BEFORE] < np.exp(4.9) < raised[drift.AFTER] < np.exp(5.9)


def test_a_falling_error_is_no_drift():
  rng, detector = np.random.default_rng(0), drift.Detector(0.002)
  for t in range(1, 201):
    assert not detector.update({"prequential_error": rng.binomial(60, 0.5 * t ** -0.5) / 60}, 60)
  assert detector.update({"prequential_error": None}, 60) == {}
  assert any(detector.update({"prequential_error": rng.binomial(60, 0.4) / 60}, 60) for _ in range(4))


# ---------------------------------------------------------------- which entries are complete


def found(box):
  entry = box.next()
  return entry and entry[0].name


def test_an_entry_counts_once_it_has_not_changed(tmp_path, monkeypatch):
  now = [1000.0]
  monkeypatch.setattr(inbox.time, "monotonic", lambda: now[0])
  box = inbox.Inbox(tmp_path, 5.0)
  assert found(box) is None
  assert box.is_empty
  (tmp_path / "b.txt").write_text("1")
  assert found(box) is None
  assert not box.is_empty
  now[0] += 4
  (tmp_path / "b.txt").write_text("12")
  assert found(box) is None
  now[0] += 4
  assert found(box) is None
  now[0] += 1
  assert found(box) == "b.txt"
  (tmp_path / "a.txt").write_text("1")  # an earlier name, which is not complete, is waited for
  assert found(box) is None
  now[0] += 5
  assert found(box) == "a.txt"
  box.finish("a.txt")
  assert found(box) == "b.txt"


def test_renamed_and_old_entries_count_at_once(tmp_path):
  box = inbox.Inbox(tmp_path, 1000.0)
  for name in (".c", "d.tmp", "e.part"):
    (tmp_path / name).write_text("1")
  assert found(box) is None
  assert box.is_empty
  (tmp_path / "d.tmp").rename(tmp_path / "d")
  assert found(box) == "d"
  box.finish("d")
  (tmp_path / "f").mkdir()
  (tmp_path / "f" / "image").write_text("1")
  assert found(box) is None
  for path in (tmp_path / "f" / "image", tmp_path / "f"):
    os.utime(path, (1e9, 1e9))
  assert found(box) == "f"


def test_an_entry_is_seen_that_arrives_within_a_tick_of_the_clock(tmp_path):
  """The time of modification of the folder is then what it was when it was listed."""
  box = inbox.Inbox(tmp_path, 0.0)
  for name in ("1.npz", "2.npz"):
    (tmp_path / name).touch()
    os.utime(tmp_path, ns=(0, time.time_ns() // 10**9 * 10**9))
    assert found(box) == name
    box.finish(name)


def test_the_files_of_a_folder_may_arrive_slowly(tmp_path, monkeypatch):
  now = [1000.0]
  monkeypatch.setattr(inbox.time, "monotonic", lambda: now[0])
  box = inbox.Inbox(tmp_path, 5.0)
  (tmp_path / "f").mkdir()
  for i in range(3):  # longer apart than a file may be unchanged
    (tmp_path / "f" / str(i)).write_text("1")
    assert found(box) is None
    now[0] += 45
    assert found(box) is None
  now[0] += 5
  assert found(box) == "f"
