"""The anytime learner on a text, at the multiply-adds of the network that trains on each mega-batch alone.

    python -m alma_jax.sweep --config=configs/sweeps/anytime_books.py --config.dataset.name=text:books
    python -m alma_jax.report runs/anytime_books --out report

Four mega-batches, 300 steps a stage, the model `tiny`; the first version of `anytime`; and `sm` with its learning rate,
which shows what replay is worth. The results are in docs/results/anytime.
"""
from alma_jax.sweeps import Sweep, axis, product


def get_sweep():
  learners = [*axis("learner", ["sm", "anytime", "anytime,tiny,v1"]), {"learner": "sm", "decay": 0.3}]
  points = product(axis("seed", [0, 1, 2]), learners)
  return Sweep("configs/lm.py", points)
