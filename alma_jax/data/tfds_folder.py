"""Finds, downloads and reads data sets of TensorFlow Datasets (TFDS) on disk.

Folders in array_record format are read without TensorFlow. TensorFlow is imported only to prepare a data set, or to
read one in another format.
"""
import contextlib
import fnmatch
import os
import pathlib
import re
import sys
import time
import urllib.parse
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import filelock

from alma_jax import extras, messages
from alma_jax.data import cache
from alma_jax.data.unpacking import first_line
from alma_jax.errors import BadInput

# Seconds before each attempt to reach a host, because the first may fail by accident; until an address of the host is
# given up; and after which no further attempt begins.
_PAUSES, _TIMEOUT, _SECONDS = (0, 1, 2), 4, 15

_failed: dict[tuple[pathlib.Path, str], BadInput] | None = None  # downloads that failed while they are tried once


def prepared(name: str, data_dir: str = "") -> pathlib.Path:
  """The folder of a data set: its newest prepared version. If there is none, the data set is downloaded.

  Args:
    name: TFDS name, e.g. "mnist" or "emnist/letters", with or without a version, as in "mnist:3.0.1" and "mnist:3.*.*".
    data_dir: folder of prepared data sets; nothing is downloaded into it. Empty: $TFDS_DATA_DIR or
      ~/tensorflow_datasets, where a missing data set is downloaded and prepared.

  Raises:
    BadInput: data_dir does not hold the data set or the version, the name stands for several configurations, or the
      data set cannot be downloaded.
  """
  root = root_of(data_dir)
  folder = _newest(root, name)
  if folder is None and data_dir:
    base, version = split(name)
    others = sorted(info.parent.name for info in (root / base).glob("*/dataset_info.json"))
    if others:
      raise BadInput(f"dataset.data_dir={data_dir!r} holds the version{'s' * (len(others) > 1)} "
                     f"{', '.join(others)} of the TFDS data set {base!r}, but none that matches {version}; choose "
                     "one of them, or leave dataset.data_dir empty to download it.")
    raise BadInput(f"dataset.data_dir={data_dir!r} holds no prepared TFDS data set {name!r} "
                   f"(no {root / base}/VERSION/dataset_info.json); name another folder, or none, to download "
                   "it.")
  return folder or download(root, name)


def split(name: str) -> tuple[str, str]:
  """(name with its configuration, version) of a TFDS name; the version is "" if it has none.

  Raises:
    BadInput: the version is malformed.
  """
  base, colon, version = name.partition(":")
  if colon and not re.fullmatch(r"(\d+|\*)(\.(\d+|\*)){2}", version, re.ASCII):
    raise BadInput(f"the TFDS name {name!r} does not end in a version; write it as in {base}:3.0.1 or {base}:3.*.*.")
  return base, version


def is_prepared(name: str, data_dir: str = "") -> bool:
  """Whether the folder of `prepared` holds a version of the data set."""
  return _newest(root_of(data_dir), name) is not None


def root_of(data_dir: str) -> pathlib.Path:
  """The folder of prepared data sets: `data_dir`, or, if it is empty, $TFDS_DATA_DIR or ~/tensorflow_datasets."""
  return pathlib.Path(data_dir or os.environ.get("TFDS_DATA_DIR") or "~/tensorflow_datasets").expanduser()


def download(root: pathlib.Path, name: str) -> pathlib.Path:
  """Downloads a data set and prepares it in array_record format below `root`; returns its folder.

  Raises:
    BadInput: TFDS does not know the data set, TensorFlow is not installed, or the download fails.
  """
  if _failed and (root, name) in _failed:
    raise _failed[root, name]
  try:
    return _downloaded(root, name)
  except BadInput as error:
    if _failed is not None:
      _failed[root, name] = error
    raise


@contextlib.contextmanager
def trying_once() -> Iterator[None]:
  """A context in which a download that has failed is not tried again; its error is raised at once."""
  global _failed
  _failed = {}
  try:
    yield
  finally:
    _failed = None


def _downloaded(root: pathlib.Path, name: str) -> pathlib.Path:
  """See `download`."""
  _need_tensorflow(f"{root} holds no prepared {name!r}, and preparing it")
  tfds = import_tfds()
  try:
    builder = tfds.builder(name, data_dir=root)
  except (tfds.core.registered.DatasetNotFoundError, ValueError) as error:
    raise BadInput(f"TFDS knows no data set {name!r} ({first_line(error)}).") from error
  if not sys.stderr.isatty() and "ipykernel" not in sys.modules:
    tfds.disable_progress_bar()  # in a file it would write a line for every change
  try:
    root.mkdir(parents=True, exist_ok=True)
    # The processes of a sweep start together.
    with filelock.FileLock(root / f".alma_jax-{re.sub('[^A-Za-z0-9_.]', '-', name)}.lock"):
      if not pathlib.Path(builder.data_dir, "dataset_info.json").exists():  # else another process has just prepared it
        messages.say(_announcement(name, builder, root))
        addresses = {urllib.parse.urljoin(url, "/") for url in builder.url_infos or () if url.startswith("http")}
        if reason := next(filter(None, map(_why_unreachable, sorted(addresses))), ""):
          raise BadInput(f"{root} holds no prepared {name!r}, and it cannot be downloaded ({reason}); connect this "
                         "machine to the network, or name a folder of prepared data sets by dataset.data_dir=DIR.")
        builder.download_and_prepare(file_format="array_record")
  except BadInput:
    raise
  except Exception as error:  # the network, the disk and the builder raise many kinds
    raise BadInput(f"TFDS could not download and prepare {name!r} into {root}: {first_line(error)}.") from error
  return pathlib.Path(builder.data_dir)


def _announcement(name: str, builder: Any, root: pathlib.Path) -> str:
  """What is downloaded, how large, from where and to where, as far as TFDS knows."""
  files = builder.url_infos or {}
  size = f" ({messages.num_bytes(sum(info.size for info in files.values()))})" if files else ""
  if size and len(builder.builder_configs) > 1:  # the sizes are those of all configurations together
    size = size.replace("(", "(at most ")
  hosts = sorted({urllib.parse.urlsplit(url).netloc for url in files} - {""})
  source = f" from {', '.join(hosts)}" if hosts else ""
  return f"downloading {name}{size}{source} into {root}, and preparing it there"


def _why_unreachable(url: str) -> str:
  """The reason why the host of a URL cannot be reached, or "" if it can. TFDS itself would retry for minutes.

  Any answer shows that the host can be reached, even a refusal. A host that is slow to answer may answer later.
  """
  import requests
  reason, end = "", time.monotonic() + _SECONDS
  for pause in _PAUSES:
    if time.monotonic() > end:
      break
    time.sleep(pause)
    try:
      requests.head(url, timeout=_TIMEOUT)
      return ""
    except requests.ConnectionError as error:  # no such name, route or proxy, or a bad certificate
      cause = getattr(error.args[0], "reason", error) if error.args else error  # without the names of objects
      reason = str(getattr(cause, "original_error", cause)).rpartition(": ")[2]  # `original_error`: of a proxy
    except requests.RequestException:
      return ""
  return f"no connection to {urllib.parse.urlsplit(url).netloc}: {reason}"


def import_tfds() -> ModuleType:
  """The package tensorflow_datasets; raises BadInput if it is not installed."""
  return extras.load("tensorflow_datasets", "a TFDS data set")


def examples(builder: Any, split: str) -> Iterator[dict[str, Any]]:
  """Yields the examples of a split in stored order, as dicts of features to numpy values.

  Raises:
    BadInput: the format needs TensorFlow, which is not installed.
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


def class_names(folder: pathlib.Path) -> tuple[str, ...] | None:
  """The names of the classes of a prepared folder; None: there are none, or several features are classes."""
  files = list(folder.glob("*.labels.txt"))  # TFDS writes one for every feature that is a class
  return tuple(files[0].read_text().split("\n")[:-1]) if len(files) == 1 else None


def fingerprint(folder: pathlib.Path) -> str:
  """SHA-256 over the names and the contents of the files of a prepared folder."""
  return cache.hash_files(folder, sorted(path for path in folder.iterdir() if path.is_file()))


def _newest(root: pathlib.Path, name: str) -> pathlib.Path | None:
  """The newest prepared version below root that the name allows."""
  name, wanted = split(name)
  versions = [info.parent for info in (root / name).glob("*/dataset_info.json")]
  if not versions and "/" not in name:  # the data set may have configurations, of which one may be prepared
    configs = {info.parent.parent for info in (root / name).glob("*/*/dataset_info.json")}
    if len(configs) > 1:
      raise BadInput(f"{root / name} holds the configurations "
                     f"{', '.join(sorted(c.name for c in configs))}; name one as tfds:{name}/CONFIG.")
    versions = [info.parent for info in (root / name).glob("*/*/dataset_info.json")]
  key = lambda folder: [int(part) if part.isdigit() else -1 for part in folder.name.split(".")]
  return max((folder for folder in versions if fnmatch.fnmatchcase(folder.name, wanted or "*")), key=key, default=None)


def _need_tensorflow(what: str) -> None:
  extras.need(what, "tensorflow")
