"""What each part of `anytime` is worth on CIFAR-10 at equal compute: without it, alone, and with all.

    python benchmarks/held_out.py --name=cifar10 --out=held_out.npz
    python -m alma_jax.sweep --config=configs/sweeps/anytime_parts.py \
        --config.dataset.name=npz:held_out.npz

20 mega-batches of 2,000 images, 5.8e10 multiply-adds, and 10,000 training images as the
test set. Runs draw old examples at random and predict from one view of an image. `OFF`
changes one part of `anytime`; `LATEST` turns on two views or passes, and one run of
`anytime` turns on both. `ALONE` adds one part to version 1, a VGG of width 8 with Adam.
"""
from alma_jax.sweeps import Sweep, axis, product

VGG, ADAM = {"model.name": "vgg", "model.width": 8}, {"optimizer": "adam", "train.learning_rate": 2e-3}
LAST = {"average": 0.0, "decay": 0.5}
STILL = {"shift": 0, "flip": False}
OFF = [{}, VGG, ADAM, LAST, STILL, {"replay_share": 0.0}, {"factor": 1.15}, {"schedule": "every", "waiting_time": 1},
       {"label_smoothing": 0.0}, {"val_fraction": 0.1}, {"batch_size": 128}, {"steps_exponent": 0.25}]
LATEST = {"test_augment": True}, {"replay_order": "passes"}
FIRST = {"learner": "anytime,v1", "model.width": 8, "train.steps": 0}
ALONE = [{}, {"model.name": "compact", "model.width": 0}, {"optimizer": "muon", "train.learning_rate": 0.05},
         {"average": 0.5, "decay": 0.0}, {"augment": False, "shift": 2, "flip": True},
         {"factor": 1.3, "train_at_end": True}, {"label_smoothing": 0.1}, *LATEST]


def get_sweep():
  points = [*({"learner": "anytime", **changes} for changes in [*OFF, *LATEST, LATEST[0] | LATEST[1]]),
            *({**FIRST, **changes} for changes in ALONE)]
  fixed = {"num_megabatches": 20, "budget": 2.9e9, "test_augment": False, "replay_order": "random"}
  return Sweep("configs/cifar.py", product(axis("seed", [1000, 1001]), points), fixed)
