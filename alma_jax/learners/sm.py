"""SM: a single model, trained on one stage after another (docs/algorithms.md §2)."""
from alma_jax.learners.stacked import Stacked


class SM(Stacked):
  """One network."""
