"""The anytime learner on MNIST: the paper's learners, rivals on all data, its parts alone and off, and its budgets.

    python -m alma_jax.sweep --config=configs/sweeps/anytime.py
    python -m alma_jax.report runs/anytime --out report

500 mega-batches. Learners of the paper wait for 10 of them, and have width 32; `anytime`
has no more parameters than five networks of width 32. Rivals train on all data for 20
epochs, which is the compute of `ens`. The results are in docs/results/anytime.
"""
from alma_jax.sweeps import Sweep, axis, product

REGULARISED = {"label_smoothing": 0.1, "weight_decay": 1e-3}
# Every part of `anytime`, and what it is without it.
PARTS = {
    "replay": {"replay_share": 0.0},
    "schedule": {"schedule": "every", "waiting_time": 10},
    "decay": {"decay": 0.0},
    "regularisation": {"label_smoothing": 0.0, "weight_decay": 0.0},
}
PAPER = [
    *axis("learner", ["sm", "gens", "umix", "ens", "sm,authors", "gens,authors"]),
    {"learner": "ens", **REGULARISED},
]
RIVALS = product(axis("learner", ["retrain", "warm", "shrink_perturb"]), axis("epochs", [20]))
# At the stages of `anytime`, so that they do not wait for their first training.
EARLY = [*product(axis("learner", ["sm", "umix", "ens"]), axis("schedule", ["geometric"])),
         *product(axis("learner", ["retrain", "warm", "shrink_perturb"]), axis("epochs", [20]),
                  axis("schedule", ["geometric"]))]
ORACLE = [{"learner": "retrain", "epochs": 20, "schedule": "geometric", "model.width": 141, "decay": 0.5,
           **REGULARISED}]
BUDGETS = product(axis("learner", ["anytime,v1"]), axis("train.steps", [20, 40, 180, 400]))
# What the adaptive schedule is compared with: the best waiting time in hindsight.
WAITING = product(axis("learner", ["anytime,v1"]), axis("schedule", ["every"]), axis("waiting_time", [1, 2, 5, 20, 50]))
SMALL = product(axis("learner", ["anytime,v1"]), axis("model.width", [19, 32]))
PRICES = product(axis("learner", ["anytime,v1"]), axis("schedule", ["adaptive"]), axis("price", [1e-12, 1e-11, 1e-10]))


def ablation():
  """All parts on, each off, each alone, and all off."""
  off = lambda names: {"learner": "anytime,v1"} | {
      field: value for name in names for field, value in PARTS[name].items()}
  each = [[name] for name in PARTS]
  all_but = [[other for other in PARTS if other != name] for name in PARTS]
  return [off(names) for names in ([], *each, *all_but, [*PARTS])]


def get_sweep():
  points = [*ablation(), *PAPER, *RIVALS, *BUDGETS, *SMALL, *PRICES, *WAITING, *ORACLE, *EARLY]
  return Sweep("configs/mnist.py", product(axis("seed", [0, 1, 2]), points))
