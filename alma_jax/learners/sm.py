"""SM: a single model, trained on stage after stage (docs/algorithms.md §2)."""
from alma_jax.learners.stacked import Stacked


class SM(Stacked):
  """One network."""
