"""The pretrained root of learners of streams of tasks: the network of a finished run (docs/task-streams.md)."""
from alma_jax.config import schema
from alma_jax.data import cache
from alma_jax.errors import BadInput
from alma_jax.learners import contract
from alma_jax.runs import results, snapshot
from alma_jax.store import arrays


def load(config: schema.RunConfig) -> contract.Root | None:
  """The network of `learner.root`, after the last stage of its run; None if the config names none.

  Of a run on a stream of tasks it is the network of the last task.

  Raises:
    BadInput: there is no such run, it is not finished, or it has not one network.
  """
  path = config.learner.root
  if not path:
    return None
  try:
    run = results.load_run(path)
    if run.summary is None:
      raise BadInput("the run is not finished; its own command goes on with it.")
    opened, learner = run.open()
    state = snapshot.restore_learner(learner, opened)
    variables = learner.only_network(state)
    if variables is None:
      raise BadInput("the run has not one network; take a run of the learner sm, or on a stream of tasks.")
  except BadInput as error:
    raise BadInput(f"learner.root={path!r} cannot be used: {error}") from error
  return contract.Root(path, variables, cache.hash_arrays(dict(arrays.flatten(variables))))
