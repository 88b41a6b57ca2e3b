"""Replay with every learner at every waiting time (Figures 4, 8 and 9; Figure 3 with w = 2).

    python -m alma_jax.sweep --config=configs/sweeps/replay.py:mnist
    python -m alma_jax.report runs/replay-mnist --out report

The argument after the colon is mnist (overnight on two CPU cores), cifar, or
mnist_full or cifar_full, the paper's sizes, for GPUs. `gmoe` and `ff` grow after the same
mega-batches at every waiting time, four times if there are enough stages. `moe` has four
experts from the beginning. With replay, S stages take (S + 1) / 2 times the compute. The
regret of all is against `retrain` at w = 1.
"""
from alma_jax.errors import BadInput
from alma_jax.sweeps import Sweep, axis, product, zipped

# {ARG: (config, mega-batches, waiting times, mega-batches between growths, widths, epochs)}
SIZES = {
    "mnist": ("mnist", 50, (50, 10, 5, 2, 1), 10, (8,), 20),
    "cifar": ("cifar", 20, (20, 4, 2, 1), 4, (4,), 2),
    "mnist_full": ("mnist", 500, (500, 100, 50, 10, 1), 100, (8, 32), 100),
    "cifar_full": ("cifar", 100, (100, 50, 10, 2, 1), 20, (4, 16, 64), 100)}


def get_sweep(size: str = "mnist"):
  if size not in SIZES:
    raise BadInput(f"there is no size {size!r} of this sweep; the sizes are {', '.join(SIZES)}.")
  config, num, waits, between, widths, epochs = SIZES[size]
  fixed = product(axis("waiting_time", waits), axis("learner", ["sm", "ens", "umix", "gens", "moe"]))
  growing = product(axis("learner", ["gmoe", "ff"]), zipped(
      axis("waiting_time", waits), axis("grow_every", [max(1, between // wait) for wait in waits])))
  oracle = product(axis("waiting_time", [1]), axis("learner", ["retrain"]))
  points = [*product(fixed + growing, axis("replay", [0.0, 1.0])), *oracle]
  all_runs = product(axis("seed", [0, 1, 2]), axis("width", widths), points)
  return Sweep(f"configs/{config}.py", all_runs, fixed={"num_megabatches": num, "train.epochs": epochs})
