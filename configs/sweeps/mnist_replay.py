"""Replay, growth intervals and sizes, hard gates, and training from scratch on MNIST.

    python -m alma_jax.sweep --config=configs/sweeps/mnist_replay.py
    python -m alma_jax.report runs/mnist_replay --out report

500 mega-batches, 100 epochs a stage. The runs answer three questions of the paper:

  REPLAY   Is all data so far, at (S + 1) / 2 times the compute of S stages, a better trade-off (Figure 8)? Also with
           stages that start from scratch.
  GROWTH   When and by how much to grow? gMoE and Firefly at several intervals, Firefly at two rates.
  FIXED    What fixed learners reach at the cost of those: wider networks, and mixtures of four experts.

Width 8 (replay) or 4 (growth) stands for small networks, 32 for large ones. The runs have 2.2e14 multiply-adds, and
took 8.3 hours of one core (docs/results/mnist_replay).
"""
from alma_jax.sweeps import Sweep, axis, product

REPLAY = product(axis("replay", [0.0, 1.0]), axis("width", [8, 32]), [
    *product(axis("waiting_time", [50]), axis("learner", ["sm", "ens", "umix", "gens", "gmoe"])),
    *product(axis("waiting_time", [10]), axis("learner", ["sm", "ens"])),
])
# Without replay `umix` has the lowest CER of width 8, and `ens` that of width 32.
LOWEST = product(axis("replay", [0.0, 1.0]), axis("width", [8]), axis("waiting_time", [10]), axis("learner", ["umix"]))
SCRATCH = product(axis("replay", [0.0, 1.0]), axis("width", [8, 32]), axis("waiting_time", [50]),
                  axis("learner", ["sm", "ens"]), axis("init_from_scratch", [True]))
GROWTH = product(axis("waiting_time", [10]), axis("width", [4, 32]), [
    *product(axis("learner", ["gmoe"]), axis("grow_every", [2, 5, 10, 25])),
    *product(axis("learner", ["gmoe"]), axis("grow_every", [5]), axis("gating", ["hard"])),
    *product(axis("learner", ["ff"]), axis("grow_every", [5, 10, 25]), axis("growth_rate", [0.25, 0.5])),
])
FIXED = product(axis("waiting_time", [10]), [
    *product(axis("width", [4, 12, 16, 48, 64, 96]), axis("learner", ["sm"])),
    *product(axis("width", [4, 32]), axis("learner", ["moe"]), axis("gating", ["soft", "hard"])),
])


def get_sweep():
  return Sweep("configs/mnist.py", product(axis("seed", [0, 1, 2]), REPLAY + LOWEST + SCRATCH + GROWTH + FIXED))
