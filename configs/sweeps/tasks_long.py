"""The long stream of tasks: does `mntdp` stay as good as a network for each task, with a fraction of the modules?

    python -m alma_jax.sweep --config=configs/sweeps/tasks_long.py --workers=1
    python -m alma_jax.report runs/tasks_long --out report

100 tasks of 5 classes (docs/task-streams.md), a VGG of width 8, two learning rates, and a fixed number of steps for
every training.
"""
from alma_jax.sweeps import Sweep, axis, product

TRAINING = {"dataset.name": "s_long", "model.name": "vgg", "model.width": 8, "train.steps": 200,
            "train.eval_every": 50, "train.batch_size": 64, "train.patience": 0, "train.learning_rate": (1e-3, 3e-3),
            "train.weight_decay": (0.0,)}
LEARNERS = [{"learner": "mntdp", "learner.neighbors": 5}, {"learner": "independent"}]  # small tasks have 25 images


def get_sweep():
  return Sweep("configs/tasks.py", product(axis("seed", [0, 1, 2]), LEARNERS), fixed=TRAINING)
