"""Short streams of tasks: what transfers, at what cost and with how many modules.

    python -m alma_jax.sweep --config=configs/sweeps/tasks.py --workdir runs/tasks_mlp
    python -m alma_jax.sweep --config=configs/sweeps/tasks.py:vgg --workdir runs/tasks_vgg
    python -m alma_jax.report runs/tasks_mlp --out report

CTrL-like streams of MNIST, CIFAR-10 and their stand-ins (docs/task-streams.md). `mlp`, the default: all learners, five
seeds, and the stream of 24 tasks, whose learners are compared over cost and error. `vgg`: the learners that reuse
networks, and the one that does not; a network of six modules, three seeds. Every training has the same fixed number of
steps, and one learning rate, which was chosen on the validation errors of `independent` on two tasks of `s_minus` with
seed 100. The streams of one seed have the same examples for every learner, so that differences are paired.
"""
from alma_jax.errors import BadInput
from alma_jax.sweeps import Sweep, axis, product

SHORT = axis("dataset.name", ["s_minus", "s_in", "s_pl", "s_plus", "s_out"])
STEPS = {"train.steps": 400, "train.eval_every": 40, "train.batch_size": 64, "train.patience": 0,
         "train.weight_decay": (0.0,)}
FIXED = {"mlp": {**STEPS, "model.name": "mlp", "model.width": 64, "train.learning_rate": (1e-3,)},
         "vgg": {**STEPS, "model.name": "vgg", "model.width": 8, "train.learning_rate": (3e-3,)}}
LEARNERS = ["independent", "select", "mntdp", "finetune", "new_head", "replay", "oracle"]
NEVIS = product(axis("dataset.name", ["nevis_mini"]), axis("learner", ["independent", "select", "oracle", "finetune"]))


def get_sweep(network: str = "mlp"):
  if network not in FIXED:
    raise BadInput(f"there is no network {network!r} in this sweep; the networks are {' and '.join(FIXED)}.")
  if network == "vgg":
    points = product(axis("seed", range(3)), SHORT, axis("learner", LEARNERS[:3]))
  else:
    points = product(axis("seed", range(5)), product(axis("learner", LEARNERS), SHORT) + NEVIS)
  return Sweep("configs/tasks.py", points, fixed=FIXED[network])
