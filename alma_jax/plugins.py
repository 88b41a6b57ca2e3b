"""Learners and networks of your own, by name. Imports neither jax nor numpy."""
import dataclasses

from alma_jax import fields, options
from alma_jax.errors import BadInput

LEARNERS, TEXT_LEARNERS, MODELS = {}, {}, {}  # name to what makes one


def register_learner(cls, make, language=False):
  """Makes a learner known as `cls.name`, to configs and on the command line.

  Args:
    cls: frozen dataclass below options.Options: its fields under `learner.`
      and their defaults, `name` among them.
    make: (learners.base.Context) -> learners.base.Learner.
    language: whether it is for language models instead of images.

  Raises:
    BadInput: `cls` is no such class, or the name is that of one of ours.
  """
  if not (dataclasses.is_dataclass(cls) and issubclass(cls, options.Options) and isinstance(cls.name, str)):
    raise BadInput(f"{cls.__name__} should be a frozen dataclass below alma_jax.options.Options with a field `name`.")
  known, mine = (options.TEXT_LEARNERS, TEXT_LEARNERS) if language else (options.LEARNERS, LEARNERS)
  if cls.name in known and cls.name not in mine:
    raise BadInput(f"there is a learner {cls.name!r} already; give yours another name.")
  known[cls.name], mine[cls.name] = cls, make


def register_model(name, make):
  """Makes an image network known as `model.name`.

  Args:
    name: of it.
    make: (width, num_classes, dtype, axis) -> Flax module. It is called with
      (x [B, ...] float32, mask_B bool or None, train bool) and returns logits
      [B, K] float32; `axis` is the mesh axis that batches are sharded over, for
      layers.BatchNorm. Its attribute `convolutional` says whether XLA would run
      it slowly inside a loop on a CPU.

  Raises:
    BadInput: the name is that of one of ours.
  """
  if name in fields.MODELS:
    raise BadInput(f"there is a network {name!r} already; give yours another name.")
  MODELS[name] = make
