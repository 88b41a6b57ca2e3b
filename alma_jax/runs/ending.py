"""The end of a run: its summary and its curve; and what a finished run checks when it is started again."""
import warnings

from alma_jax import config as configs
from alma_jax.errors import BadInput
from alma_jax.parallel import environment
from alma_jax.protocols.contract import State
from alma_jax.runs import settings
from alma_jax.store import checkpoint, run_files
from alma_jax.store.record import Record
from alma_jax.store.run_folder import RunFolder


def write(setting: settings.Setting, folder: RunFolder, now: State) -> None:
  """Writes summary.json, curve.png and the protocol's reports, once all is saved.

  Args:
    setting: of the run.
    folder: of the run.
    now: the state of the run at its end.
  """
  from alma_jax.runs import plots  # matplotlib is slow to import
  protocol, c, lines = setting.protocol, setting.config, now.lines
  folder.write_reports(protocol.reports(setting.learner, now.learner.spec, lines))  # they may have been changed since
  summary = protocol.summary(lines, now.initial_params)
  summary |= dict(wall_seconds=now.wall_seconds, compile_seconds=now.compile_seconds,
                  device=settings.describe_devices(setting.learner.mesh), versions=environment.versions(),
                  config_sha256=configs.digest(c))
  name = c.dataset.name.rstrip("/").rsplit("/", 1)[-1].split(":", 1)[-1]
  title = f"{name}, {c.label}: {protocol.headline(summary, lines)}"
  picture = plots.curve(lines, protocol.measure, title, protocol.chance, protocol.labels)
  folder.write_reports({"curve.png": picture, "summary.json": run_files.json_bytes(summary)})


def mend(setting: settings.Setting, folder: RunFolder) -> None:
  """Writes the files of a finished run again that are not what it has written, and warns.

  metrics.jsonl, the results in summary.json and, of a stream of tasks, accuracy.csv and graph.json follow from the
  newest checkpoint. Without one, or if it cannot be read, nothing is done.

  Args:
    setting: of the run.
    folder: of the run, with a summary.json.

  Raises:
    BadInput: summary.json is not that of a run.
  """
  if not (folder.path / checkpoint.CHECKPOINTS).is_dir():
    return
  meta = _newest_meta(folder)
  summary = Record(folder.path).summary or {}
  lines = [] if meta is None else meta["lines"]
  if meta is None or len(lines) != summary.get("num_megabatches"):  # the last checkpoint has been deleted
    return
  folder.mend(run_files.METRICS, b"".join(map(run_files.encoded, lines)))
  for name, data in setting.protocol.reports(setting.learner, meta["spec"], lines).items():
    folder.mend(name, data)
  results = setting.protocol.summary(lines, meta["initial_params"])
  if any(summary.get(name) != value for name, value in results.items()):
    folder.mend("summary.json", run_files.json_bytes(summary | results))


def _newest_meta(folder: RunFolder) -> checkpoint.Meta | None:
  try:
    checkpoints = checkpoint.Checkpoints(folder.path, 1, create=False)
    meta = checkpoints.newest_meta()
    checkpoints.finish()
    return meta
  except BadInput as error:
    warnings.warn(f"the files of {folder.shown} were not compared with its checkpoint: {error}", stacklevel=2)
    return None
