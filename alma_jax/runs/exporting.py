"""Exporting the predictor of a run: its program as StableHLO, its weights, and a model card."""
import datetime
import hashlib
import io
import json
import os
import pathlib
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from jax import export as jax_export

from alma_jax import config as configs
from alma_jax.config import schema
from alma_jax.errors import BadInput
from alma_jax.files import write_bytes
from alma_jax.learners import contract, prediction
from alma_jax.parallel import environment, sharding
from alma_jax.predictors import description, folder
from alma_jax.problems.contract import Interface
from alma_jax.protocols.contract import Shown
from alma_jax.runs import results, settings
from alma_jax.store import metrics, run_files
from alma_jax.store.record import Record
from alma_jax.types import Tree
from alma_jax.version import __version__

_PLATFORMS = ("cpu", "cuda", "tpu")
_MOST_CLASSES = 100  # names of classes that a model card lists
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


def _outputs(x):
  x, known = jax.numpy.asarray(x), _program.in_avals[-1]
  if (x.shape[1:], x.dtype) != (known.shape[1:], known.dtype) or not x.shape[0]:
    raise ValueError(f"x is {x.dtype} of shape {x.shape}; give {known.dtype} of shape {known.shape}.")
  return _call(*_weights, x)


def predict(x):
  """Probabilities of the classes [batch, classes]; for text, log-probabilities [batch, L, vocabulary]."""
  return _outputs(x)[-1]


def classify(x):
  """The predicted classes, numbers [batch]; not for text."""
  return _outputs(x)[0]
'''


class Exporter:
  """Exports the states of a learner. If only the weights have changed, the program of the last export is used again."""

  def __init__(self, learner: contract.Learner, problem: Any, config: schema.RunConfig, path: pathlib.Path):
    """`learner`, `problem` and `config` are those of the run; `path`: its folder."""
    self._learner, self._problem, self._config, self._path = learner, problem, config, path
    self._key: Any = None
    self._program = b""

  def files(self, shown: Shown) -> dict[str, bytes]:
    """{name: contents} of a predictor; all processes of a run call it."""
    config, state = self._config, self._learner.packed(shown.state)
    leaves, structure = jax.tree.flatten(sharding.fetch((state.live, state.frozen)))
    weights = [np.asarray(leaf) for leaf in leaves]
    interface = self._problem.interface(shown.meta | dict(image_size=config.dataset.image_size),
                                        config.learner.combine == "vote")
    facts = interface.facts
    self._compile(state, structure, weights, interface)
    facts |= dict(format=description.FORMAT, learner=config.learner.name,
                  description=self._learner.describe(state), platforms=list(_PLATFORMS), jax=jax.__version__,
                  **self._provenance(shown))
    files = {folder.PROGRAM: self._program, folder.WEIGHTS: _npz(weights)}
    files |= {name: (self._path / name).read_bytes() for name in self._problem.files}
    facts["sha256"] = {name: hashlib.sha256(data).hexdigest() for name, data in files.items()}
    return files | {folder.FACTS: (json.dumps(facts, indent=2, allow_nan=False) + "\n").encode(),
                    folder.CARD: _card(facts, config.label).encode(), folder.LOADER: _LOADER.encode()}

  def _compile(self, state: contract.LearnerState, structure: Any, weights: list[np.ndarray],
               interface: Interface) -> None:
    """Makes the program, unless the last export has the same spec, shapes and normalisation constants."""
    host = {name: value.tolist() if isinstance(value, np.ndarray) else value for name, value in state.host.items()}
    constants, example = interface.facts.get("normalization"), interface.example
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
      answer = lambda x: interface.outputs(
          prediction.predict(self._learner, self._problem, now, interface.inputs(x)))
      # A user's own code may use the number of examples, so it sees one at a time.
      return jax.vmap(lambda one: jax.tree.map(lambda leaf: leaf[0], answer(one[None])))(x) if own else answer(x)

    exported = jax_export.export(jax.jit(predict), platforms=_PLATFORMS)(
        *(jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for leaf in weights),
        jax.ShapeDtypeStruct((batch, *example.shape), example.dtype))
    self._program, self._key = bytes(exported.serialize()), key

  def _provenance(self, shown: Shown) -> dict[str, Any]:
    """Where a predictor comes from, and how good it was there."""
    config, last, metric = self._config, shown.line, self._problem.metric
    # In predictor.json, the plain name of the metric means that it was measured on a test set.
    logged = metrics.measure(metric, [last] if shown.lines else []).logged(last)
    values = {name: logged.get(name) for name in (metric, f"val_{metric}", "loss", "num_params", "predict_macs")}
    task = shown.meta.get("task")
    size = dict(num_tasks=task["of"]) if task else dict(num_megabatches=config.stream.num_megabatches)
    key = f"prequential_{metric}"
    measured, record = [line[key] for line in shown.lines if line.get(key) is not None], Record(self._path)
    values |= {"prequential": sum(measured) / len(measured) if measured else None,
               "prequential_megabatches": len(measured)}
    return dict(
        stage=last.get("stage"), megabatch=last.get("t"), metric=metric, metrics=values,
        provenance=dict(
            run=self._path.name, dataset=config.dataset.name, data_fingerprint=record.data_until(last["t"]),
            data_covered=config.dataset.coverage(last["t"]), config_sha256=configs.digest(record.tree),
            seed=config.seed, **size, alma_jax=__version__,
            written=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")))


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
  task_of = description.parse(files[folder.FACTS]).task
  place = given or (folder.of_task(run.path / "export", task_of.number - 1) if task_of else run.path / "export")
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
  shown, learner = run.shown(of_task, stage)
  problem = settings.context_of(run.config, shown.meta).problem
  return Exporter(learner, problem, run.config, run.path).files(shown)


def _card(facts: Mapping[str, Any], label: str) -> str:
  """Markdown of a model card (Mitchell et al., 2019); `facts` are the entries of predictor.json, `label` the run's."""
  measured, source, metric, task = facts["metrics"], facts["provenance"], facts["metric"], facts.get("task")
  rows = {
      f"{metric} on the run's test set": measured.get(metric), "test loss, nats": measured.get("loss"),
      f"{metric} on the {'task' if task else 'stage'}'s validation data": measured.get(f"val_{metric}"),
      f"prequential {metric}, the mean over {measured['prequential_megabatches']} mega-batches":
          measured["prequential"]}
  description = facts["description"].splitlines()[0]
  if task:
    title, trained = f"task {task['number']}", f"for task {task['number']} of {task['of']}, {task['name']!r}"
  else:
    title, trained = f"stage {facts['stage']}", (f"trained until mega-batch {facts['megabatch']} of "
                                                 f"{source['num_megabatches'] or 'a stream without an end'}")
  lines = [
      f"# {label} on {source['dataset']}, {title}", "", f"{description}, {trained}.", "",
      "## Input and output", "", f"- input: {facts['input']}", f"- output: {facts['output']}"]
  if "normalization" in facts:
    lines.append("- normalisation: (x - mean) / std, inside the program, where a std of 0 counts as 1; the constants "
                 "stand in predictor.json")
  if "classes" in facts:
    names = facts.get("class_names") or []
    shown = f": {', '.join(names)}" if 0 < len(names) <= _MOST_CLASSES else ""
    lines.append(f"- {facts['classes']} classes{shown}")
  lines += ["", "## Metrics", "", "| metric | value |", "| --- | ---: |",
            *(f"| {name} | {value:.6g} |" for name, value in rows.items() if value is not None)]
  lines += ["", "## Cost", "", "| | |", "| --- | ---: |",
            *(f"| {name} | {value:,} |" for name, value in (
                ("parameters", measured.get("num_params")),
                ("multiply-adds of a prediction", measured.get("predict_macs"))) if value is not None)]
  lines += ["", "## Provenance", "", "| | |", "| --- | --- |",
            *(f"| {name} | {value} |" for name, value in source.items() if value is not None)]
  return "\n".join([*lines, ""])


def _npz(arrays: list[np.ndarray]) -> bytes:
  """The arrays as an .npz file, under the names "0", "1", ..."""
  file = io.BytesIO()
  np.savez(file, **{str(i): array for i, array in enumerate(arrays)})  # type: ignore[arg-type]
  return file.getvalue()
