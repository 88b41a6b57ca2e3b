"""Checkpoints: what is saved comes back, and damage is noticed."""
import pathlib
import shutil

import jax.numpy as jnp
import numpy as np
import pytest

from alma_jax.errors import BadInput
from alma_jax.store import checkpoint

W = np.random.default_rng(0).normal(size=(200, 300)).astype(np.float32)
TREES = {"live": {"w": W, "n": np.int32(3)}}


def frozen(i):
  return {"w": np.random.default_rng(i).normal(size=(100, 300)).astype(np.float32)}


def fill(path, steps, keep=2, **options):
  saver = checkpoint.Checkpoints(path, keep)
  for step in range(steps):
    saver.save({"stage": step, "lines": []}, TREES, tuple(map(frozen, range(step))), **options)
  saver.finish()


def steps_in(path):
  return sorted(int(p.name) for p in pathlib.Path(path, "checkpoints").iterdir() if p.name.isdigit())


def flip(path):
  data = bytearray(path.read_bytes())
  data[len(data) // 2] ^= 1
  path.write_bytes(bytes(data))


def flip_a_bit(folder):
  """In the largest file of array data."""
  flip(max((p for p in folder.rglob("*") if p.is_file()), key=lambda p: p.stat().st_size))


def test_round_trip(tmp_path):
  assert checkpoint.Checkpoints(tmp_path, 2).newest() is None
  fill(tmp_path, 3)
  opened = checkpoint.Checkpoints(tmp_path, 2).newest()
  assert opened.meta["stage"] == 2
  tree = opened.tree("live", TREES["live"])
  np.testing.assert_array_equal(tree["w"], TREES["live"]["w"])
  assert tree["n"].dtype == np.int32
  assert tree["n"] == 3
  for i, block in enumerate(opened.frozen((frozen(0), frozen(1)))):
    np.testing.assert_array_equal(block["w"], frozen(i)["w"])
  assert opened.has("live")
  assert not opened.has("fit")


def test_what_changes_while_it_is_written_does_not_matter(tmp_path):
  lines, saver = [1], checkpoint.Checkpoints(tmp_path, 9)
  for step in range(8):
    saver.save({"lines": lines}, TREES, ())
    lines.append(step)
  saver.finish()
  metas = checkpoint.Checkpoints(tmp_path, 9).metas()  # warns if one does not match its checksum
  assert [len(metas[step]["lines"]) for step in range(1, 9)] == list(range(1, 9))


def test_the_newest_are_kept_and_the_permanent(tmp_path):
  saver = checkpoint.Checkpoints(tmp_path, 2)
  for step in range(6):
    saver.save({"stage": step, "lines": []}, TREES, (), permanent=step == 1)
  saver.finish()
  assert steps_in(tmp_path) == [2, 5, 6]
  saver = checkpoint.Checkpoints(tmp_path, 1)  # a later session knows them too
  saver.newest()
  saver.save({"stage": 6, "lines": []}, TREES, ())
  saver.finish()
  assert steps_in(tmp_path) == [2, 7]


def files_of(path, i):
  """The two files of a frozen member, the copy last."""
  return sorted(pathlib.Path(path, "pool").rglob(f"{i:05d}-*"), key=lambda p: len(p.parts))


@pytest.mark.parametrize("damage", [flip, pathlib.Path.unlink, lambda p: p.write_bytes(p.read_bytes()[:-9])])
@pytest.mark.parametrize("which", [0, 1])
def test_any_one_bad_file_of_a_frozen_member_is_repaired(tmp_path, which, damage):
  fill(tmp_path, 3)
  files = files_of(tmp_path, 1)
  sound = files[which].read_bytes()
  damage(files[which])
  with pytest.warns(UserWarning, match=f"{files[which]} was .*, and was written again") as warned:
    opened = checkpoint.Checkpoints(tmp_path, 2).newest()
  assert len(warned) == 1
  assert opened.meta["stage"] == 2
  np.testing.assert_array_equal(opened.frozen((frozen(0), frozen(1)))[1]["w"], frozen(1)["w"])
  assert [file.read_bytes() for file in files] == [sound, sound]


def test_a_member_without_a_sound_file_is_written_again_by_the_checkpoint_before(tmp_path):
  fill(tmp_path, 3)
  for path in files_of(tmp_path, 1):
    flip(path)
  saver = checkpoint.Checkpoints(tmp_path, 2)
  with pytest.warns(UserWarning, match="both damaged or missing.*falling back"):
    assert saver.newest().meta["stage"] == 1
  saver.save({"stage": 2, "lines": []}, TREES, (frozen(0), frozen(1)))
  saver.finish()
  assert checkpoint.Checkpoints(tmp_path, 2).newest().meta["stage"] == 2


def test_a_member_that_all_checkpoints_need_and_none_has(tmp_path):
  fill(tmp_path, 3)
  for path in files_of(tmp_path, 0):
    flip(path)
  with pytest.raises(BadInput, match="cannot go on, .* lacks a network: .*/00000-.* and its copy .* restore"):
    checkpoint.Checkpoints(tmp_path, 2).newest()
  opened = checkpoint.Checkpoints(tmp_path, 2).open(3)
  assert list(opened.lost) == [0]
  first, second = opened.frozen((frozen(0), frozen(1)))
  assert first is None
  np.testing.assert_array_equal(second["w"], frozen(1)["w"])


def test_the_last_sound_checkpoint_outlives_damaged_ones(tmp_path):
  fill(tmp_path, 3)
  flip_a_bit(tmp_path / "checkpoints/3")
  saver = checkpoint.Checkpoints(tmp_path, 1)
  with pytest.warns(UserWarning, match="falling back"):
    saver.newest()
  saver._delete_stale()  # as before a save that is interrupted
  assert steps_in(tmp_path) == [2, 3]
  saver.save({"stage": 3, "lines": []}, TREES, ())
  saver.finish()
  assert steps_in(tmp_path) == [4]  # above the damaged one
  assert checkpoint.Checkpoints(tmp_path, 1).newest().meta["stage"] == 3


def test_a_changed_description_is_noticed(tmp_path):
  fill(tmp_path, 2)
  (path,) = [p for p in (tmp_path / "checkpoints/2/meta").rglob("*") if p.is_file() and '"stage"' in p.read_text()]
  path.write_text(path.read_text().replace('"stage": 1', '"stage": 7').replace('"stage":1', '"stage":7'))
  with pytest.warns(UserWarning, match="description does not match"):
    assert checkpoint.Checkpoints(tmp_path, 2).newest().meta["stage"] == 0


def test_frozen_members_are_written_once(tmp_path):
  fill(tmp_path, 3)
  written = {p: p.stat().st_mtime_ns for p in (tmp_path / "pool").rglob("*") if p.is_file()}
  saver = checkpoint.Checkpoints(tmp_path, 2)
  saver.newest()
  saver.save({"stage": 9, "lines": []}, TREES, (frozen(0), frozen(1)))
  saver.finish()
  assert written == {p: p.stat().st_mtime_ns for p in (tmp_path / "pool").rglob("*") if p.is_file()}


@pytest.mark.parametrize("what", ["meta", "arrays", "a bit"])
def test_damage_is_noticed_and_the_one_before_is_taken(tmp_path, what):
  fill(tmp_path, 3)
  if what == "a bit":
    flip_a_bit(tmp_path / "checkpoints/3")
  else:
    shutil.rmtree(tmp_path / "checkpoints/3" / what)
    (tmp_path / "checkpoints/3" / what).mkdir()
  with pytest.warns(UserWarning, match="checkpoint 3 of .* is damaged .* falling back"):
    assert checkpoint.Checkpoints(tmp_path, 2).newest().meta["stage"] == 1


def test_all_damaged_is_an_error_that_changes_nothing(tmp_path):
  fill(tmp_path, 3)
  for step in steps_in(tmp_path):
    flip_a_bit(tmp_path / "checkpoints" / str(step))
  before = sorted(p for p in tmp_path.rglob("*"))
  with pytest.raises(BadInput, match=r"cannot go on, because all its checkpoints are damaged: .*\(array"):
    checkpoint.Checkpoints(tmp_path, 2).newest()
  assert sorted(p for p in tmp_path.rglob("*")) == before


def test_a_leaf_without_place_or_source_is_an_error(tmp_path):
  fill(tmp_path, 1)
  opened = checkpoint.Checkpoints(tmp_path, 2).newest()
  for shapes, difference in (
      ({"w": jnp.zeros((200, 300)), "other": jnp.zeros(())}, "n is int32[] in its checkpoint and missing here"),
      ({"w": jnp.zeros((300, 200)), "n": np.int32(0)},
       "w is float32[200, 300] in its checkpoint and float32[300, 200] here")):
    with pytest.raises(BadInput) as caught:
      opened.tree("live", shapes)
    assert str(caught.value) == (f"the run in {tmp_path} was saved by another version of alma_jax: {difference}; "
                                 "use that version, or run it again with --overwrite.")


def test_old_lines_are_written_once(tmp_path, monkeypatch):
  """A checkpoint holds a bounded number of lines; all of them come back, and damage to sealed ones is noticed."""
  monkeypatch.setattr(checkpoint, "_PART", 3)
  saver = checkpoint.Checkpoints(tmp_path, 2)
  lines = []
  for t in range(1, 11):
    lines.append({"t": t})
    saver.save({"lines": lines}, TREES, ())
  saver.finish()
  again = checkpoint.Checkpoints(tmp_path, 2)
  assert again.newest().meta["lines"] == lines
  assert max(len(meta["lines"]) for meta in again.metas().values()) <= 3
  assert len(list((tmp_path / "checkpoints/history").glob("*.json"))) == 3
  again.save({"lines": [*lines[:-1], {"t": "another"}]}, TREES, ())  # the last line is never sealed
  again.finish()
  assert checkpoint.Checkpoints(tmp_path, 2).newest().meta["lines"] == [*lines[:-1], {"t": "another"}]
  parts = sorted((tmp_path / "checkpoints/history").rglob("00001-*"))
  flip(parts[0])
  with pytest.warns(UserWarning, match="was written again from its other copy"):
    assert len(checkpoint.Checkpoints(tmp_path, 2).newest().meta["lines"]) == 10
  for part in parts:
    flip(part)
  with pytest.raises(BadInput, match="all its checkpoints are damaged: .* both damaged"):
    checkpoint.Checkpoints(tmp_path, 2).newest()
