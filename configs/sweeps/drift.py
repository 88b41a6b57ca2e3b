"""Streams that change: `anytime` against fixed memories, all with the same multiply-adds.

    python -m alma_jax.sweep --config=configs/sweeps/drift.py --workdir runs/drift
    python -m alma_jax.sweep --config=configs/sweeps/drift.py:cifar10 --workdir runs/drift_cifar10
    python -m alma_jax.sweep --config=configs/sweeps/drift.py:river --workdir runs/drift_river

There are nine streams of MNIST, with 60 mega-batches of 400 images. `uniform` replays all
data, `none` replays nothing, and the memory of `h4` has a half-life of 4 mega-batches.
drift.py:cifar10 takes CIFAR-10 and the streams rotate, relabel and classes, drift.py:river
generators of tables. The results are in docs/results/drift.
"""
from alma_jax.sweeps import Sweep, axis, product

STREAMS = {
    "mnist": ("stationary", "permute", "relabel", "rotate", "classes", "noise", "imbalance", "recur_inputs",
              "recur_labels"),
    "cifar10": ("rotate", "relabel", "classes"),
    "river": ("river:Agrawal", "river:SEA", "river:Hyperplane")}
FIXED = [{"log.label": "uniform"}, {"log.label": "none", "replay_share": 0.0}, *(
    {"log.label": f"h{half}", "memory_policy": "half_life", "half_life": float(half)} for half in (1, 2, 4, 8, 16))]


def get_sweep(data="mnist"):
  points = []
  for stream in STREAMS[data]:
    points.append({"learner": f"anytime,{stream}"})
    points += [{"learner": f"anytime,uniform,{stream}", **fields} for fields in FIXED]
  fixed = {"budget": 1.6e9} | ({"dataset.name": f"drift:{data}", "test_size": 1000} if data != "river" else {})
  return Sweep("configs/drift.py", product(axis("seed", [10, 11, 12]), points), fixed)
