"""Live streams: drift, copies, text and entries that change after use."""
import json
import os
import shutil

import numpy as np
import pytest
from runs import alma, blobs, interrupted, lines, one_step_a_dispatch, small_config, text_config
from test_live import Parts, _quick, assert_same_results, drop, live_config, make_folder, notices, rejected  # noqa: F401

import alma_jax
from alma_jax import config as configs
from alma_jax.data import feed, text
from alma_jax.errors import BadInput
from alma_jax.learners import prediction
from alma_jax.protocols import drift
from alma_jax.runs import exporting, settings
from alma_jax.store import metrics

pytestmark = pytest.mark.slow


def test_changes_after_use_and_copies_are_reported(tmp_path, arrays):
  folder, parts = make_folder(tmp_path / "live", arrays), Parts(small_config(), arrays)
  for t in (1, 2, 3):
    parts.drop(folder, t)
  (folder / "stream" / "004.npz").write_bytes((folder / "stream" / "001.npz").read_bytes())
  config = live_config(folder, dataset__settle_seconds=0.0, stream__replay=1.0)
  assert interrupted(config, tmp_path / "run", 60)
  assert notices(tmp_path / "run") == [("duplicate", "004.npz")]
  (folder / "stream" / "001.npz").unlink()
  drop(folder, 2, *(array[:20] for array in arrays[:2]))
  os.utime(folder / "stream" / "003.npz")  # touched, not changed
  assert interrupted(config, tmp_path / "run", 20)
  assert interrupted(config, tmp_path / "run", 20)
  assert notices(tmp_path / "run")[1:] == [("disappeared", "001.npz"), ("changed", "002.npz")]


def test_copies_that_no_checkpoint_needs_are_deleted(tmp_path, arrays):
  folder, parts = make_folder(tmp_path / "live", arrays), Parts(small_config(), arrays)
  for t in range(1, 5):
    parts.drop(folder, t)
  (folder / "end").touch()
  for name, replay, expected in (("without", 0.0, 1), ("with", 0.5, 4)):
    config = live_config(folder, stream__waiting_time=1, checkpoint__seconds=0.0, stream__replay=replay)
    alma_jax.run(config, tmp_path / name)
    assert len(list((tmp_path / name / "megabatches").iterdir())) == expected


def test_without_its_copy_a_run_reads_the_entry_again(tmp_path, arrays):
  folder, parts = make_folder(tmp_path / "live", arrays), Parts(small_config(), arrays)
  for t in range(1, 5):
    parts.drop(folder, t)
  (folder / "end").touch()
  config = live_config(folder, stream__replay=1.0, stream__waiting_time=1)
  alma_jax.run(config, tmp_path / "whole")
  assert interrupted(config, tmp_path / "run", 3)
  (tmp_path / "run" / "megabatches" / "000001.npz").write_bytes(b"torn")
  shutil.copytree(tmp_path / "run", tmp_path / "other")
  alma_jax.run(config, tmp_path / "run")
  assert_same_results(tmp_path / "whole", tmp_path / "run")
  (folder / "stream" / "001.npz").unlink()
  with pytest.raises(BadInput, match=r"mega-batch 1 is needed again, but the run's copy of it is gone"):
    alma_jax.run(config, tmp_path / "other")


def test_drift_is_reported(tmp_path, monkeypatch, capsys):
  """From mega-batch 7 on the labels mean something else; a run that is stopped again and again says the same."""
  x, y = blobs(12 * 30)
  folder = make_folder(tmp_path / "live")
  for t in range(1, 13):
    part = slice(30 * t - 30, 30 * t)
    drop(folder, t, x[part], (y[part] + (t >= 7)) % 3)
  (folder / "end").touch()
  config = live_config(folder, "gens", log__drift=0.002, log__tensorboard=True, train__epochs=8, train__batch_size=8,
                       model__width=8)
  alma_jax.run(config, tmp_path / "whole")
  found = lines(tmp_path / "whole", "metrics.jsonl")
  alarms = [line["t"] for line in found if drift.AFTER in line]
  assert alarms
  assert alarms[0] in (7, 8)
  first = found[alarms[0] - 1]
  assert first[drift.BEFORE] < 0.4 < first[drift.AFTER]
  assert capsys.readouterr().err.count("drift at mega-batch") == len(alarms)
  events = b"".join(path.read_bytes() for path in (tmp_path / "whole" / "tensorboard" / "stream").iterdir())
  assert drift.AFTER.encode() in events
  one_step_a_dispatch(monkeypatch)
  while interrupted(config, tmp_path / "cut", 40):
    pass
  assert_same_results(tmp_path / "whole", tmp_path / "cut")


@pytest.mark.filterwarnings("ignore:the vocabulary has")
def test_drift_of_text_is_reported(tmp_path, books, capsys):
  """From mega-batch 9 on the words are other ones; the loss of a run without a test set falls before.

  A run that is stopped says the same, as in test_drift_is_reported: both make their detectors from metrics.jsonl.
  """
  folder, rng = make_folder(tmp_path / "live"), np.random.default_rng(0)
  for t in range(1, 13):
    words = ["the", "cat", "sat", "on", "a", "mat"] if t < 9 else ["xylo", "quip", "fjord", "vex", "jazz"]
    (folder / "stream" / f"{t:03d}.txt").write_text(" ".join(rng.choice(words, 1200)))
  (folder / "end").touch()
  config = text_config(books, dataset__name=f"live:{folder}", dataset__settle_seconds=0.0, stream__num_megabatches=0,
                       stream__waiting_time=4, log__drift=0.002)
  alma_jax.run(config, tmp_path / "whole")
  found = lines(tmp_path / "whole", "metrics.jsonl")
  first = next(line for line in found if drift.AFTER in line)
  assert first["t"] in (9, 10)
  assert first[drift.BEFORE] < first[drift.AFTER] < first["prequential_perplexity"] * 1.01
  assert f"drift at mega-batch {first['t']}: the prequential perplexity has risen from" in capsys.readouterr().err
  assert all(line[metrics.DEVIATION] > 0 for line in found[4:])


@pytest.mark.filterwarnings("ignore:the vocabulary has")
def test_an_infinite_prequential_perplexity_is_null(tmp_path, books, monkeypatch):
  """The deployed learner gives a token of mega-batch 3 the probability 0. The run goes on, and drift is watched."""
  folder, rng, calls = make_folder(tmp_path / "live"), np.random.default_rng(0), []
  for t in range(1, 5):
    (folder / "stream" / f"{t:03d}.txt").write_text(" ".join(rng.choice(["the", "cat", "sat", "on", "a", "mat"], 400)))
  (folder / "end").touch()

  real = prediction.contributions

  def contributions(*args):
    found = real(*args)
    found["log_sum"][0] = found["log_sum"][0] if calls else -np.inf
    calls.append(args)
    return found

  monkeypatch.setattr(prediction, "contributions", contributions)
  config = text_config(books, dataset__name=f"live:{folder}", dataset__settle_seconds=0.0, stream__num_megabatches=0,
                       stream__waiting_time=2, log__drift=0.002)
  run = alma_jax.run(config, tmp_path / "run")
  found = lines(tmp_path / "run", "metrics.jsonl")
  for key in "prequential_perplexity", metrics.DEVIATION:
    assert [line.get(key) is None for line in found] == [True, True, True, False]
  assert found[2]["perplexity"] is None
  assert np.isfinite(run.summary["average_perplexity"])


@pytest.fixture
def text_parts(books):
  """(offline config, the documents of its mega-batches)."""
  offline = text_config(books)
  source = configs.parse(offline).dataset.source()
  corpus = settings.prepare(configs.parse(offline)).protocol.source.corpus
  every = text.prepare(text.complete(source.read()), 4, 0)["train"]
  return offline, [every[first:last] for first, last in zip(corpus.parts, corpus.parts[1:])]


@pytest.mark.filterwarnings("ignore:the vocabulary has")
@pytest.mark.parametrize("changes", [{"stream__replay_share": 0.3, "stream__waiting_time": 2},
                                     {"stream__replay": 1.0}])
def test_a_live_text_equals_the_offline_text(tmp_path, books, text_parts, monkeypatch, changes):
  one_step_a_dispatch(monkeypatch)
  alma_jax.run(text_config(books, **changes), tmp_path / "offline")
  folder = make_folder(tmp_path / "live")
  for split in ("valid", "test"):
    shutil.copytree(books / split, folder / split)
  for t, part in enumerate(text_parts[1], 1):
    text = "".join(json.dumps({"text": document.decode()}) + "\n" for document in part)
    (folder / "stream" / f"{t}.jsonl").write_text(text)
  (folder / "end").touch()
  config = text_config(books, dataset__name=f"live:{folder}", dataset__settle_seconds=0.0, stream__num_megabatches=0,
                       **changes)
  while interrupted(config, tmp_path / "run", 5):
    pass
  assert_same_results(tmp_path / "offline", tmp_path / "run")
  source = json.loads(exporting.files_of(alma_jax.load_run(tmp_path / "run"))["predictor.json"])["provenance"]
  begun = json.loads((tmp_path / "run/config.json").read_text())["data_fingerprint"]
  assert source["data_fingerprint"] == feed.fingerprint(begun, lines(tmp_path / "run", "stream.jsonl"))
  assert f"mega-batches 1 to {len(text_parts[1])}, listed in stream.jsonl" in source["data_covered"]


@pytest.mark.filterwarnings("ignore:the vocabulary has")
def test_text_without_a_test_set_and_with_bad_entries(tmp_path, books, text_parts):
  folder = make_folder(tmp_path / "live")
  for t, part in enumerate(text_parts[1][:3], 1):
    (folder / "stream" / f"{t}.txt").write_bytes(b"\n".join(part))
  for name, content in {"0.txt": b"\xff", "0.jsonl": b'{"text": "a"}\n{"txt": "b"}\n', "0a.jsonl": b"{",
                        "0b.txt": b" \n", "0c.txt": b"short", "0.npz": b"x"}.items():
    (folder / "stream" / name).write_bytes(content)
  (folder / "end").touch()
  config = text_config(books, dataset__name=f"live:{folder}", dataset__settle_seconds=0.0, stream__num_megabatches=0,
                       log__progress=True)
  run = alma_jax.run(config, tmp_path / "run")
  found = lines(tmp_path / "run", "metrics.jsonl")
  assert [line["perplexity"] for line in found] == [None, *[line["prequential_perplexity"] for line in found[1:]]]
  assert run.summary["final_perplexity"] == found[-1]["perplexity"] < 300
  assert run.sample("the cat", num_tokens=3).startswith("the cat")
  refused = alma("evaluate", f"--workdir={run.path}", f"--data={folder / 'stream/1.txt'}")
  assert "1 of the 1 examples" in refused.stderr
  reasons = rejected(tmp_path / "run")
  for name, part in {"0.txt": "not UTF-8", "0.jsonl": "line 2 is neither", "0a.jsonl": "line 1 is not JSON",
                     "0b.txt": "holds no text", "0c.txt": "has only 9 tokens", "0.npz": "give a .txt file"}.items():
    assert part in reasons.pop(name)
  assert not reasons
