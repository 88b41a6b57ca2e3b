"""Run folders in stores: what is uploaded, what a kill leaves, and what is refused.

The quick tests use fsspec's store in memory, the slow ones an S3 server on this machine (moto).
"""
import contextlib
import functools
import hashlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
import warnings

import fsspec
import numpy as np
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from runs import ROOT, alma, assert_same_run, interrupted, launch, small_config

import alma_jax
from alma_jax import main
from alma_jax.errors import InUse
from alma_jax.monitor import view
from alma_jax.reports import collect
from alma_jax.store import lease, local_copy, mirror, remote, run_files


class Store:
  """fsspec's store in memory, with a log of its changes; and this machine's local folders, which can be lost."""

  def __init__(self, monkeypatch, tmp_path):
    self.log, self._path, self._machines, self._patch = [], tmp_path, 0, monkeypatch
    self.before = lambda name: None  # called before an object is written or deleted
    MemoryFileSystem.store.clear()
    MemoryFileSystem.pseudo_dirs[:] = [""]
    for method in ("pipe_file", "put_file", "rm_file"):
      monkeypatch.setattr(MemoryFileSystem, method, self._logged(method, getattr(MemoryFileSystem, method)))
    monkeypatch.setattr(lease, "SECONDS", 0.2)
    monkeypatch.setattr(remote, "PATIENCE", 0.3)
    self.new_machine()

  def new_machine(self):
    self._machines += 1
    self.home = self._path / f"machine{self._machines}"
    self._patch.setattr(run_files, "cache_home", lambda: self.home)
    self._patch.setattr(lease.platform, "node", lambda: str(self.home))

  def folder(self, address):
    return remote.Remote(address).folder

  def objects(self, root="/b/x/"):
    return {name.removeprefix(root): file.getvalue() for name, file in MemoryFileSystem.store.items()
            if name.startswith(root)}

  def replay(self, num):
    """The store as the first `num` changes have left it."""
    MemoryFileSystem.store.clear()
    for method, name, data in self.log[:num]:
      if method == "rm_file":
        del MemoryFileSystem.store[name]
      else:
        fsspec.filesystem("memory").open(name, "wb", data=data)

  def _logged(self, method, original):
    @functools.wraps(original)
    def changed(fs, *args, **options):
      name = fs._strip_protocol(args[1] if method == "put_file" else args[0])
      self.before(name)
      original(fs, *args, **options)
      self.log.append((method, name, fs.store[name].getvalue() if name in fs.store else None))
    return changed


@pytest.fixture
def store(monkeypatch, tmp_path):
  return Store(monkeypatch, tmp_path)


ADDRESS = "memory://b/x"


def config_of(learner="sm", **changes):
  return small_config(learner, **{"checkpoint__seconds": 0.0, "stream__waiting_time": 1, **changes})


@pytest.fixture(scope="module")
def whole(tmp_path_factory, arrays):
  """The folder of an uninterrupted local run of `gens`."""
  folder = tmp_path_factory.mktemp("whole") / "run"
  alma_jax.run(config_of("gens"), folder, data=arrays)
  return folder


def test_every_state_of_the_store_is_a_moment_of_the_run(store, whole, arrays):
  """After each single change of the store, as a kill would leave it, it holds one whole folder; two are resumed."""
  alma_jax.run(config_of("gens"), ADDRESS, data=arrays)
  assert_same_run(whole, store.folder(ADDRESS))
  local = {name: (store.folder(ADDRESS) / name).read_bytes() for name in local_copy.mirrored(store.folder(ADDRESS))}
  stored = store.objects()
  named = {name: data for name, data in local.items() if name in ("metrics.jsonl", "summary.json")}
  assert len(named) == 2
  assert {name: data for name, data in stored.items() if not name.startswith(".mirror/")} == named
  assert {name for name in stored if name.startswith(".mirror/")} == {  # no lease is left
      ".mirror/manifest.json", *remote.Remote(ADDRESS).manifest().objects.values()}
  moments = {}
  for num in range(1, len(store.log) + 1):
    store.replay(num)
    manifest = remote.Remote(ADDRESS).manifest()
    if manifest is None:
      continue
    moments.setdefault(manifest.time, num)
    objects = store.objects()
    assert {name: hashlib.sha256(objects[held]).hexdigest() for name, held in manifest.objects.items()} == {
        name: file.sha256 for name, file in manifest.files.items()}
  assert len(moments) > 4
  for num in list(moments.values())[1:-1:len(moments) // 2]:
    store.replay(num)
    store.new_machine()
    alma_jax.run(config_of("gens"), ADDRESS, data=arrays)
    assert_same_run(whole, store.folder(ADDRESS))
    assert {name: store.objects()[name] for name in named} == {
        name: (store.folder(ADDRESS) / name).read_bytes() for name in named}


def test_predictors_have_their_own_names_in_the_store(store, arrays):
  """Whenever latest.json names a version, its files are there. At the end the store holds what the folder holds."""
  alma_jax.run(config_of(log__predictor=True), ADDRESS, data=arrays)
  there = {}
  for _, name, data in store.log:
    there[name] = data
    if name.endswith("predictor/latest.json"):
      latest = json.loads(data)
      for file in latest["sha256"]:
        assert there[f"/b/x/predictor/{latest['version']}/{file}"] is not None
  folder = store.folder(ADDRESS)
  assert {name for name in store.objects() if name.startswith("predictor/")} == {
      name for name in local_copy.mirrored(folder) if name.startswith("predictor/")}
  assert store.objects()["predictor/latest.json"] == (folder / "predictor/latest.json").read_bytes()


def test_a_store_that_cannot_be_reached_loses_nothing(store, whole, arrays):
  """The run ends with one sentence. The same command goes on from the local folder, which is newer than the store."""
  def fail(name):
    if name.endswith("manifest.json") and sum("manifest" in name for _, name, _ in store.log) > 2:
      raise ConnectionError("no route to the host")

  store.before = fail
  with pytest.raises(alma_jax.Unsaved, match="memory://b/x cannot be written: no route to the host. What was saved"):
    alma_jax.run(config_of("gens"), ADDRESS, data=arrays)
  lines = (store.folder(ADDRESS) / "train.jsonl").read_bytes()
  store.before = lambda name: None
  alma_jax.run(config_of("gens"), ADDRESS, data=arrays)
  assert lines
  assert (store.folder(ADDRESS) / "train.jsonl").read_bytes().startswith(lines)  # with the seconds of the first session
  assert_same_run(whole, store.folder(ADDRESS))
  store.new_machine()
  assert_same_run(whole, alma_jax.load_run(ADDRESS).path)


def test_damaged_objects_are_noticed_and_replaced(store, whole, arrays):
  """A file of the pool is written again from its copy; of a damaged checkpoint the one before is taken."""
  late = lambda: len(list((store.folder(ADDRESS) / "pool").glob("0*"))) > 1  # two checkpoints refer to the first one
  with pytest.raises(alma_jax.Stopped):
    alma_jax.run(config_of("gens"), ADDRESS, data=arrays, should_stop=late)
  objects = remote.Remote(ADDRESS).manifest().objects
  names = sorted(objects)
  newest = max(int(name.split("/")[1]) for name in names if name.startswith("checkpoints/") and "history" not in name)
  doomed = [next(name for name in names if name.startswith("pool/0")),
            next(name for name in names if name.startswith(f"checkpoints/{newest}/arrays/d/"))]
  for name in doomed:
    data = bytearray(store.objects()[objects[name]])
    data[len(data) // 2] ^= 1
    fsspec.filesystem("memory").pipe_file(f"/b/x/{objects[name]}", bytes(data))
  store.new_machine()
  with warnings.catch_warnings(record=True) as warned:
    warnings.simplefilter("always")
    alma_jax.run(config_of("gens"), ADDRESS, data=arrays)
  said = [str(each.message) for each in warned]
  for expected in (*(f"{ADDRESS}/{name} is damaged or missing" for name in doomed), "was written again from its other",
                   f"checkpoint {newest} of"):
    assert sum(expected in sentence for sentence in said) == 1, said
  assert_same_run(whole, store.folder(ADDRESS))
  store.new_machine()
  assert local_copy.equalize(remote.Remote(ADDRESS)) == set()


def test_two_runs_of_one_address(store, arrays, monkeypatch):
  """The second is refused while the first one renews its lease; one that lost its lease commits nothing more."""
  monkeypatch.setattr(lease, "BEAT", 0.02)
  first = store.home
  with mirror.opened(ADDRESS) as opened:
    with pytest.raises(InUse, match="memory://b/x is in use by another process"):
      alma_jax.run(config_of(), ADDRESS, data=arrays)
    store.new_machine()
    with pytest.raises(InUse, match=f"memory://b/x is in use by a process on {first}"):
      alma_jax.run(config_of(), ADDRESS, data=arrays)
    monkeypatch.setattr(lease, "BEAT", 100.0)
    time.sleep(0.1)  # the last heartbeat
    alma_jax.run(config_of(), ADDRESS, data=arrays)  # as after the first machine was cut off
    before = store.objects()
    (opened.folder / "metrics.jsonl").write_text("{}\n")
    store.before = lambda name: None
    MemoryFileSystem.store.update(before)
    fsspec.filesystem("memory").pipe_file("/b/x/.mirror/lease.json", b'{"owner": "b", "session": "c"}')
    with pytest.raises(alma_jax.Unsaved, match="another process has taken over the run folder memory://b/x"):
      opened.finish()
    assert store.objects()[remote.MANIFEST] == before[remote.MANIFEST]


def test_what_reads_a_run_reads_addresses(store, whole, arrays, tmp_path):
  alma_jax.run(config_of("gens"), "memory://b/runs/x", data=arrays)
  alma_jax.run(config_of("sm"), "memory://b/runs/y", data=arrays)
  store.new_machine()
  folders = view.find(["memory://b/runs"])
  assert folders == [store.home / f"remote/memory/b/runs/{name}" for name in "xy"]
  assert not (folders[0] / "checkpoints").exists()
  records, said = collect.collect(["memory://b/runs", whole])
  assert len(records) == 1
  assert ["it is the same run as" in sentence for sentence in said] == [True]
  compared = alma("compare", "memory://b/runs/x", whole)
  assert compared.returncode == 0, compared.stderr
  assert sorted(line.split(": ")[0] for line in alma("status", "memory://b/runs").stdout.splitlines()) == [
      "memory://b/runs/x", "memory://b/runs/y"]
  run = alma_jax.load_run("memory://b/runs/x")
  assert main._report(run).endswith("\nmemory://b/runs/x")
  np.testing.assert_array_equal(run.predict(arrays[2]), alma_jax.load_run(whole).predict(arrays[2]))
  done = alma("export", "--workdir=memory://b/runs/x", f"--out={tmp_path / 'out'}")
  assert done.returncode == 0, done.stderr
  assert (tmp_path / "out/predictor.json").exists()
  for address in ("memory://b/none", "memory://b/runs"):
    with pytest.raises(alma_jax.BadInput, match=f"there is no run at {address}"):
      alma_jax.load_run(address)


def test_a_local_run_is_moved_to_a_store(store, whole, arrays):
  shutil.copytree(whole, store.folder(ADDRESS))
  alma_jax.run(config_of("gens"), ADDRESS, data=arrays)
  store.new_machine()
  assert_same_run(whole, alma_jax.load_run(ADDRESS).path)


def test_overwriting_starts_again_everywhere(store, arrays):
  alma_jax.run(config_of("gens"), ADDRESS, data=arrays)
  store.new_machine()
  with pytest.raises(alma_jax.BadInput, match="holds another run, which differs in learner"):
    alma_jax.run(config_of("sm"), ADDRESS, data=arrays)
  store.new_machine()
  alma_jax.run(config_of("sm"), ADDRESS, data=arrays, overwrite=True)
  manifest = remote.Remote(ADDRESS).manifest()
  assert not [name for name in manifest.files if name.startswith("pool/")]
  assert {name for name in store.objects() if name.startswith(remote.CONTENTS)} == {*manifest.objects.values()}
  store.new_machine()
  assert alma_jax.load_run(ADDRESS).config.learner.name == "sm"


def test_an_overwrite_that_is_killed_before_its_first_manifest_leaves_the_run(store, arrays):
  alma_jax.run(config_of(), ADDRESS, data=arrays)
  folder = store.folder(ADDRESS)
  local = {name: (folder / name).read_bytes() for name in local_copy.mirrored(folder)}
  (folder / local_copy.AHEAD).touch()  # an earlier session was killed, too
  with mirror.opened(ADDRESS, overwrite=True) as opened:
    spoil(folder, "everything")
    put(opened, "config.json", "{}")
  with pytest.warns(UserWarning, match="lacks files of memory://b/x"), mirror.opened(ADDRESS):
    pass
  assert {name: (folder / name).read_bytes() for name in local_copy.mirrored(folder)} == local


def test_refused_stores(store, arrays, monkeypatch):
  def refused(match, address=ADDRESS, error=alma_jax.BadInput):
    with pytest.raises(error, match=match):
      alma_jax.run(config_of(), address, data=arrays)

  refused("Protocol not known: nowhere", "nowhere://b/x")
  refused("is not an address of a folder", "s3://b/../x")
  fsspec.filesystem("memory").pipe_file("/b/x/metrics.jsonl", b"{}")
  refused("memory://b/x holds metrics.jsonl, but not from a run of alma_jax")
  MemoryFileSystem.store.clear()
  assert interrupted(config_of(), ADDRESS, 3, data=arrays)
  kept = store.objects()
  fsspec.filesystem("memory").pipe_file("/b/x/.mirror/manifest.json", kept[remote.MANIFEST].replace(b"[\n", b"[\n1", 1))
  refused("manifest.json is not what a run has written")
  MemoryFileSystem.store.clear()
  refused("memory://b/x is empty, although it has held the run whose local copy is")
  store.before = lambda name: (_ for _ in ()).throw(PermissionError("Access Denied"))
  refused("memory://b/x cannot be used: Access Denied.")
  store.before = lambda name: (_ for _ in ()).throw(ConnectionError("refused"))
  refused("memory://b/x cannot be written: refused", error=alma_jax.Unsaved)


# ------------------------------------------------------------------ damage, lost leases, readers

def spoil(folder, what):
  """Damages a local copy of a run, as a user or a disk might."""
  if what == "a bit":
    path = max((folder / "checkpoints").glob("*/arrays/d/*"), key=lambda path: path.stat().st_size)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))
  elif what == "checkpoints":
    shutil.rmtree(folder / "checkpoints")
  else:
    for name in local_copy.mirrored(folder):
      (folder / name).unlink()


@pytest.mark.parametrize("is_ahead", [False, True], ids=["stopped", "killed"])
@pytest.mark.parametrize("what", ["a bit", "checkpoints", "everything"])
def test_a_damaged_local_copy_of_an_unfinished_run(store, whole, arrays, monkeypatch, what, is_ahead):
  """What it lacks is fetched, and the run goes on from the checkpoint of the store."""
  assert interrupted(config_of("gens"), ADDRESS, 5, data=arrays)
  folder = store.folder(ADDRESS)
  (folder / local_copy.AHEAD).touch() if is_ahead else (folder / local_copy.AHEAD).unlink(missing_ok=True)
  spoil(folder, what)
  sums = lambda manifest: {name: file.sha256 for name, file in manifest.files.items()
                           if name.startswith("checkpoints/")}
  before, commit, saved = sums(remote.Remote(ADDRESS).manifest()), remote.Remote.commit, []
  monkeypatch.setattr(remote.Remote, "commit",
                      lambda self, manifest: (saved.append(sums(manifest)), commit(self, manifest)))
  with warnings.catch_warnings(record=True) as warned:
    warnings.simplefilter("always")
    alma_jax.run(config_of("gens"), ADDRESS, data=arrays)
  assert saved[0].items() >= before.items()
  said = [str(each.message) for each in warned]
  assert ["lacks files of memory://b/x, or has others" in each for each in said] == [True] * (not is_ahead)
  assert_same_run(whole, folder)


def test_a_damaged_local_copy_of_a_finished_run(store, arrays):
  """The store is not changed; commands that read the run repair the copy as well."""
  alma_jax.run(config_of(), ADDRESS, data=arrays)
  folder, kept = store.folder(ADDRESS), store.objects()
  local = {name: (folder / name).read_bytes() for name in local_copy.mirrored(folder)}
  for again in (lambda: alma_jax.run(config_of(), ADDRESS, data=arrays), lambda: local_copy.readable(ADDRESS)):
    for what in ("a bit", "checkpoints", "everything"):
      spoil(folder, what)
      with pytest.warns(UserWarning, match="lacks files of memory://b/x"):
        again()
      assert store.objects() == kept
      assert {name: (folder / name).read_bytes() for name in local_copy.mirrored(folder)} == local


def test_a_refused_local_copy_changes_nothing_in_the_store(store, arrays):
  """The lines of train.jsonl are in no checkpoint."""
  assert interrupted(config_of(), ADDRESS, 5, data=arrays)
  folder, kept = store.folder(ADDRESS), store.objects()
  (folder / local_copy.AHEAD).touch()
  (folder / "train.jsonl").write_text("{}\n")
  with pytest.raises(alma_jax.BadInput, match="train.jsonl"):
    alma_jax.run(config_of(), ADDRESS, data=arrays)
  assert store.objects() == kept


def put(opened, name, text):
  """Writes a file of a local copy, whole or not at all, as a run does."""
  path = opened.folder / name
  path.parent.mkdir(parents=True, exist_ok=True)
  path.with_name(".tmp").write_text(text)
  path.with_name(".tmp").replace(path)


class Flaky:
  """A file system whose network fails from one call on until `is_back` is set."""

  def __init__(self, fs, method, name):
    self._fs, self._at, self.is_down, self.is_back = fs, (method, name), threading.Event(), threading.Event()

  def __getattr__(self, method):
    def call(*args, **options):
      if method == self._at[0] and self._at[1] in str(args):
        self.is_down.set()
      if self.is_down.is_set() and not self.is_back.is_set():
        raise ConnectionError("down")
      return getattr(self._fs, method)(*args, **options)
    return call


@pytest.mark.parametrize(("method", "name"), [("put_file", "contents"), ("pipe_file", "manifest.json"),
                                          ("pipe_file", "lease.json"), ("put_file", "x/metrics.jsonl"),
                                          ("rm_file", "contents")])
def test_a_change_that_is_tried_again_after_the_lease_is_lost(store, monkeypatch, method, name):
  """The first machine loses the network in a put or a delete; when it is back, another one has gone on."""
  monkeypatch.setattr(remote, "PATIENCE", 20.0)
  monkeypatch.setattr(lease, "BEAT", 0.05 if "lease" in name else 100.0)
  with mirror.opened(ADDRESS) as first:
    put(first, "config.json", "{}")
    for text in ("one", "two"):
      put(first, "metrics.jsonl", text)
      first.take()
      first.wait()
    flaky = first._place._fs = Flaky(first._place._fs, method, name)
    put(first, "checkpoints/2/a", "two of the first")
    put(first, "metrics.jsonl", "three")
    first.take()
    assert flaky.is_down.wait(5)
    store.new_machine()
    monkeypatch.setattr(lease, "BEAT", 100.0)
    with mirror.opened(ADDRESS) as second:
      put(second, "metrics.jsonl", "two")  # the contents that the first one deletes
      put(second, "checkpoints/2/a", "two of the second")
      second.take()
      second.wait()
      before = store.objects()
      flaky.is_back.set()
      with pytest.raises(alma_jax.Unsaved, match="another process has taken over"):
        first.finish()
      with pytest.raises(alma_jax.Unsaved, match="another process has taken over"):
        first.check()
      assert store.objects() == before
      second.finish()
  objects = remote.Remote(ADDRESS).manifest().objects
  assert {store.objects()[objects[name]] for name in ("checkpoints/2/a", "metrics.jsonl")} == {
      b"two of the second", b"two"}
  assert {name for name in store.objects() if name.startswith(".mirror/")} == {remote.MANIFEST, *objects.values()}


@pytest.mark.parametrize("times", [1, 9])
def test_the_end_of_a_run_whose_manifest_is_replaced(store, times):
  """Once, by a late put, which is put right; or again and again."""
  with mirror.opened(ADDRESS) as opened:
    put(opened, "config.json", "{}")
    opened.take()
    opened.wait()
    commit, late = opened._place.commit, [remote.Manifest("other", {}, i) for i in range(times)]
    opened._place.commit = lambda manifest: (commit(manifest), late and commit(late.pop()))
    put(opened, "metrics.jsonl", "{}")
    with contextlib.nullcontext() if times == 1 else pytest.raises(alma_jax.Unsaved, match="has taken over"):
      opened.finish()
    assert (opened.folder / local_copy.AHEAD).exists() == (times != 1)
    assert set(opened._place.manifest().files) == ({"config.json", "metrics.jsonl"} if times == 1 else set())


def test_a_lost_lease_ends_the_run_before_its_next_checkpoint(store, arrays, monkeypatch):
  monkeypatch.setattr(lease, "BEAT", 0.02)
  calls = []

  def stolen():
    if len(calls) == 2:
      fsspec.filesystem("memory").pipe_file("/b/x/.mirror/lease.json", b'{"owner": "b", "session": "c"}')
      time.sleep(0.1)
    calls.append(1)
    return False

  with pytest.raises(alma_jax.Unsaved, match="another process has taken over"):
    alma_jax.run(config_of(checkpoint__seconds=1e6, train__epochs=100), ADDRESS, data=arrays, should_stop=stolen)
  assert len(calls) == 3
  assert b'"c"' in store.objects()[remote.LEASE]


def test_readers_wait_for_the_first_fetch_and_delete_nothing_large(store, arrays, monkeypatch):
  assert interrupted(config_of(), ADDRESS, 5, data=arrays)
  store.new_machine()
  first = local_copy.readable(ADDRESS)
  fetched = {path: path.read_bytes() for path in (first / "checkpoints").rglob("*") if path.is_file()}
  reader = store.home
  store.new_machine()
  equalize, read = local_copy.equalize, []
  thread = threading.Thread(target=lambda: read.append(local_copy.readable(ADDRESS)))

  def slow(place, *args, **named):
    if not thread.is_alive():
      thread.start()
      time.sleep(0.2)
      assert not read
    return equalize(place, *args, **named)

  monkeypatch.setattr(local_copy, "equalize", slow)
  alma_jax.run(config_of(), ADDRESS, data=arrays)
  thread.join()
  assert read == [store.folder(ADDRESS)]
  monkeypatch.setattr(local_copy, "equalize", equalize)
  monkeypatch.setattr(run_files, "cache_home", lambda: reader)
  assert alma_jax.load_run(ADDRESS).path == first  # while another command loads what it has fetched
  assert {path: path.read_bytes() for path in fetched} == fetched
  assert not set(fetched) <= {first / name for name in remote.Remote(ADDRESS).manifest().files}
  for path in fetched:
    os.utime(path, (0, 0))
  local_copy.readable(ADDRESS)
  assert local_copy.mirrored(first) == sorted(remote.Remote(ADDRESS).manifest().files)


def test_status_of_an_unfinished_run_and_a_run_below_another_one(store, arrays):
  """The status fetches no checkpoints. What belongs to a run below is not deleted as unused."""
  assert interrupted(config_of(), ADDRESS, 5, data=arrays)
  assert interrupted(config_of(), f"{ADDRESS}/export/y", 5, data=arrays)
  below = store.objects("/b/x/export/y/")
  store.new_machine()
  assert ", saved " in alma("status", ADDRESS).stdout
  alma_jax.run(config_of(), ADDRESS, data=arrays)
  assert store.objects("/b/x/export/y/") == below


def test_status_of_a_run_on_another_machine(store, arrays, monkeypatch):
  """Its address is shown. It is alive while its lease is renewed there; a lease of this folder says nothing."""
  assert interrupted(config_of(), ADDRESS, 5, data=arrays)
  status = lambda: alma("status", ADDRESS).stdout
  mine = store.home
  with mirror.opened(ADDRESS):
    kept = store.objects()[remote.LEASE]
    store.new_machine()
    monkeypatch.setattr(lease, "SECONDS", 60.0)
    assert status().startswith(f"{ADDRESS}: alive on {mine}, sm on ")
    assert view.view(store.folder(ADDRESS)).host == str(mine)
  assert status().startswith(f"{ADDRESS}: dead, sm on ")
  fsspec.filesystem("memory").pipe_file(f"/b/x/{remote.LEASE}", kept)  # as a kill leaves it
  assert ": alive on " in status()
  monkeypatch.setattr(lease, "SECONDS", 0.0)
  assert ": dead, " in status()
  monkeypatch.setattr(lease, "SECONDS", 60.0)
  monkeypatch.setattr(run_files, "cache_home", lambda: mine)
  monkeypatch.setattr(lease.platform, "node", lambda: str(mine))
  assert ": dead, " in status()


def test_readers_give_up_a_store_that_does_not_answer(store, monkeypatch):
  held = threading.Event()
  monkeypatch.setattr(local_copy, "READ_PATIENCE", 0.1)
  monkeypatch.setattr(MemoryFileSystem, "cat_file", lambda *args, **named: held.wait(10))
  try:
    done = alma("status", ADDRESS)
  finally:
    held.set()
  assert done.returncode == 2
  assert done.stderr == f"error: {ADDRESS} cannot be read: it does not answer.\n"


def test_objects_do_not_wait_in_turn_for_a_store(store, monkeypatch):
  """The patience is that of an outage, not of an object; after a call that worked there is all of it again."""
  monkeypatch.setattr(remote, "PATIENCE", 1.0)
  answers, calls = [], []

  def cat_file(unused_self, name, **unused):
    calls.append(name)
    if not answers:
      raise ConnectionError("no route")
    return answers.pop()

  monkeypatch.setattr(MemoryFileSystem, "cat_file", cat_file)
  place = remote.Remote("memory://b/x")

  def tries(name):
    before = len(calls)
    with pytest.raises(remote.Problem, match="no route"):
      place.read(name)
    return len(calls) - before

  assert tries("a") > 1
  assert sum(map(tries, "bcdef")) <= 8  # 15 if each had the patience of its own
  answers.append(b"1")
  assert place.read("g") == b"1"
  assert tries("h") > 1


def test_a_lease_that_can_be_neither_read_nor_made(store, monkeypatch):
  monkeypatch.setattr(remote.Remote, "create", lambda self, name, data: False)
  with pytest.raises(alma_jax.BadInput, match="lease.json can be neither read nor made"), mirror.opened(ADDRESS):
    pass


# ------------------------------------------------------------------ an S3 server on this machine

# A run that kills itself in the middle of its n-th call of the store, and has little patience.
SESSION = """
import os, signal, sys, threading
from alma_jax import main
from alma_jax.store import lease, remote

lease.SECONDS, lease.BEAT, remote.PATIENCE = 3.0, 0.5, 3.0
kill_at, calls, call = int(sys.argv[1]), [], remote.Remote._try

def counted(self, work, *args, **named):
  calls.append(1)
  if len(calls) == kill_at:
    threading.Timer(0.002, lambda: os.kill(os.getpid(), signal.SIGKILL)).start()
  return call(self, work, *args, **named)

remote.Remote._try = counted
if __name__ == "__main__":
  sys.exit(main.main(sys.argv[2:]))
"""
FLAGS = ("--config.stream.num_megabatches=4", "--config.model.width=4", "--config.train.epochs=4",
         "--config.checkpoint.seconds=0", "--config.log.tensorboard=false")


class Server:
  """An S3 server, and machines that run a config on it."""

  def __init__(self, tmp_path, monkeypatch):
    from moto.server import ThreadedMotoServer
    self._make = lambda port: ThreadedMotoServer("127.0.0.1", port, verbose=False)
    self._server = self._make(0)
    self._server.start()
    _, self._port = self._server.get_host_and_port()
    self.endpoint = f"http://127.0.0.1:{self._port}"
    for key, value in dict(AWS_ENDPOINT_URL=self.endpoint, AWS_ACCESS_KEY_ID="a", AWS_SECRET_ACCESS_KEY="b",
                           AWS_DEFAULT_REGION="us-east-1").items():
      monkeypatch.setenv(key, value)
    self.fs = fsspec.filesystem("s3", endpoint_url=self.endpoint, use_listings_cache=False, skip_instance_cache=True)
    urllib.request.urlopen(f"{self.endpoint}/moto-api/reset", b"")  # servers of one process share their buckets
    self.fs.mkdir("bucket")
    self._script = tmp_path / "session.py"
    self._script.write_text(SESSION)
    self._path = tmp_path

  def _environment(self, machine):
    return os.environ | dict(XDG_CACHE_HOME=str(self._path / machine), PYTHONPATH=str(ROOT))

  def start(self, machine, kill_at=0):
    args = [str(kill_at), "--config=digits:gens", "--config.devices=1", *FLAGS, "--workdir=s3://bucket/x"]
    return subprocess.Popen([sys.executable, self._script, *args], cwd=self._path, env=self._environment(machine),
                            stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)

  def run(self, machine, kill_at=0):
    process = self.start(machine, kill_at)
    _, errors = process.communicate(timeout=120)
    return process.returncode, errors

  def folder(self, machine):
    return self._path / machine / "alma_jax/remote/s3/bucket/x"

  def num_checkpoints(self):
    """Checkpoints in the store so far."""
    try:
      names = remote.parse_manifest(self.fs.cat_file("bucket/x/.mirror/manifest.json")).files
    except FileNotFoundError:
      return 0
    return max((int(name.split("/")[1]) for name in names if name.startswith("checkpoints/") and "history" not in name),
               default=0)

  def stop(self):
    self._server.stop()

  def restart(self):
    self._server = self._make(self._port)
    self._server.start()


@pytest.fixture
def server(tmp_path, monkeypatch):
  fsspec.get_filesystem_class("s3").clear_instance_cache()  # it would go on to another test's server
  made = Server(tmp_path, monkeypatch)
  yield made
  made.stop()


@pytest.fixture(scope="module")
def digits(tmp_path_factory):
  """The folder of an uninterrupted local run of what Server runs."""
  folder = tmp_path_factory.mktemp("digits") / "run"
  assert launch("digits:gens", *FLAGS, f"--workdir={folder}").returncode == 0
  return folder


def test_s3_killed_in_uploads_and_resumed_on_new_machines(server, digits, tmp_path, monkeypatch):
  """Each session is killed in the middle of a call of the store; the next one has an empty folder."""
  for number, kill_at in enumerate((40, 150)):
    code, errors = server.run(f"machine{number}", kill_at)
    assert code == -signal.SIGKILL, errors
  code, errors = server.run("last")
  assert code == 0, errors
  assert "resuming" in errors
  assert_same_run(digits, server.folder("last"))
  monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "reader"))
  assert_same_run(digits, alma_jax.load_run("s3://bucket/x").path)


def test_s3_second_run_and_a_machine_that_is_lost(server, digits):
  """While the first machine lives, a second one is refused; it takes over when the first one has been killed."""
  first = server.start("first")
  while server.num_checkpoints() < 1:
    assert first.poll() is None
    time.sleep(0.05)
  os.kill(first.pid, signal.SIGSTOP)  # as long as the second one takes to start
  second = server.start("second")
  while "waiting up to" not in (line := second.stderr.readline()):
    assert line
  os.kill(first.pid, signal.SIGCONT)
  _, errors = second.communicate(timeout=60)
  assert second.returncode == 2
  assert "error: the run folder s3://bucket/x is in use by a process on" in errors
  first.kill()
  first.communicate()
  code, errors = server.run("second")
  assert code == 0, errors
  assert_same_run(digits, server.folder("second"))


def test_s3_server_that_is_down(server, digits, tmp_path, monkeypatch):
  """One sentence and exit code 1; the same command goes on. A server that is down from the start is named as well."""
  process = server.start("machine")
  while server.num_checkpoints() < 2:
    assert process.poll() is None
    time.sleep(0.05)
  server.stop()
  _, errors = process.communicate(timeout=120)
  assert process.returncode == 1, errors
  assert errors.count("error: s3://bucket/x cannot be written: ") == 1
  assert "Traceback" not in errors
  code, errors = server.run("machine")
  assert code == 1
  assert errors.count("error: s3://bucket/x cannot be written: ") == 1
  server.restart()
  code, errors = server.run("machine")
  assert code == 0, errors
  monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "reader"))
  assert_same_run(digits, alma_jax.load_run("s3://bucket/x").path)


def test_two_processes_share_the_local_copy(tmp_path, monkeypatch):
  """Process 0 uploads; a process that does not see its local copy is refused."""
  store = f"file://{tmp_path}/store/x"

  def together(homes, workdir):
    with socket.socket() as free:
      free.bind(("127.0.0.1", 0))
      port = free.getsockname()[1]
    args = [sys.executable, "-m", "alma_jax.main", "--config=digits:gens", *FLAGS, f"--workdir={workdir}",
            f"--coordinator=127.0.0.1:{port}", "--num_processes=2"]
    started = [subprocess.Popen([*args, f"--process_id={i}"], stderr=subprocess.PIPE, stdout=subprocess.DEVNULL,
                                text=True, cwd=ROOT, env=os.environ | dict(XDG_CACHE_HOME=str(home)))
               for i, home in enumerate(homes)]
    errors = [process.communicate(timeout=120)[1] for process in started]
    return [process.returncode for process in started], errors

  codes, errors = together((tmp_path / "a", tmp_path / "b"), store)
  assert codes == [2, 2], errors
  assert any("set XDG_CACHE_HOME to a folder of a common file system" in each for each in errors)
  codes, errors = together((tmp_path / "c", tmp_path / "c"), store)
  assert codes == [0, 0], errors
  codes, errors = together((tmp_path / "c", tmp_path / "c"), tmp_path / "local")
  assert codes == [0, 0], errors
  monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "reader"))
  assert_same_run(tmp_path / "local", alma_jax.load_run(store).path)
