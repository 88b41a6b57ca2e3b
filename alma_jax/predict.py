"""Predicts with a run: alma predict --workdir RUN [--task T] INPUT... [--out FILE.csv|FILE.parquet]

INPUT is an image, a folder of images, an .npz file with an array x [N, ...], or a .parquet file with a column of
images; for a language model a .txt file (one document), a .jsonl file (in every line a string, or an object with a
string `text`), or a folder of them.

The table has a row for each image: `input`, `row` (its number in the file), `class`, and the probability of each class,
`p_CLASS`. For texts it has `num_tokens`, `log_probability` (nats), `perplexity`, and the likeliest next token. Without
--out it is CSV on standard output.

RUN is a run folder, or a folder that `alma export` has written. Of a run with `log.predictor` the folder `predictor` is
read, which is replaced after every stage; of other runs the last checkpoint, which takes longer to start. If RUN is on
a stream of tasks, --task says which task the inputs belong to.
"""
import argparse
import pathlib
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from alma_jax import commands
from alma_jax import config as configs
from alma_jax.data import task_names
from alma_jax.errors import BadInput
from alma_jax.predictors import answers, folder
from alma_jax.store import local_copy, run_files
from alma_jax.store.record import Record

if TYPE_CHECKING:  # it imports jax
  from alma_jax.predictors.predictor import Predictor


@commands.command
def main(argv: Sequence[str] | None = None) -> None:
  """Runs the command line."""
  parser = commands.Parser("-m alma_jax.predict", __doc__)
  add_arguments(parser)
  parser.add_argument("inputs", nargs="+", metavar="INPUT", help="images, folders, .npz, .parquet, .txt, .jsonl")
  parser.add_argument("--out", help="file to write, .csv or .parquet; default: CSV on standard output")
  parser.add_argument("--image_column", default="", help="column of Parquet files with the images or lists of numbers; "
                      "default: image, img, images or x")
  args = parser.parse_args(argv)
  commands.quiet()
  with answers.table(args.out) as write:
    for columns in load(stored_of(args)[0]).tables(args.inputs, args.image_column):
      write(columns)
  if args.out:
    commands.show(args.out)


def add_arguments(parser: argparse.ArgumentParser) -> None:
  """Adds the arguments that name a predictor."""
  parser.add_argument("--workdir", required=True, help="run folder, or a folder that alma export has written")
  parser.add_argument("--task", help="of a stream of tasks: the name of the task, or its number, from 1")
  parser.add_argument("--config", help="config file that registers what the run uses of your own")


def stored_of(args: argparse.Namespace) -> tuple[folder.Stored, pathlib.Path | None, Record]:
  """The predictor that the arguments name. Imports no jax if it lies in a folder.

  Returns:
    (its files, the folder that holds it, the run folder); the folder is None if the files were made from a checkpoint.
    In a folder that `alma export` has written, there is no run.

  Raises:
    BadInput: there is neither a run nor a predictor, the run has not completed a stage, or the predictor is that of
      another task.
  """
  if args.config:
    configs.load_file(args.config)
  path = local_copy.readable(args.workdir)
  record = Record(path)
  if folder.holds_predictor(path):
    stored = folder.read(path)
    _check_task(stored, args.task, run_files.shown(path))
    return stored, path, record
  if not record.is_begun:
    raise BadInput(f"there is neither a run nor a predictor in {run_files.shown(path)}; give a run folder, or a folder "
                   "that alma export has written.")
  place: pathlib.Path | None = path / "predictor"
  if args.task is not None:
    number = None if record.accuracies is None else task_names.number_of(args.task, record.graph.names)
    place = None if number is None else folder.of_task(path / "predictor", number)
  if place is not None and record.fields.get("log.predictor") and folder.holds_predictor(place):
    return folder.read(place), place, record
  from alma_jax.runs import exporting, results  # these import all of flax and orbax

  commands.quiet()
  return folder.stored(exporting.files_of(results.load_run(path), of_task=args.task)), None, record


def _check_task(stored: folder.Stored, task: str | None, place: str) -> None:
  """Raises BadInput if the predictor answers for another task."""
  known = stored.description.task
  if task is None:
    return
  if known is None:
    raise BadInput(f"the predictor in {place} knows no tasks; leave --task={task} out.")
  if not task_names.is_meant(task, *known):
    raise BadInput(f"the predictor in {place} is that of task {known.number} ({known.name!r}), not of {task!r}; "
                   "leave --task out, or give the run folder.")


def load(stored: folder.Stored) -> "Predictor":
  """The predictor of some files; imports jax."""
  from alma_jax.predictors import predictor
  return predictor.load(stored)


if __name__ == "__main__":
  sys.exit(main())
