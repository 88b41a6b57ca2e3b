"""The long stream of tasks: does `mntdp` stay as good as a network for each task, with a fraction of the modules?

    python -m alma_jax.sweep --config=configs/sweeps/tasks_long.py
    python -m alma_jax.report runs/tasks_long --out report

100 tasks of 5 classes (docs/task-streams.md), and the VGG and its learning rate of configs/sweeps/tasks.py. Every
training has the same fixed number of steps.
"""
from alma_jax.sweeps import Sweep, axis, product

TRAINING = {"dataset.name": "s_long", "model.name": "vgg", "model.width": 8, "train.steps": 300,
            "train.eval_every": 50, "train.batch_size": 64, "train.patience": 0, "train.learning_rate": (3e-3,),
            "train.weight_decay": (0.0,)}
LEARNERS = [{"learner": "mntdp", "learner.neighbors": 5}, {"learner": "independent"}]  # small tasks have 25 images


def get_sweep():
  return Sweep("configs/tasks.py", product(axis("seed", [0, 1, 2]), LEARNERS), fixed=TRAINING)
