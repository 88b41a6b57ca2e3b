"""`run`: checks a run, claims its folder, runs it by loop.py, and writes its summary and its curve."""
import contextlib
import functools
import os
import pathlib
import warnings
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Any

import jax

from alma_jax import config as configs
from alma_jax import extras, messages, protocols
from alma_jax.config import code, schema
from alma_jax.errors import BadInput, Diverged, Stopped, Unsaved, disk_problem, lacking
from alma_jax.parallel import environment, peers, runtime, sharding
from alma_jax.protocols.contract import State
from alma_jax.runs import listeners, loop, memory_check, progress, results, settings
from alma_jax.runs.listeners import Listener
from alma_jax.runs.oracle import Oracle
from alma_jax.store import checkpoint, local_copy, mirror, remote, run_files
from alma_jax.store.record import Record
from alma_jax.store.run_folder import RunFolder


@environment.fixed()
def run(config: Any, workdir: str | os.PathLike[str] | None = None, *, data: Sequence[Any] | None = None,
        overwrite: bool = False, should_stop: Callable[[], bool] | None = None) -> results.Run:
  """Runs a stream to its end. Resumes a run that was interrupted; computes nothing if it is complete.

  Args:
    config: ConfigDict (see `alma_jax.base_config` and configs/) or RunConfig.
    workdir: run folder, or its address as s3://bucket/runs/x; None: runs/NAME-LEARNER-HASH.
    data: (x_train, y_train, x_test, y_test) in place of `dataset.name`.
    overwrite: delete the run in the folder, and start again.
    should_stop: () -> bool, called between dispatches; True saves and stops.

  Returns:
    results.Run of the finished run.

  Raises:
    BadInput: config, data or folder cannot be used; nothing was computed.
    Diverged: the training loss is not finite; everything so far is saved.
    Unsaved: the disk is full or fails, memory is short, or a store cannot be reached; what was saved before is kept.
    Stopped: `should_stop` returned True; everything so far is saved.
  """
  going = steps(config, workdir, data=data, overwrite=overwrite, should_stop=should_stop)
  while True:
    try:
      next(going)
    except StopIteration as end:
      ended: results.Run = end.value
      return ended


def steps(config: Any, workdir: str | os.PathLike[str] | None = None, *, data: Sequence[Any] | None = None,
          overwrite: bool = False, should_stop: Callable[[], bool] | None = None, held: RunFolder | None = None
          ) -> Generator[loop.Session, None, results.Run]:
  """What `run` does. It yields the session when that is open, and while it waits for a mega-batch.

  Whoever fetches the next step does so inside `environment.fixed`. For the other arguments see `run`.

  Args:
    held: the run folder, if the caller has locked it and will release it.
  """
  config = configs.parse(config)
  if data is not None:
    config = config.with_arrays()
  if config.log.wandb:
    extras.need(f"log.wandb={config.log.wandb!r}", "wandb")
  runtime.setup(config)
  workdir = workdir or configs.default_workdir(config)
  path = remote.Remote(workdir).folder if run_files.is_address(workdir) else run_files.local(workdir)
  if path.exists() and not path.is_dir():
    raise BadInput(f"{path} is a file; the run folder should be a new or existing folder.")
  runtime.check_platform()
  peers.compare("settings", _settings(config, workdir, overwrite))
  jax.devices()  # the first use of the devices; the settings of the processes are equal
  if protocols.of(config).waits and jax.process_count() > 1:
    raise BadInput(f"dataset.name={config.dataset.name!r} is a live stream, which one process runs; start it without "
                   "other processes.")
  with contextlib.ExitStack() as cleanup:
    mirrored = _mirrored(workdir, path, overwrite, cleanup) if run_files.is_address(workdir) else None
    with messages.sign("loading the data", config.log.progress and sharding.is_main()):
      setting = settings.prepare(config, data, None if overwrite else path, results.load_root(config))
    # Before any collective, which would wait only 30 s for slow processes, and fail if numbers of devices differ.
    peers.compare("data or devices", setting.identity.digests | dict(
        devices=f"{jax.local_device_count()} x {jax.devices()[0].platform}"))
    sharding.connect()
    is_finished = not overwrite and (path / "summary.json").exists()
    compared = peers.together("log.oracle", lambda: None if is_finished or not config.log.oracle else Oracle(
        config, setting.protocol.fingerprint))
    peers.together("memory", lambda: None if is_finished else memory_check.check(setting))
    cleanup.enter_context(explained(functools.partial(shortage, path)))
    folder = peers.together("run folder", lambda: (held or cleanup.enter_context(RunFolder(
        path, sharding.is_main(), mirrored.address if mirrored else ""))).claim(setting.identity, overwrite))
    was_complete = Record(path).is_finished
    with _uploaded(mirrored):
      if was_complete:
        _mend(setting, folder)
      else:
        with explained(lambda error: folder.moved()):
          yield from _computed(setting, folder, mirrored, compared, should_stop or (lambda: False))
    sharding.barrier("the run is complete")
    run = results.load_run(path)
    if was_complete:
      sharding.say(f"{run_files.shown(path)} is complete.{_unused(setting.config, run.config)}")
    return run


def _unused(config: schema.RunConfig, stored: schema.RunConfig) -> str:
  """A sentence about the fields that differ from those of a complete run, which cannot change it."""
  now, then = (configs.flatten(configs.to_dict(each)) for each in (config, stored))
  names = sorted(name for name in now if now[name] != then.get(name))
  return (f" It has ended, so it ignores {', '.join(names)}; use `alma evaluate`, `alma export` or `alma report`, or "
          "run it again with --overwrite.") if names else ""


def _computed(setting: settings.Setting, folder: RunFolder, mirrored: mirror.Mirror | None,
              compared: Oracle | None, should_stop: Callable[[], bool]) -> Generator[loop.Session, None, None]:
  """Runs the stream from where it stands to its end."""
  folder.write({name: text.encode() for name, text in setting.protocol.files.items()}, again=False)
  shown, heard = _listeners(setting, folder, mirrored)
  session = loop.Session(setting, folder, shown, heard, should_stop)
  yield session
  try:
    state = yield from session.run()
  except jax.errors.JaxRuntimeError as error:
    if not should_stop():
      raise
    raise session.stopped(is_saved=False) from error  # Ctrl-C also ends a GPU's compiler, a process of its own
  if sharding.is_main():
    _end(setting, folder, state, compared)


def _end(setting: settings.Setting, folder: RunFolder, now: State, compared: Oracle | None) -> None:
  """Writes summary.json, curve.png and the protocol's reports, once all is saved.

  Args:
    setting, folder: of the run.
    now: the state at the end.
    compared: the run that it regrets against.
  """
  from alma_jax.runs import plots  # matplotlib is slow to import
  protocol, c, lines = setting.protocol, setting.config, now.lines
  folder.write(protocol.reports(setting.learner, now.learner.spec, lines))  # they may have been changed since
  summary = protocol.summary(lines, now.initial_params)
  summary |= compared.regret(summary) if compared else {}
  summary |= dict(wall_seconds=now.wall_seconds, compile_seconds=now.compile_seconds,
                  device=settings.describe_devices(setting.learner.mesh), versions=environment.versions(),
                  config_sha256=configs.digest(setting.given))
  curve = results.curve_of(c, protocol, protocol.measure, summary, lines)
  folder.write({"curve.png": plots.curve(curve), "summary.json": run_files.json_bytes(summary)})


def _mend(setting: settings.Setting, folder: RunFolder) -> None:
  """Writes damaged or changed files of a finished run again, and warns.

  metrics.jsonl, the results in summary.json and, of a stream of tasks, accuracy.csv and graph.json follow from the
  newest checkpoint. Without one, or if it cannot be read, nothing is done.
  """
  if not (folder.path / checkpoint.CHECKPOINTS).is_dir():
    return
  try:
    meta = checkpoint.Checkpoints(folder.path).newest_meta()
  except BadInput as error:
    warnings.warn(f"the files of {folder.shown} were not compared with its checkpoint: {error}", stacklevel=2)
    return
  summary = Record(folder.path).summary or {}
  lines = [] if meta is None else meta["lines"]
  if meta is None or len(lines) != summary.get("num_megabatches"):  # the last checkpoint has been deleted
    return
  folder.mend(run_files.METRICS, b"".join(map(run_files.encoded, lines)))
  for name, data in setting.protocol.reports(setting.learner, meta["spec"], lines).items():
    folder.mend(name, data)
  computed = setting.protocol.summary(lines, meta["initial_params"])
  if summary | computed != summary:
    folder.mend("summary.json", run_files.json_bytes(summary | computed))


def _listeners(setting: settings.Setting, folder: RunFolder, mirrored: mirror.Mirror | None
               ) -> tuple[progress.Progress, list[Listener]]:
  """(the progress display, all that hear how the run goes on, in their order)."""
  config, protocol = setting.config, setting.protocol
  shown = progress.Progress(config.log.progress and sharding.is_main(), loop.samples(setting), protocol.measure,
                            protocol.sizes().exact)
  heard: list[Listener] = [shown]  # first, because others show what they do
  if config.log.tensorboard and sharding.is_main():
    heard.append(listeners.TensorBoard(folder.path, config, protocol.measure))
  if config.log.wandb and sharding.is_main():
    heard.append(listeners.Wandb(folder.path, config, protocol.measure))
  if config.log.predictor:
    heard.append(listeners.Publisher(protocol, folder, shown.phase))
  if mirrored is not None:
    heard.append(listeners.Uploader(mirrored))
  return shown, heard


def _settings(config: schema.RunConfig, workdir: str | os.PathLike[str], overwrite: bool) -> dict[str, Any]:
  """Settings that have to be equal in all processes of a run."""
  flat = configs.flatten(configs.to_dict(config))
  same = {field: value for field, value in flat.items() if not field.startswith(("dataset.data_dir", "log."))}
  same |= {f"the version of {name}": version for name, version in environment.versions().items()}
  same |= {f"the file that defines {name}": code for name, code in code.code_of(config).items()}
  return same | environment.flags() | {"--workdir": str(workdir), "--overwrite": bool(overwrite)}


def _mirrored(address: str | os.PathLike[str], path: pathlib.Path, overwrite: bool,
              cleanup: contextlib.ExitStack) -> mirror.Mirror | None:
  """In process 0 the Mirror of an address; all processes have to see its local folder `path`."""
  def begin() -> mirror.Mirror | None:
    return cleanup.enter_context(mirror.opened(address, overwrite)) if sharding.is_main() else None

  opened = peers.together("remote folder", begin)
  try:
    peers.compare("local copy of the remote folder", dict(id=local_copy.own_id(path)))
  except BadInput as error:
    raise BadInput(f"the processes of a run at an address share its local copy {path}, but do not see the same folder "
                   "there; set XDG_CACHE_HOME to a folder of a common file system.") from error
  if opened is not None:
    sharding.say(f"{opened.address} has its local copy in {path}")
  return opened


@contextlib.contextmanager
def _uploaded(mirrored: mirror.Mirror | None) -> Iterator[None]:
  """Uploads the run folder after the block, whether the run has ended, was stopped or has diverged."""
  try:
    yield
  except (Diverged, Stopped):
    if mirrored is not None:
      mirrored.finish()
    raise
  if mirrored is not None:
    mirrored.finish()


@contextlib.contextmanager
def explained(explain: Callable[[Exception], str | None]) -> Iterator[None]:
  """Turns exceptions for which there is a sentence into Unsaved, wherever in the block they arrive."""
  try:
    yield
  except (BadInput, Diverged, Stopped, Unsaved):
    raise
  except Exception as error:
    sentence = explain(error)
    if sentence is None:
      raise
    raise Unsaved(sentence) from error


def shortage(path: pathlib.Path, error: Exception) -> str | None:
  """The message for a problem with the disk or memory, or for a checkpoint that could not be written; else None."""
  problem = disk_problem(error)
  if problem is not None:
    return (f"{path} cannot be written: {problem}. What was saved before is kept. Run the command again once the disk "
            "can be written, and it continues from there.")
  what = lacking(error)
  if what is not None:
    return (f"the run in {run_files.shown(path)} gets no more {what}. What was saved before is kept. Run the command "
            "again where the process may have more, and it continues from there.")
  if isinstance(error, checkpoint.NotSaved):
    return (f"the run in {run_files.shown(path)} could not write a checkpoint ({error}). Too little memory can be "
            "the cause. What was saved before is kept. Run the command again, and it continues from there.")
  return None
