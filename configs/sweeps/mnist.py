"""The paper's MNIST study: learners, widths, a fine grid of waiting times and seeds, at equal epochs.

    python -m alma_jax.sweep --config=configs/sweeps/mnist.py
    python -m alma_jax.report runs/mnist --out report

500 mega-batches, Adadelta, 100 epochs a stage for every learner (paper, appendix B.1), so that `ens` costs exactly five
times what `sm` costs. gMoE and Firefly grow every 50 mega-batches if they can (every 40 at w = 20, every stage from
w = 100 on, never at w = 500).

The order lets an interrupted sweep end with whole comparisons: widths 4 and 32 come first, a seed after the other.
The runs have 1.9e14 multiply-adds. Two CPU cores take about 4 hours, 2 of them for these widths: the training steps of
single networks, times the seconds of a step in the runs of docs/results/mnist_authors (0.17, 0.13, 0.27 and 0.60 ms at
widths 4, 8, 32 and 64, two runs at once).
"""
from alma_jax.sweeps import Sweep, axis, product, zipped

WAITS = [10, 1, 50, 500, 5, 100, 2, 20, 250]
GROW_EVERY = {1: 50, 2: 25, 5: 10, 10: 5, 20: 2, 50: 1, 100: 1, 250: 1, 500: 1}  # stages


def get_sweep():
  fixed = product(axis("waiting_time", WAITS), axis("learner", ["sm", "ens", "umix", "gens"]))
  growing = product(axis("learner", ["gmoe", "ff"]),
                    zipped(axis("waiting_time", WAITS), axis("grow_every", [GROW_EVERY[w] for w in WAITS])))
  return Sweep("configs/mnist.py", product(axis("width", [4, 32, 8, 64]), axis("seed", [0, 1, 2]), fixed + growing))
