"""Scores a run on labelled data: alma evaluate --workdir RUN [--task T] [--data DATA]

Without --data it scores the run's own test set, or the part that the run held out. DATA is one of
  DIR             a folder of images by class, DIR/CLASS/*.png; if there is a folder DIR/test, DIR/test/CLASS/*.png
  FILE.npz        arrays x [N, ...] and y [N], or x_test and y_test
  FILE.parquet    columns of images and labels
  NAME            the test set of a data set: digits, mnist, cifar10, tfds:NAME
  a .txt or .jsonl file, or a folder of them, for a language model
Labels are names of the classes of RUN, or their numbers, from 0. If a class is called by a number other than its own,
numbers are names. If DATA name their classes themselves (those of TFDS, Parquet files of Hugging Face), numbers count
these names, and the names are compared with those of RUN. A label that RUN does not know is refused.

RUN is a run folder, or a folder that `alma export` has written. If RUN is a run folder, DATA is compared with the data
of its stream: if more than 1 % of the examples of DATA are in the stream, they are no test, and are refused. If RUN is
on a stream of tasks, --task says which task DATA belongs to. If the values of DATA have another scale than the training
images, a warning says so. Images of a NAME are changed as streams of tasks change them: for a task of the stream
`digits` those of digits from 0..16 to 0..255; if a task has another shape, smaller ones to 32x32 pixels of three
channels, or all to dataset.image_size.

It also prints the metrics that --metrics names, as in --metrics=nll,macro_f1; by default, the run's `log.metrics`.
--out also lists the images that were classified wrongly, each with its file, its class and the predicted one.
"""
import argparse
import dataclasses
import functools
import json
import pathlib
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from alma_jax import commands, predict
from alma_jax.config import registry, sections
from alma_jax.data import cache, examples
from alma_jax.data.form import Form
from alma_jax.errors import BadInput
from alma_jax.files import write_bytes
from alma_jax.predictors import answers, inputs
from alma_jax.store.record import DATA, Record

_NAMES = ("digits", "mnist", "cifar10")
_MOST_OVERLAP = 0.01  # of the examples; few of them may be equal by chance


@commands.command
def main(argv: Sequence[str] | None = None) -> None:
  """Runs the command line."""
  parser = commands.Parser("-m alma_jax.evaluate", __doc__)
  predict.add_arguments(parser)
  parser.add_argument("--data", help="labelled data: a folder DIR/CLASS/*.png, FILE.npz, FILE.parquet, FILE.txt, "
                      "FILE.jsonl, or the name of a data set; default: the run's own test set")
  parser.add_argument("--data_dir", default="", help="folder of prepared TFDS data sets")
  parser.add_argument("--image_column", default="", help="column of a Parquet file with the images or lists of numbers"
                      "; default: image, img, images or x")
  parser.add_argument("--label_column", default="", help="column of a Parquet file with the labels; default: label, "
                      "labels, y or class, or the only one whose name ends in _label")
  parser.add_argument("--allow_overlap", action="store_true", help="also score examples that are in the run's stream")
  parser.add_argument("--metrics", help="further metrics, as in nll,macro_f1; default: the run's log.metrics")
  parser.add_argument("--out", help="file to write the scores and the wrong images to, as JSON")
  args = parser.parse_args(argv)
  commands.quiet()
  if args.data == "":
    raise BadInput("--data is empty; give labelled data, or leave it out to score the run's own test set.")
  if args.out:
    answers.check_place(args.out)
  stored, _, record = predict.stored_of(args)
  predictor, known = predict.load(stored), stored.description
  metrics = _metrics(args, record, known.problem)
  what = args.data or f"the test set of {record.fields['dataset.name'] if record.is_begun else args.workdir}"
  found, shown, hashes = predictor.evaluate(what, _given(args, record, predictor, what), metrics)
  found["overlap"] = _overlap(args, record, hashes, known.form, what)
  if known.task:
    found["task"] = known.task.name
  found |= dict(data=what, workdir=str(args.workdir), predictor=predictor.version or None, stage=known.stage)
  if args.out:
    try:
      write_bytes(pathlib.Path(args.out).expanduser(), (json.dumps(found, indent=2) + "\n").encode())
    except OSError as error:
      raise BadInput(f"--out={args.out!r} cannot be written: {error.strerror}.") from error
  commands.show(shown)


def _metrics(args: argparse.Namespace, record: Record, problem: str) -> list[sections.Metric]:
  """The metrics that --metrics names, by default the run's; `problem`: for a predictor without its run."""
  known = registry.METRICS[record.kind.problem if record.is_begun else problem]
  if args.metrics is not None:
    return [known.of(name, "--metrics")() for name in args.metrics.split(",") if name]
  chosen = record.fields.get("log.metrics", ()) if record.is_begun else ()
  commands.warn([f"the metric {name!r} of the run is left out, because it is not known; give the file that registers "
                 "it as --config" for name in chosen if name not in known])
  return [known[name]() for name in chosen if name in known]


def _given(args: argparse.Namespace, record: Record, predictor: Any, what: str) -> Iterable[Any]:
  """What is scored: labelled images in batches, or documents as bytes; `what`: how messages call it."""
  known = predictor.known
  if args.data is not None:
    return predictor.labelled(args.data, functools.partial(_batches, args, predictor))
  try:
    if not record.is_begun:
      raise BadInput(f"{args.workdir} holds a predictor, and no run; give --data.")
    with warnings.catch_warnings(action="ignore"):  # the run has already warned about its data
      found, fingerprint = _section(args, record).tested(record.config, known.task and known.task.number)
    if fingerprint not in (None, record.fields[DATA]):
      raise BadInput(f"{record.config.dataset.name} has changed since the run began; restore it, or give --data.")
  except BadInput as error:
    raise BadInput(f"without --data, the run is scored on its own test set, which cannot be read: {_advised(error)}"
                   ) from error
  return predictor.cut(found, what, with_unknown=True)


def _section(args: argparse.Namespace, record: Record) -> Any:
  """The section `dataset` of the run, with the folder --data_dir."""
  section: Any = record.config.dataset
  has_folder = args.data_dir and "data_dir" in {field.name for field in dataclasses.fields(section)}
  return dataclasses.replace(section, data_dir=args.data_dir) if has_folder else section


def _batches(args: argparse.Namespace, predictor: Any) -> Iterator[examples.Examples]:
  """The labelled images of --data."""
  known, form = predictor.known, predictor.known.form
  kind, _, rest = args.data.partition(":")
  if args.data not in _NAMES and not (kind == "tfds" and rest):
    path = rest if kind in ("npz", "folder") and rest else args.data
    if not pathlib.Path(path).expanduser().exists():
      raise BadInput(f"--data={args.data!r}: there is no such file or folder, and no data set of this name; give "
                     f"labelled files, or one of {', '.join(_NAMES)} and tfds:NAME.")
    reader = examples.Reader(form, True, examples.TEST, args.image_column, args.label_column, known.classes)
    yield from inputs.read([path], reader, predictor.program.batch_size)
    return
  from alma_jax.data import datasets
  try:
    dataset = datasets.load(args.data, args.data_dir)
  except BadInput as error:
    raise BadInput(_advised(error)) from error
  if known.task:
    dataset = dataclasses.replace(dataset, x_test=_of_a_task(dataset.x_test, args.data, form, known.dataset))
  yield from predictor.cut(dataset.tested, f"the test set of {args.data}")


def _of_a_task(x: np.ndarray, name: str, form: Form, stream: str) -> np.ndarray:
  """Images [N, H, W, C] of a data set, of which those of another shape are changed as streams of tasks change them."""
  from alma_jax.data import image_changes
  if name == stream == "digits":
    return image_changes.bright(x)
  if x.ndim != 4 or x.shape[1:] == form.shape or x.shape[-1] not in (1, 3):
    return x
  if form.image_size:
    return image_changes.resized(x, form.image_size)
  fits = form.shape == image_changes.IN_COLOUR and max(x.shape[1:3]) <= min(form.shape[:2])
  return image_changes.to_colour(x) if fits else x


def _overlap(args: argparse.Namespace, record: Record, hashes: Sequence[int], form: Form | None, what: str
             ) -> int | None:
  """The number of examples that are in the run's stream, or None if that cannot be found out.

  Args:
    args: of the command.
    record: of the run.
    hashes: of the examples.
    form: of the images that the predictor takes, if it takes images.
    what: how messages call the examples.

  Raises:
    BadInput: there are many, and --allow_overlap is not given.
  """
  if not record.is_begun:
    return None  # an exported predictor does not know its stream
  try:
    with warnings.catch_warnings(action="ignore"):
      arrived = _section(args, record).arrived(record.config, form, functools.partial(_entries, record))
      seen = set(map(cache.hash_row, arrived))
  except BadInput as error:
    commands.warn([f"it is not known whether the data overlap the stream of the run, which cannot be read: "
                   f"{_advised(error)}"])
    return None
  num = sum(each in seen for each in hashes)
  if args.data and num > _MOST_OVERLAP * len(hashes) and not args.allow_overlap:
    raise BadInput(f"{num} of the {len(hashes)} examples of {what} are in the stream of the run, which may have been "
                   "trained on them; leave out --data to score what the run has held out, give other data, or "
                   "--allow_overlap.")
  if num:
    commands.warn([f"{num} of the {len(hashes)} examples of {what} are in the stream of the run too"])
  return num


def _entries(record: Record, read: Callable[[pathlib.Path], Any]) -> list[Any]:
  """What `read` returns for each entry that a run on a live stream has used, if it is still what it was."""
  from alma_jax.data import inbox
  folder = pathlib.Path(record.config.dataset.name.removeprefix(sections.LIVE)).expanduser() / "stream"
  used = record.entries
  paths = [folder / line["name"] for line in used if inbox.digest(folder / line["name"]) == line["sha256"]]
  if len(paths) < len(used):
    commands.warn([f"{len(used) - len(paths)} of the {len(used)} entries that the run has used are not there any more, "
                   "or have changed; the data are compared with the others"])
  return [read(path) for path in paths]


def _advised(error: BadInput) -> str:
  """The message of data that cannot be loaded, with the option of this command in place of the field of a run."""
  return str(error).replace("dataset.data_dir=", "--data_dir=")


if __name__ == "__main__":
  sys.exit(main())
