"""The end of a run: its summary and its curve."""
import importlib.metadata
import platform

from alma_jax import config as configs
from alma_jax.config import schema
from alma_jax.runs import metrics, settings, task_results
from alma_jax.runs.run_folder import RunFolder
from alma_jax.runs.snapshot import RunState
from alma_jax.version import __version__


def write(setting: settings.Setting, folder: RunFolder, now: RunState, seconds: dict[str, float]) -> None:
  """Writes summary.json and curve.png, once the last stage is saved.

  Args:
    setting: of the run.
    folder: of the run.
    now: the state of the run at its end.
    seconds: "wall_seconds" and "compile_seconds" of all sessions.
  """
  from alma_jax.runs import plots  # matplotlib is slow to import
  c, lines = setting.config, now.lines
  summary = metrics.summarize(lines, now.initial_params)
  if isinstance(c, schema.TaskConfig):
    summary |= task_results.summarize(lines)
  summary |= dict(**seconds, device=settings.describe_devices(setting.learner.mesh), versions=versions(),
                  config_sha256=configs.digest(c))
  judged = (f"average accuracy {summary['average_accuracy']:.3f}" if "average_accuracy" in summary else
            f"CER {summary['cer']:.3f}" if "cer" in summary else
            f"average perplexity {summary['average_perplexity']:.1f}")
  name = c.dataset.name.rstrip("/").rsplit("/", 1)[-1].split(":", 1)[-1]
  how = (f"waiting time {c.stream.waiting_time}" if c.stream.schedule == "every" else
         f"{summary['num_stages']} trainings ({c.stream.schedule})")
  title = f"{name}, {c.label}: {judged} over {len(lines)} " + (
      "tasks" if isinstance(c, schema.TaskConfig) else f"mega-batches, {how}")
  plots.curve(lines, setting.source.task.metric, title, folder.path / "curve.png", setting.source.chance,
             "tasks" if isinstance(c, schema.TaskConfig) else "mega-batches")
  folder.write_summary(summary)


def versions() -> dict[str, str]:
  """Versions of Python, of this package and of those whose numbers may change a result."""
  packages = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy")
  return dict(alma_jax=__version__, python=platform.python_version(),
              **{name: importlib.metadata.version(name) for name in packages})
