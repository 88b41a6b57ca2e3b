"""The state that a run starts from: untrained, or that of its newest checkpoint."""
from typing import Any

from alma_jax.errors import BadInput
from alma_jax.parallel import sharding
from alma_jax.parallel.sharding import say
from alma_jax.runs import settings, snapshot
from alma_jax.runs.snapshot import RunState
from alma_jax.store import checkpoint, run_files
from alma_jax.store.run_files import METRICS
from alma_jax.store.run_folder import RunFolder


def refuse_lost_checkpoints(folder: RunFolder) -> None:
  """If the checkpoints have disappeared, the run would start again and overwrite its lines.

  Raises:
    BadInput: they have.
  """
  lost = (folder.path / METRICS).exists() and not (folder.path / checkpoint.CHECKPOINTS).is_dir()
  if sharding.any_process(lost and sharding.is_main()):
    raise BadInput(f"{run_files.shown(folder.path)} holds {METRICS}, but its folder checkpoints has disappeared; "
                   "restore it, or --overwrite the run.")


def untrained(setting: settings.Setting, folder: RunFolder) -> RunState:
  """The state of a run that begins."""
  learner = setting.learner.init()
  num_params = setting.learner.cost(learner).num_params
  if (folder.path / METRICS).exists():
    say(f"no checkpoint has been saved in {run_files.shown(folder.path)} yet; the run starts again")
  say(f"running in {run_files.shown(folder.path)}, from {num_params:,} parameters")
  return RunState(learner, num_params, constants=setting.source.constants)


def restored(setting: settings.Setting, folder: RunFolder, opened: checkpoint.Opened,
              examiner: Any) -> RunState:
  """The state that a checkpoint holds; the saved predictions are given to the examiner.

  Raises:
    BadInput: config.json is not that of the checkpoint, or the learner is another one.
  """
  snapshot.check_config(folder.path, setting.config, opened.meta)
  now = snapshot.restore(setting, opened, examiner)
  if not setting.is_live and len(now.lines) == setting.stream.num_megabatches:
    say(f"resuming {folder.shown} after the last of {now.stage} stages")
  else:
    after = f", after {settings.round_name(setting)} {now.epoch}" if now.epoch else ""
    say(f"resuming {folder.shown} in stage {now.stage + 1}{settings.of_stages(setting)}{after}")
  return now
