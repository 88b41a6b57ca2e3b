"""The paper's CIFAR-10 study: learners, widths, waiting times and seeds (Figures 1 to 3 and 7), and replay.

    python -m alma_jax.sweep --config=configs/sweeps/cifar.py
    python -m alma_jax.report runs/cifar --out report

100 mega-batches, VGG19, SGD. `cifar.py` has the widths and epochs that two CPU cores can train in a night. At the
paper's size, for GPUs:

    python -m alma_jax.sweep --config=configs/sweeps/cifar.py:full

All learners train for the same number of epochs. gMoE and Firefly grow every 20 mega-batches (at w = 50 once, at w =
100 never). Some fixed learners cost about as much, see `rivals`. Only `sm` and `ens` run with replay (a part of Figure
4), and not at w = 1, where it takes 50 times the compute. The runs of one width and seed follow each other, so that an
interrupted sweep has complete comparisons.

`cifar.py` has 7.8e13 multiply-adds, with those of growing, and took 15.8 hours of one core (docs/results/cifar).
`cifar.py:full` has 1.4e17, without those of growing.
"""
from alma_jax.errors import BadInput
from alma_jax.sweeps import Sweep, axis, product, zipped

# {ARG: (widths, epochs a stage)}
SIZES = {"night": ([4, 8], 3), "full": ([4, 8, 16, 32, 64], 100)}


def rivals(width):
  """Fixed learners near the costs of gMoE and Firefly that start from this width (shares measured at width 4).

  A mixture of 3 experts has 1.00 of the compute and 1.01 of the memory of gMoE at w = 1, and 0.99 and 1.15 at w = 10.
  A single network of 1.5 times the width has 0.94 of the memory of Firefly at w = 1, and 1.06 at w = 10. Firefly's
  compute depends on the layers that it widens, which differ by seed, and with few epochs much of it is spent on
  growing: the network has 0.6 and 1.1 of it at w = 1 (seeds 0 and 1), and 0.4 at w = 10. At w = 50, where both grow
  once, `sm` of the same width has 0.85 of the compute and 0.99 of the memory of gMoE. No fixed learner has the costs of
  gEns, which takes the compute of one network and holds all of its members.
  """
  return product(axis("waiting_time", [10, 1]), [
      {"learner": "sm", "width": 3 * width // 2}, {"learner": "moe", "num_experts": 3, "width": width}])


def get_sweep(size: str = "night"):
  if size not in SIZES:
    raise BadInput(f"there is no size {size!r} of this sweep; the sizes are {' and '.join(SIZES)}.")
  widths, epochs = SIZES[size]
  fixed = product(axis("waiting_time", [10, 100, 50, 1]), axis("learner", ["sm", "ens", "umix", "gens"]))
  growing = product(axis("learner", ["gmoe", "ff"]),
                    zipped(axis("waiting_time", [10, 100, 50, 1]), axis("grow_every", [2, 1, 1, 20])))
  replay = product(axis("waiting_time", [10, 50]), axis("learner", ["sm", "ens"]), axis("replay", [1.0]))
  points = [point for width in widths for point in product(
      axis("seed", [0, 1, 2]), product(axis("width", [width]), fixed + growing + replay) + rivals(width))]
  return Sweep("configs/cifar.py", points, fixed={"train.epochs": epochs})
