"""Streams that change: `anytime` against fixed memories, all with the same multiply-adds.

    python -m alma_jax.sweep --config=configs/sweeps/drift.py --workdir runs/drift
    python -m alma_jax.sweep --config=configs/sweeps/drift.py:cifar10 --workdir runs/drift_cifar10
    python -m alma_jax.sweep --config=configs/sweeps/drift.py:river --workdir runs/drift_river
    python -m alma_jax.sweep --config=configs/sweeps/drift.py:choices --workdir runs/drift_choices

There are nine streams of MNIST, with 60 mega-batches of 400 images. `uniform` replays all
data, `none` replays nothing, and the memory of `h4` has a half-life of 4 mega-batches.
drift.py:cifar10 takes CIFAR-10 and the streams rotate, relabel and classes, drift.py:river
takes generators of tables. drift.py:choices has `anytime` with other learning rates and numbers
of steps, on five streams of MNIST. The results are in docs/results/drift.
"""
from alma_jax.sweeps import Sweep, axis, product

STREAMS = {
    "mnist": ("stationary", "permute", "relabel", "rotate", "classes", "noise", "imbalance", "recur_inputs",
              "recur_labels"),
    "cifar10": ("rotate", "relabel", "classes"),
    "choices": ("stationary", "relabel", "rotate", "classes", "noise"),
    "river": ("river:Agrawal", "river:SEA", "river:Hyperplane")}
FIXED = [{"log.label": "uniform"}, {"log.label": "none", "replay_share": 0.0}, *(
    {"log.label": f"h{half}", "memory_policy": "half_life", "half_life": float(half)} for half in (1, 2, 4, 8, 16))]
# All cost as much as 84 steps of 32 examples with a rate of 0.05.
CHOICES = [{"log.label": "rate / 2", "learning_rate": 0.025}, {"log.label": "rate x 2", "learning_rate": 0.1},
           {"log.label": "steps / 2", "batch_size": 64}, {"log.label": "steps x 2", "batch_size": 16}]


def get_sweep(data="mnist"):
  uniform = [("anytime,uniform", fields) for fields in FIXED]
  learners = [("anytime", fields) for fields in CHOICES] if data == "choices" else [("anytime", {}), *uniform]
  points = [{"learner": f"{learner},{stream}", **fields} for stream in STREAMS[data] for learner, fields in learners]
  images = {"dataset.name": f"drift:{'mnist' if data == 'choices' else data}", "test_size": 1000}
  return Sweep("configs/drift.py", product(axis("seed", [10, 11, 12]), points),
               {"budget": 1.6e9, "batch_size": 32} | (images if data != "river" else {}))
