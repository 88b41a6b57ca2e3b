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
from alma_jax.data import examples, task_types
from alma_jax.errors import BadInput
from alma_jax.predictors import answers, facts, folder

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
  with answers.Table(args.out) as table:
    for columns in load(stored_of(args)).tables(args.inputs, examples.Columns(args.image_column)):
      table.write(columns)
  if args.out:
    commands.show(args.out)


def add_arguments(parser: argparse.ArgumentParser) -> None:
  """Adds the arguments that name a predictor."""
  parser.add_argument("--workdir", required=True, help="run folder, or a folder that alma export has written")
  parser.add_argument("--task", help="of a stream of tasks: the name of the task, or its number, from 1")
  parser.add_argument("--config", help="config file that registers what the run uses of your own")


def place_of(args: argparse.Namespace) -> pathlib.Path | None:
  """The folder of the predictor that the arguments name; None: it has to be made from a checkpoint.

  Raises:
    BadInput: there is neither a run nor a predictor, or a predictor of another task.
  """
  from alma_jax.store import local_copy, run_files
  from alma_jax.store.record import Record

  path = local_copy.readable(args.workdir)
  if folder.holds_predictor(path):
    _check_task(path, args.task)
    return path
  record = Record(path)
  if not record.is_begun:
    raise BadInput(f"there is neither a run nor a predictor in {run_files.shown(path)}; give a run folder, or a folder "
                   "that alma export has written.")
  if not record.fields.get("log.predictor"):
    return None
  place = path / "predictor"
  if args.task is not None:
    try:
      number = task_types.number_of(args.task, record.graph.names)
    except BadInput:  # no such file, or a damaged one
      return None
    if number is None:
      return None
    place = folder.of_task(place, number)
  return place if folder.holds_predictor(place) else None


def _check_task(path: pathlib.Path, task: str | None) -> None:
  """Raises BadInput if a predictor is not that of a task."""
  from alma_jax.store import run_files

  if task is None:
    return
  place = run_files.shown(path)
  try:
    known = facts.parse(folder.read(path).files[folder.FACTS]).get("task")
  except BadInput as error:
    raise BadInput(f"the predictor in {place} cannot be read: {error}.") from error
  if not known:
    raise BadInput(f"the predictor in {place} knows no tasks; leave --task={task} out.")
  if not task_types.is_meant(task, known["number"], known["name"]):
    raise BadInput(f"the predictor in {place} is that of task {known['number']} ({known['name']!r}), not of {task!r}; "
                   "leave --task out, or give the run folder.")


def stored_of(args: argparse.Namespace) -> folder.Stored:
  """The files of the predictor that the arguments name. Imports no jax if they lie in a folder.

  Raises:
    BadInput: there is neither a run nor a predictor, or the run has not completed a stage.
  """
  place = place_of(args)
  if args.config:
    configs.load_file(args.config)
  if place is not None:
    return folder.read(place)
  from alma_jax.runs import exporting, results  # these import all of flax and orbax

  commands.quiet()
  return folder.Stored("", exporting.files_of(results.load_run(args.workdir), of_task=args.task))


def load(stored: folder.Stored) -> "Predictor":
  """The predictor of some files; imports jax."""
  from alma_jax.predictors import predictor
  return predictor.load(stored)


if __name__ == "__main__":
  sys.exit(main())
