"""The pretrained root of learners of streams of tasks: the network of a finished run (docs/task-streams.md)."""
import jax

from alma_jax.config import schema
from alma_jax.data import cache
from alma_jax.errors import BadInput
from alma_jax.learners import contract, stacked
from alma_jax.learners.task_learner import TaskLearner
from alma_jax.parallel import sharding
from alma_jax.runs import results, snapshot
from alma_jax.store import arrays
from alma_jax.types import Variables


def load(config: schema.RunConfig) -> contract.Root | None:
  """The network of `learner.root`, after the last stage of its run; None if the config names none.

  Of a run on a stream of tasks it is the network of the last task.

  Raises:
    BadInput: there is no such run, it is not finished, or it has not one network.
  """
  path = str(getattr(config.learner, "root", ""))
  if not path:
    return None
  try:
    run = results.load_run(path)
    if run.summary is None:
      raise BadInput("the run is not finished; its own command goes on with it.")
    opened, learner = run.open()
    state = snapshot.restore_learner(learner, opened)
    variables = _network(learner, state)
  except BadInput as error:
    raise BadInput(f"learner.root={path!r} cannot be used: {error}") from error
  return contract.Root(path, variables, cache.hash_arrays(dict(arrays.flatten(variables))))


def _network(learner: contract.Learner, state: contract.LearnerState) -> Variables:
  """Variables of the only network, numpy arrays."""
  if isinstance(learner, TaskLearner):
    return sharding.fetch(learner.shown_variables(state, state.spec["tasks"][-1]))
  blocks = stacked.blocks(state)
  sizes = [jax.tree.leaves(block)[0].shape[0] for block in blocks]
  if not isinstance(learner, stacked.Stacked) or sizes != [1]:
    raise BadInput("the run has not one network; take a run of the learner sm, or on a stream of tasks.")
  return jax.tree.map(lambda leaf: leaf[0], sharding.fetch(blocks[0]))
