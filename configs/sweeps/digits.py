"""Two learners, two waiting times and two seeds on digits: a small sweep, to try the commands.

    python -m alma_jax.sweep --config=configs/sweeps/digits.py
"""
from alma_jax.sweeps import Sweep, axis, product


def get_sweep():
  return Sweep("configs/digits.py", product(
      axis("learner", ["sm", "ens"]), axis("waiting_time", [1, 5]), axis("seed", [0, 1])))
