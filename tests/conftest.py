"""Eight virtual CPU devices, strict jax, and small data that the tests make."""
import os
import tempfile

# Before jax is imported, here and in the processes that tests start.
os.environ["JAX_PLATFORMS"] = "cpu"
if "PYTEST_XDIST_WORKER" not in os.environ:  # the workers share compiled programs
  os.environ["XDG_CACHE_HOME"] = tempfile.mkdtemp(prefix="alma_jax_tests")

import jax
import numpy as np
import pytest

from alma_jax import config as configs
from alma_jax.parallel import runtime

jax.config.update("jax_num_cpu_devices", 8)
jax.config.update("jax_numpy_rank_promotion", "raise")
jax.devices()  # from now on there are eight, whatever a test sets
runtime.setup()


def small_config(learner="sm", **changes):
  """A run of seconds: digits, 4 mega-batches, 2 stages of 2 epochs, one device.

  `changes` are fields with __ for dots: train__epochs=3.
  """
  config = configs.base(learner)
  config.update_from_flattened_dict({
      "stream.num_megabatches": 4, "stream.waiting_time": 2, "model.width": 4, "train.epochs": 2,
      "train.batch_size": 64, "devices": 1, "log.progress": False, "log.tensorboard": False})
  config.update_from_flattened_dict({key.replace("__", "."): value for key, value in changes.items()})
  return config


@pytest.fixture
def make_config():
  return small_config


def blobs(num, shape=(6, 6), classes=3, seed=0):
  """Images (uint8 [num, *shape]) of `classes` patterns that are easy to distinguish, and labels."""
  patterns = np.random.default_rng(0).integers(40, 216, (classes, *shape))
  rng = np.random.default_rng(seed)
  labels = np.arange(num) % classes
  return (patterns[labels] + rng.integers(-40, 40, (num, *shape))).astype(np.uint8), labels


@pytest.fixture(scope="session")
def arrays():
  """x_train, y_train, x_test, y_test of 120 + 30 images of 6x6, three classes."""
  return (*blobs(120), *blobs(30, seed=1))


@pytest.fixture(scope="session")
def tfds_dir(tmp_path_factory):
  """A folder with tiny stand-ins for mnist and cifar10, prepared as array_record."""
  import tensorflow_datasets as tfds

  def builder(builder_name, shape):
    class Tiny(tfds.core.GeneratorBasedBuilder):
      name, VERSION = builder_name, tfds.core.Version("1.0.0")

      def _info(self):
        return tfds.core.DatasetInfo(builder=self, supervised_keys=("image", "label"), features=(
            tfds.features.FeaturesDict({"image": tfds.features.Image(shape=shape),
                                        "label": tfds.features.ClassLabel(num_classes=3)})))

      def _split_generators(self, dl_manager):
        return {"train": self._generate_examples(120, 0), "test": self._generate_examples(30, 1)}

      def _generate_examples(self, num, seed):
        import io

        from PIL import Image
        for i, (image, label) in enumerate(zip(*blobs(num, shape, seed=seed))):
          png = io.BytesIO()
          Image.fromarray(image[..., 0] if shape[-1] == 1 else image).save(png, format="png")
          yield i, {"image": png.getvalue(), "label": int(label)}

    return Tiny

  root = tmp_path_factory.mktemp("tfds")
  for name, shape in (("mnist", (28, 28, 1)), ("cifar10", (32, 32, 3))):
    builder(name, shape)(data_dir=str(root), file_format="array_record").download_and_prepare()
  return root
