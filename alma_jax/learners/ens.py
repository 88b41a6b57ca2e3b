"""Ens: N independently trained networks whose predictions are joined (§2)."""
from alma_jax.learners.stacked import Stacked


class Ens(Stacked):
  """`num_members` networks; their probabilities are averaged, as in the paper, unless `combine` says otherwise."""
