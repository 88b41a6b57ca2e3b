"""Run folders in stores: what is uploaded, what a kill leaves, and what is refused, on fsspec's store in memory."""
import contextlib
import functools
import hashlib
import json
import os
import shutil
import threading
import time
import warnings

import fsspec
import numpy as np
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from runs import alma, assert_same_run, interrupted, small_config

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


def test_what_reads_a_run_reads_addresses(store, whole, arrays, monkeypatch, tmp_path):
  shutil.copytree(whole, store.folder("memory://b/runs/x"))
  for learner, name in (("gens", "x"), ("sm", "y")):
    alma_jax.run(config_of(learner), f"memory://b/runs/{name}", data=arrays)
  store.new_machine()
  folders = view.find(["memory://b/runs"])
  assert folders == [store.home / f"remote/memory/b/runs/{name}" for name in "xy"]
  assert not (folders[0] / "checkpoints").exists()
  (study,), said = collect.collect(["memory://b/runs", whole])
  local = alma_jax.load_run(whole)
  assert study.runs.set_index("learner.name")["cer"]["gens"] == local.summary["cer"]
  np.testing.assert_array_equal(study.stream[study.stream["run"].str.endswith("x")]["error"], local.metrics["error"])
  assert ["it is the same run as" in sentence for sentence in said] == [True]
  compared = alma("compare", "memory://b/runs/x", whole)
  assert compared.returncode == 0, compared.stderr
  assert sorted(line.split()[0] for line in alma("status", "memory://b/runs").stdout.splitlines()[1:]) == [
      "memory://b/runs/x", "memory://b/runs/y"]
  run = alma_jax.load_run("memory://b/runs/x")
  assert main._report(run).splitlines()[0].endswith("  memory://b/runs/x")
  assert f"  picture     {run.path}/curve.png" in main._report(run)
  np.testing.assert_array_equal(run.predict(arrays[2]), alma_jax.load_run(whole).predict(arrays[2]))
  done = alma("export", "--workdir=memory://b/runs/x", f"--out={tmp_path / 'out'}")
  assert done.returncode == 0, done.stderr
  assert (tmp_path / "out/predictor.json").exists()
  np.savez(tmp_path / "new.npz", x=arrays[2], y=arrays[3])
  fetched, fetch = [], local_copy._fetch
  monkeypatch.setattr(local_copy, "_fetch", lambda *args, **options: fetched.append(args) or fetch(*args, **options))
  done = alma("evaluate", "--workdir=memory://b/runs/x", f"--data={tmp_path / 'new.npz'}")
  assert (done.returncode, len(fetched)) == (0, 1), done.stderr
  for address in ("memory://b/none", "memory://b/runs"):
    with pytest.raises(alma_jax.BadInput, match=f"there is no run at {address}"):
      alma_jax.load_run(address)


def test_a_local_run_is_moved_to_a_store(store, whole, arrays, monkeypatch):
  shutil.copytree(whole, store.folder(ADDRESS))
  alma_jax.run(config_of("gens"), ADDRESS, data=arrays)
  store.new_machine()
  fetched, get = [], MemoryFileSystem.get_file
  monkeypatch.setattr(
      MemoryFileSystem, "get_file", lambda fs, name, *args: (fetched.append(name), get(fs, name, *args)))
  assert_same_run(whole, alma_jax.load_run(ADDRESS).path)
  manifest = remote.Remote(ADDRESS).manifest()
  assert len(fetched) == len({*manifest.objects.values()}) < len(manifest.files)  # equal files are fetched once


def test_overwriting_starts_again_everywhere(store, whole, arrays):
  shutil.copytree(whole, store.folder(ADDRESS))
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


@pytest.mark.parametrize(("what", "is_ahead"), [("a bit", False), ("a bit", True), ("checkpoints", True),
                                                ("everything", True)])
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


def test_damage_of_a_finished_run_in_the_store_is_repaired(store, arrays, capsys):
  """What is missing or cut comes from the local copy; of the rest, what follows from a checkpoint is repaired."""
  alma_jax.run(config_of(), ADDRESS, data=arrays)
  kept, objects, fs = store.objects(), remote.Remote(ADDRESS).manifest().objects, fsspec.filesystem("memory")
  flip = lambda name: fs.pipe_file(f"/b/x/{objects[name]}", kept[objects[name]].replace(b"1", b"2", 1))
  fs.rm_file(f"/b/x/{objects['config.json']}")
  fs.pipe_file(f"/b/x/{objects['train.jsonl']}", b"")
  fs.rm_file("/b/x/metrics.jsonl")
  store.log.clear()
  alma_jax.run(config_of(), ADDRESS, data=arrays)
  assert store.objects() == kept
  assert [method for method, *_ in store.log].count("put_file") == 3
  assert "3 of 3 damaged or missing objects of memory://b/x were uploaded again" in capsys.readouterr().err
  flip("metrics.jsonl")
  flip("train.jsonl")  # nothing else has its lines
  lost = store.objects()[objects["train.jsonl"]]
  store.new_machine()
  with pytest.warns(UserWarning, match=r"metrics\.jsonl is damaged or missing"):
    alma_jax.run(config_of(), ADDRESS, data=arrays)
  manifest = {remote.MANIFEST: store.objects()[remote.MANIFEST]}  # with the new machine's id
  assert store.objects() == kept | {objects["train.jsonl"]: lost} | manifest


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
  assert " saved " in alma("status", ADDRESS).stdout
  alma_jax.run(config_of(), ADDRESS, data=arrays)
  assert store.objects("/b/x/export/y/") == below


def test_status_of_a_run_on_another_machine(store, arrays, monkeypatch):
  """Its address is shown. It is alive while its lease is renewed there; a lease of this folder says nothing."""
  assert interrupted(config_of(), ADDRESS, 5, data=arrays)
  status = lambda: alma("status", ADDRESS).stdout.splitlines()[1].split()[:2]
  mine = store.home
  with mirror.opened(ADDRESS):
    kept = store.objects()[remote.LEASE]
    store.new_machine()
    monkeypatch.setattr(lease, "SECONDS", 60.0)
    assert status() == [ADDRESS, "alive"]
    assert f"on {mine}" in alma("status", ADDRESS).stdout
    assert view.view(store.folder(ADDRESS)).host == str(mine)
  assert status() == [ADDRESS, "stopped"]
  fsspec.filesystem("memory").pipe_file(f"/b/x/{remote.LEASE}", kept)  # as a kill leaves it
  assert status() == [ADDRESS, "alive"]
  monkeypatch.setattr(lease, "SECONDS", 0.0)
  assert status() == [ADDRESS, "stopped"]
  monkeypatch.setattr(lease, "SECONDS", 60.0)
  monkeypatch.setattr(run_files, "cache_home", lambda: mine)
  monkeypatch.setattr(lease.platform, "node", lambda: str(mine))
  assert status() == [ADDRESS, "stopped"]


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
