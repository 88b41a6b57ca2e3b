"""The files of a run folder: names, JSON, and checksums."""
import hashlib
import json
import os
import pathlib
from typing import Any

from alma_jax.data import feed
from alma_jax.errors import BadInput
from alma_jax.files import ADDRESS, cache_home, parse_json, usable, write_bytes
from alma_jax.store.metrics import Entry

FORMAT = 3  # of run folders, in CONFIG; raise it if the readers below can no longer read older folders
CONFIG, METRICS, TRAIN, DIVERGED = "config.json", "metrics.jsonl", "train.jsonl", "diverged.json"
STOPPED = "stopped.json"  # {"stage", "epoch"} of a run that was saved and stopped on request, until it goes on
LOCAL = ("file", "local")  # schemes of addresses that are folders of this machine
DOING = ".doing.json"  # {"activity", "since"} while something takes long
PREDICTOR = "predictor"  # folder of the predictors that `log.predictor` asks for
COPIES = "copies"  # folder of second copies of what is written once
GATE = "gate.msgpack"  # of learners/gate.py, published by runs/mixture.py
# --overwrite deletes these in this order. If it is interrupted, the rest is an unfinished run of the stored config, and
# the command without --overwrite resumes it. Checkpoints can replace a missing METRICS, but not a missing TRAIN.
WRITTEN = ("summary.json", METRICS, "checkpoints", "pool", TRAIN, DIVERGED, STOPPED, "curve.png", "accuracy.csv",
           "graph.json", "tensorboard", "wandb", "tokenizer.json", "export", PREDICTOR, GATE, *feed.FILES, CONFIG)


def local(path: str | os.PathLike[str]) -> pathlib.Path:
  """Path of a folder.

  Raises:
    BadInput: it is an address such as gs://bucket/run, or too long.
  """
  if is_address(path):
    raise BadInput(f"{str(path)!r} is an address, not a folder; mount the bucket, and give the folder where it is "
                   "mounted.")
  return usable(path)


def is_address(path: str | os.PathLike[str]) -> bool:
  """Whether a path is an address such as gs://bucket/run."""
  return ADDRESS.match(str(path)) is not None


def copies() -> pathlib.Path:
  """The folder with the local copies of runs at addresses, SCHEME/BUCKET/PATH."""
  return cache_home() / "remote"


def shown(path: pathlib.Path) -> str:
  """A path for messages. If it is in the local copy of a run at an address, it is shown as that address."""
  try:
    scheme, *parts = path.relative_to(copies()).parts
  except ValueError:
    return str(path)
  return f"{scheme}:{'///' if scheme in LOCAL else '//'}{'/'.join(parts)}"


def find_config(folder: pathlib.Path, of_any_format: bool = False) -> dict[str, Any] | None:
  """The contents of a run folder's config.json, or None if there is none.

  Args:
    folder: the run folder.
    of_any_format: whether to read other formats too, to delete the run.

  Raises:
    BadInput: it is not from a run, or from a run in another format.
  """
  tree = read_json(folder / CONFIG)
  if tree is None:
    return None
  if not (isinstance(tree, dict) and "data_fingerprint" in tree and
          all(isinstance(tree.get(name, {}), dict) for name in ("arrays", "code", "decided", "made_with"))):
    raise BadInput(f"{shown(folder / CONFIG)} is not from a run of alma_jax; move it away, or give another folder.")
  if tree.get("format") != FORMAT and not of_any_format:
    raise BadInput(
        f"{shown(folder)} holds a run of alma_jax {tree.get('alma_jax_version')} ({CONFIG}: format "
        f"{tree.get('format')}), but this version reads only format {FORMAT}; run it again, with --overwrite or in "
        "another folder, or use the version that wrote it.")
  return tree


def read_json(path: str | os.PathLike[str]) -> Any:
  """The contents of a JSON file, or None if there is none.

  Raises:
    BadInput: it is not JSON.
  """
  try:
    return parse_json(pathlib.Path(path).read_text())
  except FileNotFoundError:
    return None
  except (OSError, ValueError) as error:
    raise BadInput(f"{path} cannot be read as JSON ({error}); restore the file, or give another folder.") from error


def read_lines(path: str | os.PathLike[str]) -> list[Entry]:
  """The entries of a .jsonl file, without a last line that is only half written.

  Raises:
    BadInput: another line is not JSON.
  """
  try:
    lines = pathlib.Path(path).read_text(encoding="utf-8").split("\n")[:-1]
  except ValueError as error:
    raise BadInput(f"{path} is not text ({error}); restore the file.") from error
  try:
    # As one list it is read in half of the time, if every line is an entry; else each line is judged by itself.
    entries = parse_json(f"[{','.join(lines)}]") if all(line[:1] == "{" for line in lines) else []
    if len(entries) == len(lines):
      return entries
  except ValueError:
    pass
  try:
    return [parse_json(line) for line in lines]
  except ValueError as error:
    raise BadInput(f"{path} has a line that is not JSON ({error}); restore the file.") from error


def chained(total: str, line: bytes) -> str:
  """The checksum of a .jsonl file up to a line; `total` is the checksum of the lines before, "" if there are none."""
  return hashlib.sha256(total.encode() + line).hexdigest()


def encoded(entry: Entry) -> bytes:
  """Bytes of an entry of a .jsonl file."""
  return json.dumps(entry, allow_nan=False).encode() + b"\n"


def write_json(path: pathlib.Path, tree: Any) -> None:
  """Writes JSON, whole or not at all."""
  write_bytes(path, json_bytes(tree))


def json_bytes(tree: Any) -> bytes:
  """What `write_json` writes."""
  return (json.dumps(tree, indent=2, allow_nan=False) + "\n").encode()


def digest_of(tree: Any) -> str:
  """SHA-256 of what JSON can hold."""
  return hashlib.sha256(json.dumps(tree, sort_keys=True).encode()).hexdigest()
