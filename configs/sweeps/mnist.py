"""The paper's MNIST study: learners, widths, a fine grid of waiting times and seeds, at equal epochs.

    python -m alma_jax.sweep --config=configs/sweeps/mnist.py
    python -m alma_jax.report runs/mnist --out report

500 mega-batches, Adadelta, 100 epochs a stage for every learner (paper, appendix B.1), so that `ens` costs exactly five
times what `sm` costs. gMoE and Firefly grow every 50 mega-batches if they can (every 40 at w = 20, every stage from
w = 100 on, never at w = 500).

The order lets an interrupted sweep end with whole comparisons: widths 4 and 32 come first, a seed after the other.
The runs have 2.5e14 multiply-adds. They took 6.1 hours of one core, two at once on two cores: 0.7, 0.7, 2.3 and 2.4
hours for widths 4, 8, 32 and 64 (docs/results/mnist). About 0.7 of them are due to other work.
"""
from alma_jax.sweeps import Sweep, axis, product, zipped

WAITS = [10, 1, 50, 500, 5, 100, 2, 20, 250]
GROW_EVERY = {1: 50, 2: 25, 5: 10, 10: 5, 20: 2, 50: 1, 100: 1, 250: 1, 500: 1}  # stages


def get_sweep():
  fixed = product(axis("waiting_time", WAITS), axis("learner", ["sm", "ens", "umix", "gens"]))
  growing = product(axis("learner", ["gmoe", "ff"]),
                    zipped(axis("waiting_time", WAITS), axis("grow_every", [GROW_EVERY[w] for w in WAITS])))
  return Sweep("configs/mnist.py", product(axis("width", [4, 32, 8, 64]), axis("seed", [0, 1, 2]), fixed + growing))
