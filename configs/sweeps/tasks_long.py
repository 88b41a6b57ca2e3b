"""The long stream of tasks: does `mntdp` stay as good as a network for each task, with a fraction of the modules?

    python -m alma_jax.sweep --config=configs/sweeps/tasks_long.py --workdir runs/tasks_long
    python -m alma_jax.sweep --config=configs/sweeps/tasks_long.py:vgg --workdir runs/tasks_long_vgg

100 tasks of 5 classes (docs/task-streams.md), with the networks and learning rates of configs/sweeps/tasks.py: `mlp`,
the default, or `vgg`. Every training has the same fixed number of steps.
"""
from alma_jax.errors import BadInput
from alma_jax.sweeps import Sweep, axis, product

STEPS = {"dataset.name": "s_long", "train.batch_size": 64, "train.patience": 0, "train.weight_decay": (0.0,)}
FIXED = {"mlp": {**STEPS, "model.name": "mlp", "model.width": 64, "train.steps": 400, "train.eval_every": 40,
                 "train.learning_rate": (1e-3,)},
         "vgg": {**STEPS, "model.name": "vgg", "model.width": 8, "train.steps": 300, "train.eval_every": 50,
                 "train.learning_rate": (3e-3,)}}
LEARNERS = [{"learner": "mntdp", "learner.neighbors": 5}, {"learner": "independent"}]  # small tasks have 25 images


def get_sweep(network: str = "mlp"):
  if network not in FIXED:
    raise BadInput(f"there is no network {network!r} in this sweep; the networks are {' and '.join(FIXED)}.")
  return Sweep("configs/tasks.py", product(axis("seed", [0, 1, 2]), LEARNERS), fixed=FIXED[network])
