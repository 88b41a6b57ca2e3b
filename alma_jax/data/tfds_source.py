"""TFDS data sets on disk: found, downloaded, opened and read.

Prepared array_record folders are read without TensorFlow, which is imported
only to prepare a data set, or to read one in tfrecord format.
"""
import importlib.util
import os
import pathlib

import filelock

from alma_jax.errors import BadInput


def find(name, data_dir):
  """Where a data set lies prepared.

  Args:
    name: TFDS name, e.g. "mnist" or "emnist/letters".
    data_dir: folder of prepared data sets, never downloaded into; empty:
      $TFDS_DATA_DIR or ~/tensorflow_datasets.

  Returns:
    (root, folder): the folder of data sets, and in it the newest prepared
    version, or None where `download` may make one.

  Raises:
    BadInput: a given data_dir does not hold it, or several configurations.
  """
  root = pathlib.Path(data_dir or os.environ.get("TFDS_DATA_DIR") or "~/tensorflow_datasets").expanduser()
  folder = _newest(root, name)
  if folder is None and data_dir:
    raise BadInput(f"dataset.data_dir={data_dir!r} holds no prepared TFDS data set {name!r} "
                   f"(no {root / name}/VERSION/dataset_info.json); leave it empty to download.")
  return root, folder


def download(root, name):
  """Downloads and prepares a data set in array_record format; returns its folder.

  Raises:
    BadInput: TFDS does not know it, lacks TensorFlow, or fails.
  """
  _need_tensorflow(f"{root} holds no prepared {name!r}, and preparing it")
  tfds = import_tfds()
  try:
    builder = tfds.builder(name, data_dir=root)
  except (tfds.core.registered.DatasetNotFoundError, ValueError) as error:
    raise BadInput(f"TFDS knows no data set {name!r} ({_first_line(error)}).") from error
  try:
    root.mkdir(parents=True, exist_ok=True)
    with filelock.FileLock(root / f".alma_jax-{name.replace('/', '-')}.lock"):  # processes of a sweep begin together
      builder.download_and_prepare(file_format="array_record")  # nothing, where another has just done it
  except Exception as error:  # whatever the network, the disk or the builder raise
    raise BadInput(f"TFDS could not download and prepare {name!r} into {root}: "
                   f"{_first_line(error)}") from error
  return pathlib.Path(builder.data_dir)


def import_tfds():
  try:
    import tensorflow_datasets
  except ImportError as error:
    raise BadInput(f"reading TFDS data needs a package that is missing ({_first_line(error)}); "
                   "run `pip install -r requirements.txt`.") from error
  return tensorflow_datasets


def examples(builder, split):
  """Yields the examples of a split, dicts of feature to numpy value, in stored order.

  Raises:
    BadInput: the format needs TensorFlow, which is missing.
  """
  if builder.info.file_format and builder.info.file_format.value == "array_record":
    source = builder.as_data_source(split)
    for start in range(0, len(source), 1024):
      yield from source.__getitems__(range(start, min(start + 1024, len(source))))
  else:
    _need_tensorflow(f"{builder.data_dir} is in {builder.info.file_format.value} format, and reading it")
    tfds = import_tfds()
    config = tfds.ReadConfig(interleave_cycle_length=1)
    yield from tfds.as_numpy(builder.as_dataset(split=split, shuffle_files=False, read_config=config))


def stamp(folder):
  """What a cache is made from: names, sizes and times of the prepared files."""
  files = sorted(p for p in folder.iterdir() if p.is_file())
  return [[p.name, p.stat().st_size, p.stat().st_mtime_ns] for p in files]


def _newest(root, name):
  """The newest prepared version below root/name, or None."""
  versions = [info.parent for info in (root / name).glob("*/dataset_info.json")]
  if not versions and "/" not in name:  # a data set of configurations: the only one, if one
    configs = {info.parent.parent for info in (root / name).glob("*/*/dataset_info.json")}
    if len(configs) > 1:
      raise BadInput(f"{root / name} holds the configurations "
                     f"{', '.join(sorted(c.name for c in configs))}; name one as tfds:{name}/CONFIG.")
    versions = [info.parent for info in (root / name).glob("*/*/dataset_info.json")]
  key = lambda folder: [int(part) if part.isdigit() else -1 for part in folder.name.split(".")]
  return max(versions, key=key, default=None)


def _need_tensorflow(what):
  if importlib.util.find_spec("tensorflow") is None:
    raise BadInput(f"{what} needs TensorFlow; run `pip install tensorflow-cpu` and try again.")


def _first_line(error):
  lines = str(error).strip().splitlines()
  return lines[0] if lines else type(error).__name__
