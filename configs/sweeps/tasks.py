"""Short streams of tasks: what transfers, at what cost and with how many modules.

    python -m alma_jax.sweep --config=configs/sweeps/tasks.py
    python -m alma_jax.report runs/tasks --out report

CTrL-like streams of MNIST, CIFAR-10 and their stand-ins (docs/task-streams.md), a VGG of width 8, two learning rates,
and a fixed number of steps for every training. `NEVIS` is the stream of 24 tasks, whose learners are compared over cost
and error. The streams of one seed have the same examples for every learner, so that differences are paired.
"""
from alma_jax.sweeps import Sweep, axis, product

SHORT = ["s_minus", "s_in", "s_pl", "s_plus", "s_out"]
LEARNERS = ["independent", "select", "mntdp", "finetune", "new_head", "replay", "oracle"]
TRAINING = {"model.name": "vgg", "model.width": 8, "train.steps": 200, "train.eval_every": 20, "train.batch_size": 64,
            "train.patience": 0, "train.learning_rate": (1e-3, 3e-3), "train.weight_decay": (0.0,)}
NEVIS = product(axis("dataset.name", ["nevis_mini"]), axis("learner", ["independent", "select", "oracle", "finetune"]))


def get_sweep():
  short = product(axis("learner", LEARNERS), axis("dataset.name", SHORT))
  return Sweep("configs/tasks.py", product(axis("seed", [0, 1, 2]), short + NEVIS), fixed=TRAINING)
