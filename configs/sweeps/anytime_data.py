"""`anytime` and its rivals on other data: shorter and longer streams, grey or large images, noise, classes.

    python benchmarks/held_out.py --name=cifar10 --out=held_out.npz
    for change in grey noise20 noise40 large; do
      python benchmarks/held_out.py --name=cifar10 --change=$change --out=$change.npz
    done
    python benchmarks/held_out.py --name=mnist --change=pairs --out=pairs.npz
    python -m alma_jax.sweep --config=configs/sweeps/anytime_data.py --workdir runs/anytime_data

Every run has 5.8e10 multiply-adds, and 20 mega-batches unless its point says otherwise. All learners predict from
one view of an image, draw old examples at random, and have batches of 32. Version 1 does not run on pairs: its VGG
cannot take images of 28x40 pixels.
"""
from alma_jax.sweeps import Sweep, axis, product

KINDS = [{"dataset.name": "npz:held_out.npz", "num_megabatches": 10, "budget": 5.8e9},
         {"dataset.name": "npz:held_out.npz", "num_megabatches": 40, "budget": 1.45e9},
         *({"dataset.name": f"npz:{change}.npz", "num_megabatches": 20, "budget": 2.9e9}
           for change in ("grey", "noise20", "noise40", "large")),
         {"dataset.name": "npz:pairs.npz", "num_megabatches": 20, "budget": 2.9e9, "flip": False}]
LEARNERS = [
    {"log.label": "anytime", "learner": "anytime"},
    {"log.label": "warm", "learner": "anytime", "replay_share": 0.0, "replay": 1.0},
    {"log.label": "er", "learner": "anytime", "schedule": "every", "waiting_time": 1, "replay_share": 0.5,
     "memory_size": 5000},
    {"log.label": "v1", "learner": "anytime,v1", "model.width": 8, "train.steps": 0}]


def get_sweep():
  points = [{**kind, **learner} for kind in KINDS for learner in LEARNERS
            if learner["log.label"] != "v1" or "pairs" not in kind["dataset.name"]]
  return Sweep("configs/cifar.py", product(axis("seed", [2000, 2001]), points),
               {"test_augment": False, "replay_order": "random", "batch_size": 32})
