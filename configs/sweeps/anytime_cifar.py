"""The anytime learner on CIFAR-10: at the budget of one network, and at a third of that of an ensemble.

    python -m alma_jax.sweep --config=configs/sweeps/anytime_cifar.py
    python -m alma_jax.report runs/anytime_cifar --out report

`ONE`: 20 mega-batches, VGG of width 8, at the multiply-adds of one network that trains
10 epochs on each. `FIVE`: the paper's 100 mega-batches, width 16; `ens` waits for 10 of
them and trains for 10 epochs, and `anytime` has the same parameters held and a third of
the multiply-adds. `WAITING` and `PRICES`: the stream of `ONE` at fixed waiting times, and
with the adaptive schedule. The results are in docs/results/anytime.
"""
from alma_jax.sweeps import Sweep, axis, product

STREAM = {"num_megabatches": 20, "model.width": 8}
ONE = [{**STREAM, "learner": "anytime,v1", "train.steps": 1000}, *({**STREAM, "waiting_time": 1, **point} for point in (
    {"learner": "sm", "epochs": 10},
    {"learner": "ens", "epochs": 2},
    {"learner": "umix", "epochs": 2},
    {"learner": "gens", "epochs": 10},
    {"learner": "sm", "epochs": 1, "replay": 1.0},
))]
WAITING = [{**STREAM, "learner": "anytime,v1", "train.steps": 1000, "schedule": "every", "waiting_time": wait}
           for wait in (1, 2, 4, 5, 10, 20)]
PRICES = [{**STREAM, "learner": "anytime,v1", "train.steps": 1000, "schedule": "adaptive", "price": price}
          for price in (1e-12, 5e-12, 2e-11)]
FIVE = [{"learner": "anytime,v1"}, {"learner": "ens", "epochs": 10}]


def get_sweep():
  return Sweep("configs/cifar.py", product(axis("seed", [0, 1, 2]), ONE + FIVE + WAITING + PRICES))
