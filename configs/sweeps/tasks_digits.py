"""The learners of streams of tasks on the bundled digits, without a download.

    python -m alma_jax.sweep --config=configs/sweeps/tasks_digits.py
    python -m alma_jax.report runs/tasks_digits --out report

Eight small tasks, of which the fifth is the first one again. The last one has all classes and few examples.
"""
from alma_jax.sweeps import Sweep, axis, product

LEARNERS = ["independent", "select", "mntdp", "finetune", "new_head", "replay", "oracle"]


def get_sweep():
  return Sweep("configs/tasks.py", product(axis("learner", LEARNERS), axis("seed", [0, 1, 2])))
