"""Tasks of one's own, data sets that are real or missing, and what is refused."""
import io
import json
import re

import numpy as np
import pytest
from PIL import Image
from runs import ROOT
from task_data import counts, given, make, own, parts, same

from alma_jax import config as configs
from alma_jax.data import stand_ins
from alma_jax.errors import BadInput
from alma_jax.problems import sequence
from alma_jax.sweeps import dry_run


def test_shuffled_labels_are_balanced_and_not_those_of_the_images(tmp_path):
  stream = make(own(tmp_path, dict(name="a", data="cifar10", train=50, val=10, shuffled=True)))
  task = stream.task(0)
  assert set(np.bincount(task.y_train)) == {50}
  assert 0.02 < (task.y_train == task.x_train[:, 0, 0, 0]).mean() < 0.2  # 500 draws of 1/10: deviation 0.013


def test_a_list_of_ones_own(tmp_path):
  drawn = dict(name="ships", family="photos", data="cifar10", classes=[8, 0], train=5, val=3, test=4,
               changes=[["rotate", 1]])
  tasks = [dict(name="mine", arrays=given(), class_names=["a", "b", "c"]), drawn, dict(name="again", arrays=given())]
  stream = make(own(tmp_path, *tasks), image_size=16, test_per_class=1)
  assert stream.image_shape == (16, 16, 3)
  assert [info[:3] for info in stream.infos] == [
      ("mine", "own", ("a", "b", "c")), ("ships", "photos", ("8", "0")), ("again", "own", ("0", "1", "2"))]
  assert counts(stream) == [(12, 6, 3), (10, 6, 2), (12, 6, 3)]
  assert same(stream.task(0), stream.task(2))
  for t, info in enumerate(stream.infos):
    for (x, y), num in zip(parts(stream.task(t)).values(), info[3:]):
      assert (x.shape, len(y)) == ((num, 16, 16, 3), num)
  alone = make(own(tmp_path, tasks[0]))
  assert alone.image_shape == (6, 6, 1)
  assert alone.fingerprint != stream.fingerprint
  expected = np.random.default_rng(12).integers(256, size=(12, 6, 6), dtype=np.uint8)
  assert (alone.task(0).x_train[..., 0] == expected).all()
  assert make(own(tmp_path, drawn)).task(0).x_train[:, -1, 0, 0].tolist() == [
      (8, 0)[label] for label in make(own(tmp_path, drawn)).task(0).y_train]  # the first pixel is turned to the bottom


def test_the_list_of_the_page(tmp_path):
  blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs/task-streams.md").read_text(), re.DOTALL)
  (code,) = [block for block in blocks if "def get_tasks" in block]
  stream = make(own(tmp_path, code=code), given=None)
  assert counts(stream)[0] == (300, 100, 200)
  assert [info[3:5] for info in stream.infos[1:]] == [(100, 50), (200, 100)]
  assert stream.infos[1].class_names == ("0", "2", "4", "6", "8")


def test_a_sweep_counts_the_steps_of_a_list_of_ones_own(tmp_path):
  stream = own(tmp_path, dict(name="mine", arrays=given()), dict(name="again", arrays=given()))
  c = configs.tasks("independent", stream)
  c.train.epochs, c.train.batch_size, c.train.learning_rate, c.train.weight_decay = 7, 5, (0.1, 0.2), (0.0,)
  (found,) = dry_run.predict([configs.parse(c)])
  assert found.steps == 2 * 2 * 7 * 3  # tasks, pairs, epochs, batches of 12 examples


DRAWN = dict(name="a", data="mnist", train=5, val=3)
def test_a_run_resizes_a_list_and_speaks_of_its_fields(tmp_path):
  tasks = dict(name="a", arrays=given()), dict(name="digits", data="digits", train=5, val=3)
  c = configs.tasks("independent", own(tmp_path, *tasks))
  with pytest.raises(BadInput, match=r"\(8, 8, 1\), the first task \(6, 6, 1\); set dataset.image_size=N to"):
    sequence.Tasks(configs.parse(c))
  before = configs.digest(configs.parse(c))
  c.dataset.image_size = 16
  assert configs.digest(configs.parse(c)) != before
  source = sequence.Tasks(configs.parse(c))
  assert source.example_shape == (16, 16, 3)
  assert same(source.data.task(1), make(c.dataset.name, given=None, image_size=16).task(1))
  c.stream.num_megabatches = 3
  with pytest.raises(BadInput, match="^stream.num_megabatches=3 exceeds the 2 tasks"):
    sequence.Tasks(configs.parse(c))


def test_a_folder_of_images_of_several_sizes_is_resized(tmp_path):
  rng = np.random.default_rng(0)
  for label in "ab":
    for i in range(10):
      path = tmp_path / "images" / label / f"{i}.png"
      path.parent.mkdir(parents=True, exist_ok=True)
      Image.fromarray(rng.integers(256, size=(6 + i, 8), dtype=np.uint8)).save(path)
  path = own(tmp_path, dict(name="a", data=f"folder:{tmp_path}/images", train=4, val=2))
  with pytest.raises(BadInput, match="it has examples of several sizes"):
    make(path, given=None)
  assert make(path, given=None, image_size=8).task(0).x_train.shape == (8, 8, 8, 3)


def test_data_sets_that_are_missing_or_too_small(tfds_dir, tmp_path):
  with pytest.raises(BadInput, match=r"data sets dtd, fashion_mnist, svhn_cropped, which are not prepared in .*tfds"):
    make("s_minus", given=None, sources="real", data_dir=str(tfds_dir))
  with pytest.raises(BadInput, match="'1 cifar10 large' needs 600 train examples of class 0 of cifar10, which has 40"):
    make("s_minus", given=None, sources="auto", data_dir=str(tfds_dir))
  with pytest.raises(BadInput, match="holds no prepared TFDS data set"):
    make("s_minus", given=None, data_dir=str(tmp_path))
  stream = make(own(tmp_path, *(dict(DRAWN, name=name, data=name) for name in ("mnist", "svhn"))), given=None,
                data_dir=str(tfds_dir))
  assert counts(stream) == [(15, 9, 30), (15, 9, 30)]
  assert stream.task(1).x_train.shape == (15, 32, 32, 3)


@pytest.fixture(scope="module")
def textures_dir(tmp_path_factory):
  """A folder with a tiny `dtd` of images of several sizes, prepared as array_record."""
  import tensorflow_datasets as tfds

  class Tiny(tfds.core.GeneratorBasedBuilder):
    name, VERSION = "dtd", tfds.core.Version("1.0.0")

    def _info(self):
      return tfds.core.DatasetInfo(builder=self, features=tfds.features.FeaturesDict({
          "image": tfds.features.Image(), "label": tfds.features.ClassLabel(names=["plain", "dotted"])}))

    def _split_generators(self, dl_manager):
      return {split: self._generate_examples(number) for number, split in enumerate(("train", "validation", "test"))}

    def _generate_examples(self, number):
      for i in range(8):
        pixels = np.full((40 + i, 60, 3), 20 * i + number, np.uint8)
        pixels[:, :5] = pixels[:, -5:] = 255  # beyond the middle square
        png = io.BytesIO()
        Image.fromarray(pixels).save(png, format="png")
        yield i, {"image": png.getvalue(), "label": i % 2}

  root = tmp_path_factory.mktemp("textures")
  Tiny(data_dir=str(root), file_format="array_record").download_and_prepare()
  return root


def test_real_data_sets_where_they_are_prepared(textures_dir, tmp_path):
  path = own(tmp_path, dict(name="a", data="dtd", train=5, val=3, test=2))
  real, stand_in = (make(path, data_dir=str(folder)) for folder in (textures_dir, tmp_path))
  assert real.infos[0].class_names == ("plain", "dotted")
  assert stand_in.infos[0].class_names == stand_ins.TEXTURES
  assert real.fingerprint != stand_in.fingerprint
  for part, numbers in (("train", {0, 1}), ("val", {0, 1}), ("test", {2})):
    x, y = parts(real.task(0))[part]
    assert (x == x[:, :1, :1, :1]).all()  # the middle square alone
    values = x[:, 0, 0, 0].astype(int)
    assert set(values % 20) <= numbers
    assert (values // 20 % 2 == y).all()
  assert json.dumps(real.infos)
