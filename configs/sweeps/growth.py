"""Does growing pay? A single network, an ensemble, and two learners that grow, at two widths, on digits.

    alma sweep --config=sweeps/growth
    alma report runs/growth --out report

`gens` adds a network and `gmoe` an expert at each stage; `sm` and `ens` never change. The 24 runs take about two
minutes on two idle CPU cores. In the report, each verdict compares `gens` or `gmoe` with the fixed learners that need
no more compute and memory. "Undecided" means that the interval after ± reaches across 0, which more seeds make
narrower, or that no fixed learner is nearly as large.
"""
from alma_jax.sweeps import Sweep, axis, product


def get_sweep():
  learners = axis("learner", ["sm", "gens", "gmoe"]) + product(axis("learner", ["ens"]), axis("num_members", [5]))
  return Sweep("configs/digits.py", product(learners, axis("width", [8, 32]), axis("seed", range(3))))
