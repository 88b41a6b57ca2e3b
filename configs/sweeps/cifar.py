"""The paper's CIFAR-10 study: learners, widths, waiting times and seeds, and replay (Figures 1 to 4, 7 and 9).

    python -m alma_jax.sweep --config=configs/sweeps/cifar.py
    python -m alma_jax.report runs/cifar --out report

100 mega-batches, VGG19, SGD. `cifar.py` has the widths and epochs that two CPU cores can train in a night. At the
paper's size, for GPUs:

    python -m alma_jax.sweep --config=configs/sweeps/cifar.py:full

All learners train for the same number of epochs. gMoE and Firefly grow every 20 mega-batches (at w = 50 once, at w =
100 never). Replay is not run at w = 1, where it takes 50 times the compute. The runs of one seed follow each other, so
that an interrupted sweep has complete comparisons.

`cifar.py` has 6.7e13 multiply-adds. Two CPU cores that do nothing else take about 5 hours, estimated from 700,000
training steps of single networks, evaluations that cost as much as 200,000 more, and 35 ms of one core a step
(`configs/cifar.py:ens` of width 16 takes 80 ms, docs/results.md). `cifar.py:full` has 1.3e17 multiply-adds.
"""
from alma_jax.errors import BadInput
from alma_jax.sweeps import Sweep, axis, product, zipped

# {ARG: (widths, epochs a stage)}
SIZES = {"night": ([4, 8], 3), "full": ([4, 8, 16, 32, 64], 100)}


def get_sweep(size: str = "night"):
  if size not in SIZES:
    raise BadInput(f"there is no size {size!r} of this sweep; the sizes are {' and '.join(SIZES)}.")
  widths, epochs = SIZES[size]
  fixed = product(axis("waiting_time", [10, 100, 50, 1]), axis("learner", ["sm", "ens", "umix", "gens"]))
  growing = product(axis("learner", ["gmoe", "ff"]),
                    zipped(axis("waiting_time", [10, 100, 50, 1]), axis("grow_every", [2, 1, 1, 20])))
  replay = product(axis("waiting_time", [10, 50]), axis("learner", ["sm", "ens"]), axis("replay", [1.0]))
  points = product(axis("seed", [0, 1, 2]), axis("width", widths), fixed + growing + replay)
  return Sweep("configs/cifar.py", points, fixed={"train.epochs": epochs})
