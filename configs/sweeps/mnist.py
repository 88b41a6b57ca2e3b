"""The paper's MNIST study: learners, widths, waiting times and seeds at its protocol.

    python -m alma_jax.sweep --config=configs/sweeps/mnist.py

500 mega-batches, 100 epochs a stage, Adadelta. gMoE splits an expert every 50
mega-batches, however long it waits, and ends with 10 experts a layer (waiting for
all 500 it never grows). One seed and one width after the other, so that a sweep
that is cut short has whole comparisons.
"""
from alma_jax.sweeps import Sweep, axis, product, zipped


def get_sweep():
  fixed = product(axis("waiting_time", [10, 50, 500, 1]), axis("learner", ["sm", "gens", "umix", "ens"]))
  growing = product(axis("learner", ["gmoe"]),
                    zipped(axis("waiting_time", [10, 50, 500, 1]), axis("grow_every", [5, 1, 1, 50])))
  return Sweep("configs/mnist.py", product(
      axis("seed", [0, 1, 2]), axis("width", [4, 32, 8, 64]), fixed + growing))
