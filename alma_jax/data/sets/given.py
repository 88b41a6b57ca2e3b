"""Arrays that a program passes to alma_jax.run."""
import dataclasses

from alma_jax.config.registry import register
from alma_jax.config.sections import DataSet
from alma_jax.data.datasets import Dataset
from alma_jax.errors import BadInput


@register
@dataclasses.dataclass(frozen=True)
class Given(DataSet):
  """The arrays that you pass to alma_jax.run."""
  name: str = "data"

  def load(self) -> Dataset:
    raise BadInput("dataset.name='data' stands for arrays that you pass in Python, as in alma_jax.run(config, "
                   "data=(x_train, y_train, x_test, y_test)); pass them, or name another data set.")
