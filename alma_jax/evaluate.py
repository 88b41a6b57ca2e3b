"""Scores a run on new labelled data: alma evaluate --workdir RUN [--task T] --data DATA

DATA is one of
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

Besides the error it prints the metrics of the run's `log.metrics`, or those of --metrics, as in --metrics=nll,macro_f1.
"""
import argparse
import json
import math
import pathlib
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from alma_jax import commands, predict
from alma_jax import config as configs
from alma_jax.config import registry, schema, sections
from alma_jax.config.sections import Metric
from alma_jax.data import cache, examples
from alma_jax.data import tokens as data_tokens
from alma_jax.data.form import Form
from alma_jax.data.labels import Labels
from alma_jax.errors import BadInput
from alma_jax.files import write_bytes
from alma_jax.predictors import answers, inputs, scale, texts
from alma_jax.problems import measures

if TYPE_CHECKING:  # it imports jax
  from alma_jax.predictors.predictor import Predictor

_NAMES = ("digits", "mnist", "cifar10")
_MOST_OVERLAP = 0.01  # of the examples; few of them may be equal by chance
_BASIC = (measures.ClassErrors(), measures.NLL(), measures.CalibrationError())
Scores = tuple[dict[str, Any], list[str]]  # what --out holds, and the names of the further metrics in it

_SHOWN = 10  # classes of the summary, those with the largest errors


def main(argv: Sequence[str] | None = None) -> int:
  """Runs the command line; returns the exit code: 0, or 2 for bad input."""
  return commands.exit_code(lambda: _main(argv))


def _main(argv: Sequence[str] | None) -> None:
  parser = commands.Parser("-m alma_jax.evaluate", __doc__)
  predict.add_arguments(parser)
  parser.add_argument("--data", required=True, help="labelled data: a folder DIR/CLASS/*.png, FILE.npz, FILE.parquet, "
                      "FILE.txt, FILE.jsonl, or the name of a data set")
  parser.add_argument("--data_dir", default="", help="folder of prepared TFDS data sets")
  parser.add_argument("--image_column", default="", help="column of a Parquet file with the images or lists of numbers"
                      "; default: image, img, images or x")
  parser.add_argument("--label_column", default="", help="column of a Parquet file with the labels; default: label, "
                      "labels, y or class, or the only one whose name ends in _label")
  parser.add_argument("--allow_overlap", action="store_true", help="also score examples that are in the run's stream")
  parser.add_argument("--metrics", help="further metrics, as in nll,macro_f1; default: those of the run's log.metrics")
  parser.add_argument("--out", help="file to write the scores to, as JSON")
  args = parser.parse_args(argv)
  commands.quiet()
  if args.out:
    answers.check_place(args.out)
  predictor = predict.load(predict.stored_of(args))
  found, further = (_score_texts if predictor.is_language else _score_images)(predictor, args)
  if predictor.facts.get("task"):
    found["task"] = predictor.facts["task"]["name"]
  found |= dict(data=args.data, workdir=str(args.workdir), predictor=predictor.version or None,
                stage=predictor.facts.get("stage"))
  if args.out:
    try:
      write_bytes(pathlib.Path(args.out).expanduser(), (json.dumps(found, indent=2) + "\n").encode())
    except OSError as error:
      raise BadInput(f"--out={args.out!r} cannot be written: {error.strerror}.") from error
  commands.show("\n".join([_text(found, predictor.facts.get("class_names")), *measures.brief([found], further)]))


def _score_images(predictor: "Predictor", args: argparse.Namespace) -> Scores:
  size, values, names = predictor.batch_size, scale.Scale(predictor.facts), inputs.classes_of(predictor.facts).names
  metrics = {metric.name: metric for metric in (*_BASIC, *_metrics(args, registry.IMAGES))}
  totals = measures.Totals(metrics.values())
  hashes: list[int] = []

  def add(batch: examples.Examples, classes: Any, probabilities: Any) -> None:
    assert batch.labels is not None
    totals.add((classes, probabilities), batch.labels.numbers, np.ones(len(classes), bool))
    values.add(batch.x)
    hashes.extend(map(cache.hash_row, batch.x))

  predict.in_batches(predictor, _batches(args, size, predictor.facts), size, add)
  commands.warn(filter(None, [values.warning(args.data)]))
  overlap = _overlap(args, hashes, lambda config: _seen_images(config, args, inputs.form_of(predictor.facts)))
  counts, found = totals.sums["class_errors"], totals.entry(names)
  num = int(counts["num"].sum())
  error = int(counts["wrong"].sum()) / num  # to the bit that of the run
  scores = dict(num_examples=num, error=error, error_standard_error=math.sqrt(error * (1 - error) / num),
                loss=found["nll"])
  return scores | found | dict(class_examples=counts["num"].tolist(), overlap=overlap), [*metrics][len(_BASIC):]


def _metrics(args: argparse.Namespace, problem: str) -> list[Metric]:
  """The metrics of --metrics, or else those of the run; `problem` of a predictor without its run."""
  from alma_jax.store import local_copy, run_files

  tree = configs.flatten(run_files.find_config(local_copy.readable(args.workdir)) or {})
  names = tree.get("log.metrics", ()) if args.metrics is None else filter(None, args.metrics.split(","))
  return [registry.METRICS[tree.get("problem", problem)].of(name, "--metrics")() for name in names]


def _batches(args: argparse.Namespace, size: int, facts: Mapping[str, Any]) -> Iterator[examples.Examples]:
  """The labelled examples of --data; `facts` are the entries of predictor.json."""
  form, classes = inputs.form_of(facts), inputs.classes_of(facts)
  kind, _, rest = args.data.partition(":")
  if args.data not in _NAMES and not (kind == "tfds" and rest):
    path = rest if kind in ("npz", "folder") and rest else args.data
    if not pathlib.Path(path).expanduser().exists():
      raise BadInput(f"--data={args.data!r}: there is no such file or folder, and no data set of this name; give "
                     f"labelled files, or one of {', '.join(_NAMES)} and tfds:NAME.")
    columns = examples.Columns(args.image_column, args.label_column)
    yield from inputs.read([path], examples.Reader(form, part=examples.TEST, columns=columns, classes=classes), size)
    return
  from alma_jax.data import datasets
  try:
    dataset = datasets.load(args.data, args.data_dir)
  except BadInput as error:
    raise BadInput(_advised(error)) from error
  with examples.named(f"the test set of {args.data}"):
    x = form.fit(_of_a_task(dataset.x_test, args.data, form, facts) if facts.get("task") else dataset.x_test)
    y = classes.number(Labels(dataset.y_test, dataset.class_names, dataset.class_names is not None))
  for start in range(0, len(x), size):
    part = x[start:start + size]
    yield examples.Examples([args.data] * len(part), list(range(start, start + len(part))), part,
                            Labels(y[start:start + size]))


def _of_a_task(x: np.ndarray, name: str, form: Form, facts: Mapping[str, Any]) -> np.ndarray:
  """Images [N, H, W, C] of a data set, of which those of another shape are changed as streams of tasks change them."""
  from alma_jax.data import task_sources
  if name == "digits" and facts.get("provenance", {}).get("dataset") == "digits":
    return task_sources.bright(x)
  if x.ndim != 4 or x.shape[1:] == form.shape or x.shape[-1] not in (1, 3):
    return x
  if form.image_size:
    return task_sources.resized(x, form.image_size)
  fits = form.shape == task_sources.IN_COLOUR and max(x.shape[1:3]) <= min(form.shape[:2])
  return task_sources.to_colour(x) if fits else x


def _score_texts(predictor: "Predictor", args: argparse.Namespace) -> Scores:
  metrics = _metrics(args, registry.TEXT)
  documents = [document.text for document in texts.read([args.data.removeprefix("text:")])]
  hashes = [cache.hash_row(document.strip()) for document in documents]
  overlap = _overlap(args, hashes, lambda config: _seen_texts(config, args))
  tokens, counts = texts.windows(predictor.tokenizer, [document.decode() for document in documents],
                                  predictor.facts["sequence_length"])
  total, num_bytes, further = 0.0, data_tokens.num_bytes(predictor.tokenizer), measures.Totals(metrics)
  for batch in texts.batches(predictor, tokens, counts, predictor.batch_size):
    total += float(batch.log_probs[batch.mask].sum(dtype=np.float64))
    further.add(batch.log_probs, measures.Targets(batch.targets, num_bytes[batch.targets]), batch.mask)
  loss = -total / int(counts.sum())
  return dict(num_documents=len(documents), num_tokens=int(counts.sum()), loss=loss, perplexity=float(np.exp(loss)),
              overlap=overlap) | further.entry(), [metric.name for metric in metrics]


def _overlap(args: argparse.Namespace, hashes: Sequence[int], read: Callable[[Any], set[int]]) -> int | None:
  """The number of examples that are in the run's stream, or None if that cannot be found out.

  Args:
    args: of the command.
    hashes: of the examples.
    read: RunConfig -> hashes of the examples of its stream.

  Raises:
    BadInput: there are many, and --allow_overlap is not given.
  """
  from alma_jax.store import local_copy, run_files

  tree = run_files.find_config(local_copy.readable(args.workdir))
  if tree is None:
    return None  # an exported predictor does not know its stream
  config = run_files.parse_config(tree)
  try:
    with warnings.catch_warnings(action="ignore"):  # the run has already warned about its data
      seen = read(config)
  except BadInput as error:
    commands.warn([f"it is not known whether the data overlap the stream of the run, which cannot be read: "
                   f"{_advised(error)}"])
    return None
  num = sum(each in seen for each in hashes)
  if num > _MOST_OVERLAP * len(hashes) and not args.allow_overlap:
    raise BadInput(f"{num} of the {len(hashes)} examples of {args.data} are in the stream of the run, which may have "
                   "been trained on them; give other data, or --allow_overlap.")
  if num:
    commands.warn([f"{num} of the {len(hashes)} examples of {args.data} are in the stream of the run too"])
  return num


def _seen_images(config: Any, args: argparse.Namespace, form: Form) -> set[int]:
  """Hashes of the images of a run's stream, of a stream of tasks those of all tasks."""
  from alma_jax.data import datasets
  from alma_jax.problems import sequence
  section = config.dataset
  if isinstance(config, schema.TaskConfig):
    tasks = sequence.stream_of(config, args.data_dir)
    data = map(tasks.task, range(len(tasks.infos)))
    return {cache.hash_row(x) for task in data for part in (task.x_train, task.x_val) for x in part}
  if config.is_live:
    reader = examples.Reader(form, columns=examples.Columns(section.image_column, section.label_column))
    return {cache.hash_row(x) for entry in _entries(config, args, reader.whole) for x in entry.x}
  stream = datasets.load(section.name, args.data_dir or section.data_dir, section.image_size)
  return set(map(cache.hash_row, stream.x_train.astype(form.dtype, copy=False)))


def _entries(config: Any, args: argparse.Namespace, read: Callable[[pathlib.Path], Any]) -> list[Any]:
  """What `read` returns for each entry that a run on a live stream has used, if it is still what it was."""
  from alma_jax.data import feed, inbox
  from alma_jax.store import local_copy, run_files
  folder = pathlib.Path(config.dataset.name.removeprefix(sections.LIVE)).expanduser() / "stream"
  used = run_files.read_lines(local_copy.readable(args.workdir) / feed.LEDGER)
  paths = [folder / line["name"] for line in used
           if inbox.signature_of(folder / line["name"]) and inbox.digest(folder / line["name"]) == line["sha256"]]
  if len(paths) < len(used):
    commands.warn([f"{len(used) - len(paths)} of the {len(used)} entries that the run has used are not there any more, "
                   "or have changed; the data are compared with the others"])
  return [read(path) for path in paths]


def _seen_texts(config: Any, args: argparse.Namespace) -> set[int]:
  """Hashes of the documents of a run's stream; without a folder for the test text, of its pieces."""
  from alma_jax.data import documents, text_files, text_source
  if config.is_live:
    entries = _entries(config, args, lambda path: list(text_files.read(path)))
    return {cache.hash_row(document.text.strip()) for entry in entries for document in entry}
  splits = text_source.find(config.dataset.name, args.data_dir or config.dataset.data_dir).read()
  if "test" not in splits:
    splits = documents.prepare(splits, config.stream.num_megabatches, config.seed)
  return {cache.hash_row(text.strip()) for text in splits["train"]}


def _advised(error: BadInput) -> str:
  """The message of data that cannot be loaded, with the option of this command in place of the field of a run."""
  return str(error).replace("dataset.data_dir=", "--data_dir=")


def _text(found: dict[str, Any], names: Sequence[str] | None) -> str:
  """The scores for people."""
  if "perplexity" in found:
    return (f"perplexity {found['perplexity']:.2f}, loss {found['loss']:.4f} nats a token, over "
            f"{found['num_tokens']:,} tokens of {found['num_documents']} documents")
  lines = [f"error {found['error']:.4f} ± {found['error_standard_error']:.4f}, loss {found['loss']:.4f} nats, "
           f"calibration error {found['calibration_error']:.4f}, over {found['num_examples']:,} examples"]
  errors = [(error, k) for k, error in enumerate(found["class_errors"]) if error is not None]
  worst = sorted(errors, key=lambda each: (-each[0], each[1]))[:_SHOWN]
  title = f"class error, the largest {_SHOWN} of {len(errors)}" if len(errors) > _SHOWN else "class error"
  width = max(len(str(names[k] if names else k)) for _, k in worst)
  lines += [f"{title}:", *(f"  {names[k] if names else k!s:<{width}}  {error:.4f} of {found['class_examples'][k]:,}"
                           for error, k in worst)]
  return "\n".join(lines)


if __name__ == "__main__":
  sys.exit(main())
