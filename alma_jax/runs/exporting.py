"""Exporting the predictor of a run as StableHLO."""
import os
import pathlib
import shutil
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import export as jax_export

from alma_jax.config import schema
from alma_jax.errors import BadInput
from alma_jax.learners import prediction
from alma_jax.parallel import sharding
from alma_jax.runs import results, run_folder, settings, snapshot
from alma_jax.tasks import classification
from alma_jax.tasks.language_modeling import Contexts

_PLATFORMS = ("cpu", "cuda", "tpu")
_LOADER = '''"""Runs an exported predictor; needs jax and flatbuffers. predictor.json says what x is."""
import pathlib

from jax import export

predict = export.deserialize(pathlib.Path(__file__).with_name("predictor.stablehlo").read_bytes()).call
'''


def export(run: results.Run | str | os.PathLike[str], stage: int | None = None,
           out: str | os.PathLike[str] | None = None) -> pathlib.Path:
  """Writes a predictor.

  Args:
    run: results.Run, or its folder.
    stage: counts from 0; None: the last one saved.
    out: folder; None: RUN/export.

  Returns:
    Path of the folder.

  Raises:
    BadInput: no such run or stage, or the folder cannot be written.
  """
  given = run_folder.local(out) if out else None
  run = run if isinstance(run, results.Run) else results.load_run(run)
  folder = given or run.path / "export"
  opened, learner = run.open(stage)
  state = sharding.fetch(snapshot.restore_learner(learner, opened))
  (batch,) = jax_export.symbolic_shape("batch")
  task = settings.task_of(run.config, opened.meta["data"])
  facts, inputs, output, example = (_language if run.config.is_language else _images)(run, opened.meta["data"])
  predict = lambda x: output(prediction.predict(learner, task, state, inputs(x)))
  exported = jax_export.export(jax.jit(predict), platforms=_PLATFORMS)(
      jax.ShapeDtypeStruct((batch, *example.shape), example.dtype))
  facts |= dict(learner=run.config.learner.name, stage=opened.meta["stage"] - 1,
                description=learner.describe(state), platforms=list(_PLATFORMS), jax=jax.__version__)
  try:
    folder.mkdir(parents=True, exist_ok=True)
    run_folder.write_bytes(folder / "predictor.stablehlo", bytes(exported.serialize()))
    run_folder.write_json(folder / "predictor.json", facts)
    run_folder.write_bytes(folder / "load.py", _LOADER.encode())
    if run.config.is_language:
      shutil.copyfile(run.path / "tokenizer.json", folder / "tokenizer.json")
  except OSError as error:
    raise BadInput(f"the predictor cannot be written to {folder}: {error.strerror}.") from error
  return folder


def _images(run: results.Run, meta: dict[str, Any]) -> tuple[Any, ...]:
  """(entries of predictor.json, raw images -> inputs of the learner, prediction -> output, shape and dtype of one)."""
  mean, std = (np.asarray(meta[key], np.float32) for key in ("mean", "std"))
  shape, dtype = tuple(meta["example_shape"]), np.dtype(meta["dtype"])
  facts = dict(
      input=f"x {dtype.name} [batch, {', '.join(map(str, shape))}], raw as in the data set",
      output="class probabilities float32 [batch, classes]; for learner.combine='vote' the mean over the members",
      classes=meta["num_classes"], class_names=meta.get("class_names"), example_shape=list(shape), dtype=dtype.name,
      normalization=dict(mean=mean.tolist(), std=std.tolist(), meaning="(x - mean) / std, done inside"))
  inputs = lambda x: classification.normalize(x, mean, std)  # type: ignore[arg-type]
  return facts, inputs, lambda prediction: prediction[1], jax.ShapeDtypeStruct(shape, dtype)


def _language(run: results.Run, meta: dict[str, Any]) -> tuple[Any, ...]:
  """The same for windows of tokens."""
  dataset = run.config.dataset
  assert isinstance(dataset, schema.Text)
  length = dataset.sequence_length
  facts = dict(
      input=f"tokens int32 [batch, {length}], as tokenizer.json encodes text, beginning with {meta['end']} (the end of "
            "a document); the output at a position does not depend on later tokens",
      output=f"log-probabilities float32 [batch, {length}, vocabulary] of what follows each token",
      vocabulary=meta["vocab_size"], end=meta["end"], sequence_length=length)
  return facts, Contexts, lambda prediction: prediction, jax.ShapeDtypeStruct((length,), jnp.int32)
