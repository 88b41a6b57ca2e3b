"""Eight virtual CPU devices, strict jax, and small data that the tests make."""
import gc
import importlib.metadata
import os
import tempfile

# Before jax is imported, here and in the processes that tests start. benchmarks/gpu.sh names another platform, on which
# it runs tests that need one device.
os.environ["JAX_PLATFORMS"] = PLATFORM = os.environ.get("ALMA_JAX_TEST_PLATFORM", "cpu")
if PLATFORM != "cpu":
  os.environ["JAX_PLATFORMS"] += ",cpu"  # jax.debug.callback needs one
# Compiling takes most of the time of the suite. A run has LLVM's level 3; with level 1 and the older emitters of
# fusions, which later jaxlibs refuse, it takes a third of that. (With level 0 they computed wrong gradients.) .ci/run
# repeats some tests as a run has it: flags that name the level stay as they are.
if PLATFORM == "cpu" and "--xla_backend_optimization_level" not in os.environ.get("XLA_FLAGS", ""):
  has_older = [int(part) for part in importlib.metadata.version("jaxlib").split(".")[:2]] < [0, 11]
  level = "1 --xla_cpu_use_fusion_emitters=false" if has_older else "0"
  os.environ["XLA_FLAGS"] = (f"--xla_backend_optimization_level={level} --xla_cpu_parallel_codegen_split_count=1 "
                             f"{os.environ.get('XLA_FLAGS', '')}").strip()
# The workers share compiled programs; .ci/run names a folder that the quick and the slow tests share.
if "PYTEST_XDIST_WORKER" not in os.environ:
  os.environ["XDG_CACHE_HOME"] = os.environ.get("ALMA_JAX_TEST_CACHE") or tempfile.mkdtemp(prefix="alma_jax_tests")

import jax
import pytest
from runs import blobs, sentences, small_config

from alma_jax.config import registry
from alma_jax.parallel import runtime
from alma_jax.runs import plots
from alma_jax.sweeps import pool, states, worker

jax.config.update("jax_num_cpu_devices", 8)
jax.config.update("jax_numpy_rank_promotion", "raise")
with pytest.MonkeyPatch.context() as patched:
  patched.setenv("NPROC", "1")  # of XLA's threads in this process: the workers share the cores
  jax.devices()  # from now on there are eight, whatever a test sets
runtime.setup()
gc.freeze()  # what the imports have made is not looked through again in each collection


def pytest_collection_modifyitems(items):
  """Begins with the longest."""
  items.sort(key=lambda item: item.path.name != "test_torture.py")


@pytest.fixture(autouse=True)
def _empty_curves(monkeypatch):
  """The picture of a finished run takes longer than most runs of these tests; test_run.py draws it."""
  monkeypatch.setattr(plots, "curve", lambda *_: b"")


@pytest.fixture(autouse=True)
def _forget():
  """Removes what a test has registered."""
  yield
  for registries in registry.KINDS:
    for each in registries.values():
      for name in [name for name, cls in each._classes.items() if registry.is_own(cls)]:
        del each._classes[name]


@pytest.fixture
def make_config():
  return small_config


@pytest.fixture(scope="session")
def arrays():
  """x_train, y_train, x_test, y_test of 120 + 30 images of 6x6, three classes."""
  return (*blobs(120), *blobs(30, seed=1))


@pytest.fixture(scope="session")
def books(tmp_path_factory):
  """12 training documents of 60 lines, 2 for validation and 2 for test."""
  root = tmp_path_factory.mktemp("books")
  for split, num in (("train", 12), ("valid", 2), ("test", 2)):
    (root / split).mkdir()
    for i in range(num):
      (root / split / f"{i:02d}.txt").write_text(sentences(100 * len(split) + i))
  return root


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


@pytest.fixture
def in_process(monkeypatch):
  """Runs jobs in this process, in place of workers. Returns the names of the jobs that were started."""
  begun = []

  def run(todo, *unused):
    for job in todo:
      begun.append(job.name)
      kind, line = worker.attempt(job.packed())
      yield states.Event(kind, job, line)

  monkeypatch.setattr(pool, "run", run)
  return begun


@pytest.fixture
def runs(tmp_path):
  """sm and gens at two widths and two waiting times, three seeds; CERs 0.6 + ..., see `error`."""
  from reports import write_run
  root = tmp_path / "runs"
  for learner, better in (("sm", 0.0), ("gens", 0.05)):
    for width in (4, 8):
      for wait in (1, 2):
        for seed in range(3):
          error = 0.4 - better - 0.01 * width + 0.1 * (wait - 1) + 0.001 * seed * (1 if learner == "sm" else 2)
          write_run(root / f"{learner}{width}w{wait}s{seed}", [0.9 if wait == 2 else error, error], learner,
                    num_params=width * (2 if learner == "gens" else 1), macs=width * 50 * wait, model__width=width,
                    grown=2 * (learner == "gens"), stream__waiting_time=wait, seed=seed)
  return root
