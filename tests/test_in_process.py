"""`alma_jax.Stream`: the numbers are those of a live run on a folder, whatever happens on the way."""
import contextlib
import signal

import jax
import numpy as np
import pytest
from runs import alma, lines, one_step_a_dispatch
from test_cuts import PLAIN, Killed
from test_environment import setting as jax_setting
from test_live import drop, live_config, make_folder

import alma_jax
from alma_jax.data import feed
from alma_jax.errors import BadInput, InUse
from alma_jax.parallel import runtime
from alma_jax.runs import loop

EVERY = PLAIN | {"stream__waiting_time": 1}
NAMES = np.array(["cat", "dog", "frog"])


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
  monkeypatch.setattr(feed, "_POLL_SECONDS", 0.01)


@pytest.fixture
def parts(arrays):
  """Four mega-batches (x, y); the third brings a new class."""
  found = []
  for t, classes in enumerate(([2, 0], [0, 2], [0, 1, 2], [0, 1, 2])):
    which = np.flatnonzero(np.isin(arrays[1], classes))[20 * t:][:24]
    found.append((arrays[0][which], arrays[1][which]))
  return found


def fed(config, path, parts):
  """The lines that a Stream returns for the mega-batches that it has not had."""
  with alma_jax.Stream(config, path) as stream:
    return [stream.update(x, y) for x, y in parts[stream.num_updates:]]


def assert_same_lines(first, second):
  for name in ("metrics.jsonl", "train.jsonl"):
    assert lines(first, name) == lines(second, name)


# ---------------------------------------------------------------- equal to a live run


def test_numbers_and_predictions_are_those_of_a_live_folder(tmp_path, arrays, parts):
  folder = make_folder(tmp_path / "live")
  for t, (x, y) in enumerate(parts, 1):
    drop(folder, t, x, y)
  (folder / "end").touch()
  changes = PLAIN | {"log__predictor": True}
  alma_jax.run(live_config(folder, "gens", **changes), tmp_path / "run")
  config = live_config("anywhere", "gens", **changes)
  with jax_setting(jax_enable_x64=True), alma_jax.Stream(config, tmp_path / "stream") as stream:
    for t, (x, y) in enumerate(parts, 1):
      predicted = stream.predict(x) if len(stream.classes) else None
      line = stream.update(x, y)
      assert stream.num_updates == line["t"] == t
      assert jax.config.jax_enable_x64, "as the caller has set it"
      if predicted is not None:
        assert line["prequential_error"] == pytest.approx((predicted != y).mean())
    probabilities, predicted = stream.predict_proba(arrays[2]), stream.predict(arrays[2])
    assert stream.classes[probabilities.argmax(1)].tolist() == predicted.tolist()
    assert predicted.dtype.kind == "i"
    assert sorted(stream.classes) == [0, 1, 2]
  assert_same_lines(tmp_path / "run", tmp_path / "stream")
  np.savez(tmp_path / "test.npz", x=arrays[2])
  tables = [alma("predict", "--workdir", tmp_path / name, tmp_path / "test.npz").stdout for name in ("run", "stream")]
  assert tables[0] == tables[1]
  header, *rows = [row.split(",") for row in tables[0].splitlines()]
  assert [[np.float32(value) for value in row[3:]] for row in rows] == probabilities.tolist()
  assert header[3:] == [f"p_{name}" for name in stream.classes]


def test_killed_anywhere_a_new_stream_goes_on(tmp_path, monkeypatch, parts):
  """A mega-batch whose `update` has returned is never lost; one that was being trained on is not needed again."""
  one_step_a_dispatch(monkeypatch)
  config = live_config("anywhere", "gens", **EVERY, checkpoint__seconds=0.0)
  fed(config, tmp_path / "whole", parts)
  is_due, left, sent, kills = loop.Session._is_due, [0], 0, 0

  def killed(session):
    left[0] -= 1
    if left[0] < 0:
      raise Killed
    return is_due(session)

  monkeypatch.setattr(loop.Session, "_is_due", killed)
  while sent < len(parts):
    left[0] = 4
    with contextlib.suppress(Killed):
      stream = alma_jax.Stream(config, tmp_path / "killed")
      assert sent <= stream.num_updates <= sent + 1
      for sent in range(stream.num_updates, len(parts)):
        stream.update(*parts[sent])
      sent = len(parts)
    kills += left[0] < 0
  assert kills > len(parts)
  stream.close()
  assert_same_lines(tmp_path / "whole", tmp_path / "killed")


def test_killed_before_the_run_has_noted_the_first_mega_batch(tmp_path, monkeypatch, parts):
  """The run folder knows which one it was already, so another one could not replace it."""
  config = live_config("anywhere", stream__waiting_time=1)
  with monkeypatch.context() as patched:
    patched.setattr(feed.Feed, "attach", lambda *_: (_ for _ in ()).throw(Killed))
    with pytest.raises(Killed):
      fed(config, tmp_path / "run", parts[:1])
  assert [line["t"] for line in fed(config, tmp_path / "run", parts[:2])] == [2]


# ---------------------------------------------------------------- labels


def test_predictions_are_of_the_kind_of_the_labels(tmp_path, parts):
  """Also of a stream that another process goes on with, and while there is a single class."""
  (x, y), *_, (others, last) = parts
  config = live_config("anywhere", stream__waiting_time=1)
  for name, given in (("names", NAMES[y]), ("numbers", y + 5), ("texts", (y + 5).astype(str))):
    fed(config, tmp_path / name, [(x, given)])
    with alma_jax.Stream(config, tmp_path / name) as stream:
      assert set(stream.predict(x)) <= {*given}
      assert stream.classes.dtype.kind == np.asarray(given).dtype.kind
  with alma_jax.Stream(config, tmp_path / "one") as stream:
    stream.update(x[y == 2], y[y == 2].tolist())
    assert stream.classes.tolist() == [2, -1]
    assert stream.predict_proba(x).shape == (len(x), 2)
    assert stream.update(others, last)["new_classes"] == ["0", "1"]
    assert stream.classes.tolist() == [2, 0, 1]


# ---------------------------------------------------------------- what is refused


ANYWHERE = [
    (lambda x, y: (x[:0], y[:0]), "no labels"), (lambda x, y: (x[:0], y), "x is empty"),
    (lambda x, y: (x[:1], y[:1]), "1 example"), (lambda x, y: (x.astype(object), y), "dtype object"),
    (lambda x, y: ([[1, 2], [3]], y), "differ in shape"),
    (lambda x, y: (["a text"] * len(y), y), "give numbers"), (lambda x, y: (x, y[1:]), "one label for each"),
    (lambda x, y: (x, y + 0.5), "whole numbers"), (lambda x, y: (x, [*y[1:].tolist(), "cat"]), "only names or")]
FIRST = [(lambda x, y: (x * np.nan, y), "x holds NaN")]
LATER = [(lambda x, y: (x[:, :3], y), "shape"), (lambda x, y: (x / 2, y), "float64"),
         (lambda x, y: (x, NAMES[y]), "names, such as .cat.")]


def test_a_mega_batch_that_cannot_be_used_changes_nothing(tmp_path, parts):
  config = live_config("anywhere", stream__waiting_time=1)
  with alma_jax.Stream(config, tmp_path / "run") as stream:
    for t, cases in enumerate((ANYWHERE + FIRST, ANYWHERE + LATER), 1):
      for change, sentence in cases:
        with pytest.raises(BadInput, match=f"^mega-batch {t} cannot be used: .*{sentence}"):
          stream.update(*change(*parts[t - 1]))
        assert stream.num_updates == t - 1
      stream.update(*parts[t - 1])
    with pytest.raises(BadInput, match="^x cannot be used: it has examples of shape"):
      stream.predict(parts[0][0][:, :3])
  fed(config, tmp_path / "clean", parts[:2])
  assert_same_lines(tmp_path / "clean", tmp_path / "run")
  assert not (tmp_path / "run" / "rejected.jsonl").exists()


def test_a_first_mega_batch_that_the_network_cannot_take_changes_nothing(tmp_path, parts):
  config = live_config("anywhere", model__name="vgg", model__width=2)
  with alma_jax.Stream(config, tmp_path / "run") as stream:
    with pytest.raises(BadInput, match="vgg"):
      stream.update(*parts[0])
    assert not any((tmp_path / "run" / "inbox" / "stream").glob("[!.]*"))


def test_what_is_no_stream_is_refused(tmp_path, arrays, parts, make_config):
  config = live_config("anywhere", stream__waiting_time=1)
  alma_jax.run(make_config(), tmp_path / "offline", data=arrays)
  with pytest.raises(BadInput, match="holds a run that is not of a Stream"):
    alma_jax.Stream(config, tmp_path / "offline")
  for other in (make_config(), "configs/live.py:sm,tiny", "lm:sm"):
    with pytest.raises(BadInput, match=r"a live stream of images, such as 'configs/live.py:anytime', but"):
      alma_jax.Stream(other, tmp_path / "run")
  assert not (tmp_path / "run").exists()
  with alma_jax.Stream(config, tmp_path / "run") as stream:
    assert not stream.classes.size
    with pytest.raises(BadInput, match="has not trained yet; call update first"):
      stream.predict(parts[0][0])
    with pytest.raises(InUse, match="close the Stream that holds it"):
      alma_jax.Stream(config, tmp_path / "run")
    with pytest.raises(BadInput, match="has no mega-batch; call update before"):
      stream.end()
    stream.update(*parts[0])
  with pytest.raises(BadInput, match="is closed; open it again"):
    stream.update(*parts[1])
  with pytest.raises(BadInput, match="holds another run, which differs in learner.name"):
    alma_jax.Stream(live_config("anywhere", "ens"), tmp_path / "run")
  with alma_jax.Stream(config, tmp_path / "run") as stream:
    stream.end()
    assert len(stream.predict(parts[0][0])) == 24
    with pytest.raises(BadInput, match="has ended; predict by alma_jax.load_run"):
      stream.update(*parts[1])
  with pytest.raises(BadInput, match="has ended; predict by alma_jax.load_run"):
    alma_jax.Stream(config, tmp_path / "run")
  assert alma_jax.load_run(tmp_path / "run").summary["num_megabatches"] == 1


# ---------------------------------------------------------------- in the caller's process


def test_it_compiles_once_installs_no_signal_handlers_and_ends_with_its_limit(tmp_path, parts):
  """`seconds` of compilation stay where they are from the second mega-batch of a size on."""
  before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
  config, x, y = live_config("anywhere", stream__waiting_time=1, stream__num_megabatches=5), *parts[0]
  with alma_jax.Stream(config, tmp_path / "run") as stream:
    for _ in range(2):
      stream.update(x, y)
      stream.predict(x)
    compiled = runtime.compile_seconds()
    for _ in range(3):
      stream.update(x, y)
      assert len(stream.predict(x)) == len(x)
    assert runtime.compile_seconds() == compiled
    with pytest.raises(BadInput, match="has ended"):
      stream.update(x, y)
  assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before
  assert alma_jax.load_run(tmp_path / "run").summary["num_megabatches"] == 5
