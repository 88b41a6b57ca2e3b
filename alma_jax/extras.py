"""Packages that `pip install alma_jax` leaves out, because one feature needs them. Imports none of them at start-up."""
import importlib
import importlib.util
from types import ModuleType

from alma_jax.errors import BadInput

EXTRAS = {  # {extra of pyproject.toml: packages of it that the code imports}
    "live": ("river",), "parquet": ("pyarrow",), "prepare": ("tensorflow",), "remote": ("fsspec", "s3fs", "gcsfs"),
    "serve": ("fastapi", "uvicorn", "prometheus_client", "plotly"), "slurm": ("submitit",), "text": ("tokenizers",),
    "tfds": ("tensorflow_datasets",), "wandb": ("wandb",)}


def load(module: str, user: str) -> ModuleType:
  """Imports a module of one of these packages.

  Args:
    module: its name, e.g. "pyarrow.parquet".
    user: what needs it, the subject of the message.

  Raises:
    BadInput: the package is not installed.
  """
  need(user, module.partition(".")[0])
  return importlib.import_module(module)


def need(user: str, *packages: str) -> None:
  """Raises BadInput if one of the packages is not installed; `user` needs them, and is the subject of the message."""
  for package in packages:
    if importlib.util.find_spec(package) is None:
      extra = next(name for name, members in EXTRAS.items() if package in members)
      raise BadInput(f"{user} needs the package {package}; run `pip install 'alma_jax[{extra}]'`.")
