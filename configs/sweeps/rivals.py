"""`anytime` and its rivals at equal compute: version 1, the paper's learners, retraining and experience replay.

    python -m alma_jax.sweep --config=configs/sweeps/rivals.py:cifar --workdir runs/rivals_cifar
    python -m alma_jax.sweep --config=configs/sweeps/rivals.py:mnist --workdir runs/rivals_mnist
    python -m alma_jax.report runs/rivals_cifar --out report

CIFAR-10: 20 mega-batches at 5.8e10 and at 5.8e11 multiply-adds. MNIST: 500 mega-batches
at 4.9e9 and at 4.9e10. `train.budget` decides the steps of every run.

`sm`, `ens`, `gens`, `retrain` and `warm` have the paper's network (VGG of width 8, MLP of
width 32) and optimiser, and the same number of steps in every stage. They train after every
mega-batch of CIFAR-10, and after every 10 of MNIST. `retrain,compact` and `warm,compact`
have the network, the optimiser and the schedule of `anytime`. `er` is experience replay
with this network and optimiser: it trains after every mega-batch, and draws half of every
batch from a memory of 5,000 examples, and predicts from one view of an image on MNIST.
benchmarks/der.py runs DER++. No run reaches the limit of `train.most_passes`.
"""
from alma_jax.sweeps import Sweep, axis, product

ALL_DATA = {"replay_share": 0.0, "stream.replay": 1.0}
PAPER = axis("learner", ["sm", "ens", "gens", "retrain", "warm"])
OURS = [
    {"learner": "anytime"},
    {"log.label": "retrain,compact", "learner": "anytime", **ALL_DATA, "init_from_scratch": True},
    {"log.label": "warm,compact", "learner": "anytime", **ALL_DATA},
]
ER = {"log.label": "er", "learner": "anytime", "schedule": "every", "waiting_time": 1, "replay_share": 0.5,
      "memory_size": 5000, "replay_order": "random"}


def cifar():
  """The points on CIFAR-10 at two budgets; `steps` are those of `anytime,v1`."""
  for budget, steps in ((2.9e9, 100), (2.9e10, 1000)):
    paper = [{**point, "model.width": 8, "waiting_time": 1} for point in PAPER]
    paper[1]["batch_size"] = 32  # `ens`: the smaller budget does not pay for four steps of 128
    v1 = {"learner": "anytime,v1", "model.width": 8, "train.steps": steps}
    yield from product(axis("budget", [budget]), [*OURS, ER, v1, *paper])


def mnist():
  """The points on MNIST at two budgets."""
  for budget, first in ((9.8e6, {"model.width": 0}), (9.8e7, {})):  # 0: the budget decides the width of version 1
    er = {**ER, "test_augment": False}  # otherwise most of its time goes into 500 tests
    yield from product(axis("budget", [budget]), [*OURS, er, {"learner": "anytime,v1", **first}, *PAPER])


def get_sweep(data="cifar"):
  points = {"cifar": cifar, "mnist": mnist}[data]()
  fixed = {"num_megabatches": 20} if data == "cifar" else {}
  all_runs = product(axis("seed", [10, 11, 12]), [*points])
  return Sweep(f"configs/{data}.py", sorted(all_runs, key=lambda point: point["budget"]), fixed)  # the cheap ones first
