"""What the numbers of `anytime` were chosen by: training images of MNIST alone, on seeds that no study uses.

    python benchmarks/held_out.py --name=mnist --out=held_out.npz
    python -m alma_jax.sweep --config=configs/sweeps/anytime_choices.py \
        --config.dataset.name=npz:held_out.npz

Every kind of runs has about the multiply-adds of `anytime`, except those that are not meant
to. docs/anytime.md has the results.
"""
from alma_jax.sweeps import Sweep, axis, product

FIVE = {"learner": "ens", "schedule": "geometric", "replay_share": "uniform", "train.steps": 80, "eval_every": 10**6,
        "decay": 0.5, "label_smoothing": 0.1, "weight_decay": 1e-3}
CHANGES = [
    {}, {"average": 0.2}, {"average": 0.2, "decay": 0.0}, {"average": 0.2, "start": "average", "decay": 0.0},
    {"replay_share": 0.8}, {"batch_size": 64, "train.steps": 160}, {"batch_size": 32, "train.steps": 320},
    {"factor": 1.08, "train.steps": 51}, {"factor": 1.3, "train.steps": 135},
    {"schedule": "power", "num_trainings": 37, "exponent": 2.0},
    {"schedule": "power", "num_trainings": 37, "exponent": 4.0},
    {"shrink": 0.8, "perturb": 0.1}, {"optimizer": "adam", "train.learning_rate": 1e-3}, {"model.width": 98},
    {"memory_size": 5000}, {"memory_size": 1000},
]


def get_sweep():
  points = [FIVE, *({"learner": "anytime,v1"} | changes for changes in CHANGES)]
  return Sweep("configs/mnist.py", product(axis("seed", [1000, 1001]), points))
