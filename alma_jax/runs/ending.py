"""The end of a run: its summary and its curve; and what a finished run checks when it is started again."""
import warnings

from alma_jax import config as configs
from alma_jax.config import schema, sections
from alma_jax.errors import BadInput
from alma_jax.learners.task_learner import TaskLearner
from alma_jax.parallel import environment
from alma_jax.problems import sequence
from alma_jax.runs import settings, task_results
from alma_jax.runs.snapshot import RunState
from alma_jax.store import checkpoint, metrics, run_files
from alma_jax.store.record import Record
from alma_jax.store.run_folder import RunFolder


def write(setting: settings.Setting, folder: RunFolder, now: RunState, seconds: dict[str, float]) -> None:
  """Writes summary.json, curve.png and, of a stream of tasks, accuracy.csv and graph.json, once all is saved.

  Args:
    setting: of the run.
    folder: of the run.
    now: the state of the run at its end.
    seconds: "wall_seconds" and "compile_seconds" of all sessions.
  """
  from alma_jax.runs import plots  # matplotlib is slow to import
  c, lines, measure = setting.config, now.lines, settings.measure(setting)
  if isinstance(setting.source, sequence.Tasks):  # they may have been changed since the last task
    assert isinstance(setting.learner, TaskLearner)
    task_results.write(folder.path, setting.source, setting.learner, now.learner.spec, lines)
  summary = _results(setting, lines, now.initial_params)
  summary |= dict(**seconds, device=settings.describe_devices(setting.learner.mesh), versions=environment.versions(),
                  config_sha256=configs.digest(c))
  num, values = len(lines), measure.values(lines)
  judged = (f"average accuracy {summary['average_accuracy']:.3f}" if "average_accuracy" in summary else
            f"CER {summary['cer']:.3f}" if "cer" in summary else
            f"average perplexity {summary['average_perplexity']:.1f}")
  if measure.is_prequential:
    num = len(values)
    judged = f"{measure.name} {sum(values) / max(num, 1):.{1 if c.is_language else 3}f}"
  name = c.dataset.name.rstrip("/").rsplit("/", 1)[-1].split(":", 1)[-1]
  schedule, units = c.stream.schedule, c.unit
  how = (f"waiting time {schedule.waiting_time}" if isinstance(schedule, sections.Every) else
         f"{summary['num_stages']} training{'s' * (summary['num_stages'] != 1)} ({schedule.name})")
  title = f"{name}, {c.label}: {judged} over {num} {units}" + ("" if units == "tasks" else f", {how}")
  plots.curve(lines, measure, title, folder.path / "curve.png", setting.source.chance, units)
  folder.write_summary(summary)


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
  num = summary.get("num_megabatches") if setting.is_live else setting.stream.num_megabatches
  lines = [] if meta is None else meta["lines"]
  if meta is None or len(lines) != num:  # the last checkpoint has been deleted
    return
  folder.mend(run_files.METRICS, b"".join(map(run_files.encoded, lines)))
  if isinstance(setting.source, sequence.Tasks):
    assert isinstance(setting.learner, TaskLearner)
    for name, data in task_results.files(setting.source, setting.learner, meta["spec"], lines).items():
      folder.mend(name, data)
  results = _results(setting, lines, meta["initial_params"])
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


def _results(setting: settings.Setting, lines: list[metrics.Entry], initial_params: int) -> metrics.Entry:
  """What summary.json says about the lines of metrics.jsonl."""
  results = metrics.summarize(lines, initial_params)
  return results | task_results.summarize(lines) if isinstance(setting.config, schema.TaskConfig) else results


