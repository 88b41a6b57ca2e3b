"""Data sets of images."""
import dataclasses
from typing import ClassVar

from alma_jax.config import sections
from alma_jax.config.fields import field
from alma_jax.config.registry import register
from alma_jax.config.sections import DATA_DIR, DataSet
from alma_jax.data import datasets
from alma_jax.errors import BadInput


@register
@dataclasses.dataclass(frozen=True)
class Digits(DataSet):
  """scikit-learn's digits, 8x8 pixels; bundled."""
  name: str = "digits"

  def load(self) -> datasets.Dataset:
    """The arrays."""
    return datasets.load(self.name)


@register
@dataclasses.dataclass(frozen=True)
class TFDS(DataSet):
  """Any TFDS data set for image classification."""
  name: str = "tfds"
  data_dir: str = field("", DATA_DIR)

  form: ClassVar[str] = "tfds:NAME"

  def load(self) -> datasets.Dataset:
    """The arrays."""
    return datasets.load(self.name, self.data_dir)


@register
@dataclasses.dataclass(frozen=True)
class MNIST(TFDS):
  """MNIST, from TFDS."""
  name: str = "mnist"

  form: ClassVar[str] = "mnist"


@register
@dataclasses.dataclass(frozen=True)
class CIFAR10(TFDS):
  """CIFAR-10, from TFDS."""
  name: str = "cifar10"

  form: ClassVar[str] = "cifar10"


@register
@dataclasses.dataclass(frozen=True)
class NPZ(DataSet):
  """Your own arrays x_train y_train x_test y_test."""
  name: str = "npz"

  form: ClassVar[str] = "npz:PATH"

  def load(self) -> datasets.Dataset:
    """The arrays."""
    return datasets.load(self.name)


@register
@dataclasses.dataclass(frozen=True)
class Folder(DataSet):
  """Your own images in folders by class."""
  name: str = "folder"
  image_size: int = field(
      0, "width and height in pixels to which images are resized, without keeping their aspect ratio; 0: images are "
      "not resized, and must have one size", at_least=0)

  form: ClassVar[str] = "folder:DIR"

  def load(self) -> datasets.Dataset:
    """The arrays."""
    return datasets.load(self.name, image_size=self.image_size)


@register
@dataclasses.dataclass(frozen=True)
class Live(sections.Live):
  """Mega-batches of images that appear in DIR/stream while the run goes on."""
  image_size: int = field(
      0, "width and height in pixels to which images of files are resized, without keeping their aspect ratio; 0: "
      "images are not resized, and must have one size", at_least=0)
  max_examples: int = field(
      1_000_000, "examples that an entry may hold; larger entries are set aside; 0: no limit", at_least=0)
  image_column: str = field(
      "", "column of Parquet files that holds the images or lists of numbers; empty: the first of `image`, `img`, "
      "`images` and `x`")
  label_column: str = field(
      "", "column of Parquet files that holds the labels; empty: the first of `label`, `labels`, `y` and `class`, or "
      "the only one whose name ends in `_label`")


@register
@dataclasses.dataclass(frozen=True)
class Given(DataSet):
  """The arrays that you pass to alma_jax.run."""
  name: str = "data"

  def load(self) -> datasets.Dataset:
    raise BadInput("dataset.name='data' stands for arrays that a program passes, as in alma_jax.run(config, "
                   "data=(x_train, y_train, x_test, y_test)); pass them, or name another data set.")
