"""What a session does for a live stream besides waiting: the learner is fitted to what has arrived."""
from typing import Any, NamedTuple

from alma_jax.data import feed
from alma_jax.errors import BadInput
from alma_jax.learners import outputs
from alma_jax.learners.contract import LearnerState
from alma_jax.runs import settings
from alma_jax.store import checkpoint
from alma_jax.store.run_folder import RunFolder


class Fitted(NamedTuple):
  """A setting for a stage that the one before had no room for.

  Attributes:
    setting: Setting with another learner.
    state: LearnerState of that learner.
    most_val: the largest number of validation examples that its stages can have.
    num_new: outputs that were added.
  """
  setting: settings.Setting
  state: LearnerState
  most_val: int
  num_new: int


def resumed(setting: settings.Setting, folder: RunFolder, opened: checkpoint.Opened | None) -> settings.Setting:
  """The setting of a live run with as many outputs as its checkpoint has; `folder` is written to from now on.

  Raises:
    BadInput: the run folder lacks mega-batches that the checkpoint covers.
  """
  source: Any = setting.source
  source.feed.attach(folder.path)
  if opened is None:
    return setting
  num, covered = len(source.feed.lines), len(opened.meta["lines"])
  if num < covered:
    raise BadInput(f"{folder.path / feed.LEDGER} has {num} mega-batches, but the checkpoint covers {covered}; "
                   "restore the file, or --overwrite the run.")
  source.set_outputs(settings.problem_of(setting.config, opened.meta["data"]).num_outputs)
  return settings.built(setting.config, source, setting.stream.most_val)._replace(arrays=setting.arrays)


def fitted(setting: settings.Setting, state: LearnerState, ends: tuple[int, ...], most_val: int) -> Fitted | None:
  """What the last of the stages that end at `ends` needs; None if everything can stay as it is.

  The network gets an output for every class that is known now, and the programs get room for the validation examples.

  Args:
    setting: of the run.
    state: of its learner, before the stage.
    ends: see data.memory.
    most_val: how many validation examples there is room for.
  """
  source: Any = setting.source
  num_outputs, num_val = source.num_outputs_after(ends[-1]), len(setting.stream.stage(ends).val)
  num_new = num_outputs - source.problem.num_outputs
  if not num_new and num_val <= most_val:
    return None
  if num_val > most_val:
    most_val = max(num_val, 2 * most_val)
  source.set_outputs(num_outputs)
  grown = settings.built(setting.config, source, most_val)._replace(arrays=setting.arrays)
  if num_new:
    old, new = setting.learner, grown.learner
    fresh: Any = new  # every learner is a Stacked
    state = outputs.add_classes(old, new, state, fresh.fresh(len(ends) - 1, state.spec))
  return Fitted(grown, state, most_val, num_new)
