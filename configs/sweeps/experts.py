"""Does a flat hard mixture gain where its base network underfits, and not where it overfits? MNIST, all of it at once.

    python -m alma_jax.sweep --config=configs/sweeps/experts.py
    python benchmarks/experts.py runs/experts --out docs/results/tasks/experts

For widths 4 and 64 there are the network (`sm`), `hmoe` with 5, 25 and 50 experts, ensembles of as many networks, and a
single network that predicts at the cost of `hmoe`, which computes the features of the base and one expert: width 8 has
1.01 times, and width 120 1.005 times the multiply-adds. `hmoe` trains its base for 10 epochs and then its experts for
10; every other network trains for 20, so that all see an example as often. The ensembles, which take most of the time,
come last.
"""
from alma_jax.sweeps import Sweep, axis, product

EXPERTS, WIDTHS, EQUAL_COST, EPOCHS = [5, 25, 50], [4, 64], [8, 120], 10


def get_sweep():
  seeds = axis("seed", [0, 1, 2])
  single = product(axis("learner", ["sm"]), axis("epochs", [2 * EPOCHS]), axis("width", WIDTHS + EQUAL_COST))
  hmoe = product(axis("learner", ["hmoe"]), axis("epochs", [EPOCHS]), axis("width", WIDTHS),
                 axis("num_experts", EXPERTS))
  ensembles = product(axis("learner", ["ens"]), axis("epochs", [2 * EPOCHS]), axis("width", WIDTHS),
                      axis("num_members", EXPERTS))
  points = product(seeds, single + hmoe) + product(seeds, ensembles)
  return Sweep("configs/mnist.py", points, fixed={"num_megabatches": 1, "waiting_time": 1})
