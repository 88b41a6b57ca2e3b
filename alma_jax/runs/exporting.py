"""Exporting the predictor of a run: its program as StableHLO, its weights, and a model card."""
import dataclasses
import datetime
import hashlib
import io
import json
import os
import pathlib
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import export as jax_export

from alma_jax import config as configs
from alma_jax.config import schema, text_sections
from alma_jax.data import feed
from alma_jax.errors import BadInput
from alma_jax.files import write_bytes
from alma_jax.learners import contract, prediction
from alma_jax.learners.task_learner import TaskLearner
from alma_jax.parallel import environment, sharding
from alma_jax.predictors import card, folder
from alma_jax.predictors import facts as predictor_facts
from alma_jax.problems import classification, sequence
from alma_jax.problems.language_modeling import Contexts
from alma_jax.runs import results, settings
from alma_jax.store import metrics, run_files
from alma_jax.store.record import DATA
from alma_jax.types import Tree
from alma_jax.version import __version__

_PLATFORMS = ("cpu", "cuda", "tpu")
_LOADER = '''"""Runs an exported predictor; needs jax and flatbuffers. predictor.json says what x is.

In the folder `predictor` of a run this file loads the version that latest.json names.
"""
import json
import pathlib

import jax
import numpy as np
from jax import export

_folder = pathlib.Path(__file__).parent
if (_folder / "latest.json").exists():
  _folder = _folder / json.loads((_folder / "latest.json").read_text())["version"]
facts = json.loads((_folder / "predictor.json").read_text())
_program = export.deserialize((_folder / "predictor.stablehlo").read_bytes())
with np.load(_folder / "weights.npz", allow_pickle=False) as _file:
  _weights = [_file[str(i)].view(aval.dtype) for i, aval in enumerate(_program.in_avals[:-1])]
_call = jax.jit(_program.call)


def predict(x):
  """Probabilities of the classes [batch, classes]; for text, log-probabilities [batch, L, vocabulary]."""
  return _call(*_weights, x)[-1]


def classify(x):
  """The predicted classes, numbers [batch]; not for text."""
  return _call(*_weights, x)[0]
'''


@dataclasses.dataclass
class Standing:
  """How good a run has been so far. Lines are added as they come: a long stream is not summed up again at every stage.

  Attributes:
    num: lines of metrics.jsonl that were added.
    last: the last line after which the learner was trained; empty before the first.
    total, tested: sum of the prequential metric, and the number of mega-batches that have one.
    is_prequential: whether the metric of `last` is the prequential one, too; see metrics.Measure.
  """
  num: int = 0
  last: metrics.Entry = dataclasses.field(default_factory=dict)
  total: float = 0.0
  tested: int = 0
  is_prequential: bool = False

  def add(self, lines: list[metrics.Entry], metric: str) -> "Standing":
    """Adds those of all `lines` so far that are new; returns itself."""
    for line in lines[self.num:]:
      value = line.get(f"prequential_{metric}")
      if value is not None:
        self.total, self.tested = self.total + value, self.tested + 1
      if line["updated"]:
        self.last, self.is_prequential = line, metrics.measure(metric, [line]).is_prequential
    self.num = len(lines)
    return self


def standing_of_task(lines: list[metrics.Entry], num_params: int, data: dict[str, Any], forgets: bool) -> Standing:
  """How good the predictor of a task is, by the newest of its test accuracies.

  Args:
    lines: of metrics.jsonl so far.
    num_params: of the modules of the task.
    data: what `task_results.shown` returned.
    forgets: whether the predictor is newer than the line of its task. Then nothing but its error is known.
  """
  t = data["task"]["number"] - 1
  visit = sequence.visits(data["tasks"][:len(lines)])[t][-1]
  line = lines[-1] | dict(loss=None, val_error=None) if forgets and visit < len(lines) - 1 else lines[visit]
  error = 1 - lines[-1][metrics.ACCURACIES][t]
  return Standing(len(lines), line | dict(error=error, num_params=num_params))


class Position(NamedTuple):
  """What is known of a learner that is exported, besides its state.

  Attributes:
    path: run folder.
    config: RunConfig.
    data: what `meta` of the run's source returned, for a task what `task_results.shown` did.
    fingerprint: of the data; for a live stream, of the data up to the stage's last mega-batch.
    standing: until the stage's last mega-batch.
  """
  path: pathlib.Path
  config: schema.RunConfig
  data: dict[str, Any]
  fingerprint: str | None
  standing: Standing


class Exporter:
  """Exports the states of a learner. If only the weights have changed, the program of the last export is used again."""

  def __init__(self, learner: contract.Learner, problem: Any):
    """`learner` and `problem` are those of the run."""
    self._learner, self._problem = learner, problem
    self._key: Any = None
    self._program = b""

  def files(self, state: contract.LearnerState, position: Position) -> dict[str, bytes]:
    """{name: contents} of the predictor; all processes of a run call it.

    Args:
      state: of the learner.
      position: where the run is.
    """
    state = self._learner.packed(state)
    leaves, structure = jax.tree.flatten(sharding.fetch((state.live, state.frozen)))
    weights = [np.asarray(leaf) for leaf in leaves]
    make = _language if position.config.is_language else _images
    facts, inputs, output, example = make(position)
    self._compile(state, structure, weights, inputs, output, example, facts.get("normalization"))
    facts |= dict(format=predictor_facts.FORMAT, learner=position.config.learner.name,
                  description=self._learner.describe(state), platforms=list(_PLATFORMS), jax=jax.__version__,
                  **_provenance(position))
    files = {folder.PROGRAM: self._program, folder.WEIGHTS: _npz(weights)}
    if position.config.is_language:
      files[folder.TOKENIZER] = (position.path / folder.TOKENIZER).read_bytes()
    facts["sha256"] = {name: hashlib.sha256(data).hexdigest() for name, data in files.items()}
    return files | {folder.FACTS: (json.dumps(facts, indent=2, allow_nan=False) + "\n").encode(),
                    folder.CARD: card.text(facts).encode(), folder.LOADER: _LOADER.encode()}

  def _compile(self, state: contract.LearnerState, structure: Any, weights: list[np.ndarray], inputs: Any, output: Any,
               example: Any, constants: Any) -> None:
    """Makes the program, unless the last export has the same spec, shapes and normalisation constants."""
    host = {name: value.tolist() if isinstance(value, np.ndarray) else value for name, value in state.host.items()}
    key = (json.dumps([state.spec, host, constants], sort_keys=True), structure,
           [(leaf.shape, leaf.dtype) for leaf in weights])
    if key == self._key:
      return
    used = self._learner.num_blocks, self._learner.contribution, self._learner.resolve
    own = any(method.__module__.partition(".")[0] != "alma_jax" for method in used)
    (batch,) = jax_export.symbolic_shape("batch")

    def predict(*arguments: Tree) -> Tree:
      *given, x = arguments
      live, frozen = jax.tree.unflatten(structure, given)
      now = state._replace(live=live, frozen=frozen)
      answer = lambda x: output(prediction.predict(self._learner, self._problem, now, inputs(x)))
      # A user's own code may use the number of examples, so it sees one at a time.
      return jax.vmap(lambda one: jax.tree.map(lambda leaf: leaf[0], answer(one[None])))(x) if own else answer(x)

    exported = jax_export.export(jax.jit(predict), platforms=_PLATFORMS)(
        *(jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for leaf in weights),
        jax.ShapeDtypeStruct((batch, *example.shape), example.dtype))
    self._program, self._key = bytes(exported.serialize()), key


@environment.fixed()
def export(run: results.Run | str | os.PathLike[str], stage: int | None = None,
           out: str | os.PathLike[str] | None = None, task: int | str | None = None) -> pathlib.Path:
  """Writes a predictor.

  Args:
    run: results.Run, or its folder.
    stage: counts from 0; None: the last one saved.
    out: folder; None: RUN/export, of a stream of tasks RUN/export/task-0001 and so on.
    task: of a stream of tasks, the name of the task, or its number, from 1.

  Returns:
    Path of the folder.

  Raises:
    BadInput: no such run, stage or task, or the folder cannot be written.
  """
  given = run_files.local(out) if out else None
  if given is None and isinstance(run, str | os.PathLike) and run_files.is_address(run):
    raise BadInput(f"a predictor is not written to an address such as {str(run)!r}; give --out, a folder.")
  run = run if isinstance(run, results.Run) else results.load_run(run)
  files = files_of(run, stage, task)
  exported = json.loads(files[folder.FACTS]).get("task")
  place = given or (folder.of_task(run.path / "export", exported["number"] - 1) if exported else run.path / "export")
  try:
    place.mkdir(parents=True, exist_ok=True)
    for name, data in files.items():
      write_bytes(place / name, data)
  except OSError as error:
    raise BadInput(f"the predictor cannot be written to {place}: {error.strerror}.") from error
  return place


@environment.fixed()
def files_of(run: results.Run, stage: int | None = None, of_task: int | str | None = None) -> dict[str, bytes]:
  """{name: contents} of the predictor of a saved stage and task, see `export`; raises BadInput if it is not saved."""
  opened, learner = run.open(stage)
  problem = settings.problem_of(run.config, opened.meta["data"])
  state, data = run.shown(opened, learner, of_task)
  standing = (standing_of_task(opened.meta["lines"], learner.cost(state).num_params, data,
                               learner.options.forgets) if isinstance(learner, TaskLearner) else
              Standing().add(opened.meta["lines"], problem.metric))
  fingerprint = run.record.fields[DATA]
  if run.config.is_live:
    fingerprint = feed.fingerprint(fingerprint, _used(run, standing.last["t"]))
  position = Position(run.path, run.config, data, fingerprint, standing)
  return Exporter(learner, problem).files(state, position)


def _used(run: results.Run, num: int) -> list[feed.Line]:
  """The lines of the first `num` mega-batches of a live stream."""
  lines = run.record.entries[:num]
  if len(lines) < num:
    raise BadInput(f"{run.path / feed.LEDGER} lists only {len(lines)} of the {num} mega-batches that the "
                   "predictor was trained on; restore the file.")
  return lines


def _images(position: Position) -> tuple[Any, ...]:
  """(entries of predictor.json, raw images -> inputs of the learner, prediction -> outputs, shape and dtype of one)."""
  meta, dataset = position.data, position.config.dataset
  assert not isinstance(dataset, text_sections.Text)
  mean, std = (np.asarray(meta[key], np.float32) for key in ("mean", "std"))
  shape, dtype = tuple(meta["example_shape"]), np.dtype(meta["dtype"])
  votes = ", the mean over the members" if getattr(position.config.learner, "combine", "") == "vote" else ""
  facts = dict(
      input=f"x {dtype.name} [batch, {', '.join(map(str, shape))}], raw as in the "
            f"{'stream' if 'task' in meta else 'data set'}",
      output=f"predict: class probabilities float32 [batch, classes]{votes}; classify: predicted classes int32 [batch]"
             + ", by the votes" * bool(votes),
      classes=meta["num_classes"], class_names=meta.get("class_names"), example_shape=list(shape), dtype=dtype.name,
      image_size=getattr(dataset, "image_size", 0),
      normalization=dict(mean=mean.tolist(), std=std.tolist(),
                         meaning="(x - mean) / std, done inside; a std of 0 counts as 1"))
  if "task" in meta:
    facts["task"] = meta["task"]
  inputs = lambda x: classification.normalize(x, mean, std)  # type: ignore[arg-type]
  output = lambda prediction: (prediction[0].astype(jnp.int32), prediction[1])
  return facts, inputs, output, jax.ShapeDtypeStruct(shape, dtype)


def _language(position: Position) -> tuple[Any, ...]:
  """The same for windows of tokens."""
  meta, dataset = position.data, position.config.dataset
  assert isinstance(dataset, text_sections.Text)
  length = dataset.sequence_length
  facts = dict(
      input=f"tokens int32 [batch, {length}], as tokenizer.json encodes text, beginning with {meta['end']} (the end of "
            "a document); the output at a position does not depend on later tokens",
      output=f"log-probabilities float32 [batch, {length}, vocabulary] of what follows each token",
      vocabulary=meta["vocab_size"], end=meta["end"], sequence_length=length)
  return facts, Contexts, lambda prediction: (prediction,), jax.ShapeDtypeStruct((length,), jnp.int32)


def _provenance(position: Position) -> dict[str, Any]:
  """Where a predictor comes from, and how good it was there."""
  config, standing = position.config, position.standing
  last, metric = standing.last, "perplexity" if config.is_language else "error"
  # In predictor.json, the plain name of the metric means that it was measured on a test set.
  logged = metrics.Measure(metric, standing.is_prequential).logged(last)
  values = {name: logged.get(name) for name in (metric, f"val_{metric}", "loss", "num_params", "predict_macs")}
  task = position.data.get("task")
  size = dict(num_tasks=task["of"]) if task else dict(num_megabatches=config.stream.num_megabatches)
  values |= {"prequential": standing.total / standing.tested if standing.tested else None,
             "prequential_megabatches": standing.tested}
  return dict(
      stage=last.get("stage"), megabatch=last.get("t"), metric=metric, metrics=values,
      provenance=dict(
          run=position.path.name, dataset=config.dataset.name, data_fingerprint=position.fingerprint,
          data_covered=_covered(position), config_sha256=configs.digest(config), seed=config.seed, **size,
          alma_jax=__version__, written=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")))


def _covered(position: Position) -> str:
  """What the fingerprint of the data is a hash of."""
  if position.config.is_live:
    return (f"mega-batches 1 to {position.standing.last['t']}, listed in {feed.LEDGER} in the run folder, and the "
            "files beside the folder stream")
  return "the whole data set; the config (see config_sha256) decides which part had arrived by this mega-batch"


def _npz(arrays: list[np.ndarray]) -> bytes:
  """The arrays as an .npz file, under the names "0", "1", ..."""
  file = io.BytesIO()
  np.savez(file, **{str(i): array for i, array in enumerate(arrays)})  # type: ignore[arg-type]
  return file.getvalue()
