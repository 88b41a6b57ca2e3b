"""Exports the predictor of a run: python -m alma_jax.export --workdir RUN [--stage S] [--out DIR]

DIR (RUN/export by default) gets predictor.stablehlo, predictor.json, which says what
goes in and comes out, and load.py, five lines that use them. Those need jax and
flatbuffers alone, on a CPU, GPU or TPU. Any stage that the run has saved can be
exported (counted from 0; the last one by default).
"""
import pathlib
import shutil
import sys

import jax
import jax.numpy as jnp
import numpy as np
from jax import export as jax_export

from alma_jax import commands, results, sharding, writers
from alma_jax import config as configs
from alma_jax.errors import BadInput
from alma_jax.tasks import classification

_PLATFORMS = ("cpu", "cuda", "tpu")
_LOADER = '''"""Runs an exported predictor; needs jax and flatbuffers. predictor.json tells what x is."""
import pathlib

from jax import export

predict = export.deserialize(pathlib.Path(__file__).with_name("predictor.stablehlo").read_bytes()).call
'''


def export(run, stage=None, out=None):
  """Writes a predictor.

  Args:
    run: results.Run, or its folder.
    stage: of the run, from 0; None: the last one saved.
    out: folder; None: RUN/export.

  Returns:
    Path of the folder.

  Raises:
    BadInput: no such run or stage, or the folder cannot be written.
  """
  run = run if isinstance(run, results.Run) else results.load_run(run)
  out = pathlib.Path(out or run.path / "export").expanduser()
  opened, learner = run.open(stage)
  state = sharding.fetch(results.restore_state(learner, opened))
  (batch,) = jax_export.symbolic_shape("batch")
  if run.config.is_language:
    facts, predict, example = _language(run, learner, state, opened.meta["data"])
  else:
    facts, predict, example = _images(learner, state, opened.meta["data"])
  exported = jax_export.export(jax.jit(predict), platforms=_PLATFORMS)(
      jax.ShapeDtypeStruct((batch, *example.shape), example.dtype))
  facts |= dict(learner=run.config.learner.name, stage=opened.meta["stage"] - 1,
                description=learner.describe(state.spec), platforms=list(_PLATFORMS), jax=jax.__version__)
  try:
    out.mkdir(parents=True, exist_ok=True)
    writers.write_bytes(out / "predictor.stablehlo", bytes(exported.serialize()))
    writers.write_json(out / "predictor.json", facts)
    writers.write_bytes(out / "load.py", _LOADER.encode())
    if run.config.is_language:
      shutil.copyfile(run.path / "tokenizer.json", out / "tokenizer.json")
  except OSError as error:
    raise BadInput(f"the predictor cannot be written to {out}: {error.strerror}.") from error
  return out


def _images(learner, state, meta):
  """(what predictor.json tells, function of raw images, shape and dtype of one)."""
  mean, std = (np.asarray(meta[key], np.float32) for key in ("mean", "std"))
  shape, dtype = tuple(meta["example_shape"]), np.dtype(meta["dtype"])
  facts = dict(
      input=f"x {dtype.name} [batch, {', '.join(map(str, shape))}], raw as in the data set",
      output="class probabilities float32 [batch, classes]; of learner.combine='vote' the members' averaged ones",
      classes=meta["num_classes"], class_names=meta.get("class_names"), example_shape=list(shape), dtype=dtype.name,
      normalization=dict(mean=mean.tolist(), std=std.tolist(), meaning="(x - mean) / std, done inside"))
  predict = lambda x: learner.predict(state, classification.normalize(x, mean, std))
  return facts, predict, jax.ShapeDtypeStruct(shape, dtype)


def _language(run, learner, state, meta):
  """The same for windows of tokens."""
  length = run.config.dataset.sequence_length
  facts = dict(
      input=f"tokens int32 [batch, {length}], as tokenizer.json encodes text, begun by {meta['end']} (the end of a "
            "document); what stands behind a token changes nothing before it",
      output=f"log-probabilities float32 [batch, {length}, vocabulary] of what follows each token",
      vocabulary=meta["vocab_size"], end=meta["end"], sequence_length=length)
  return facts, lambda tokens: learner.predict(state, tokens), jax.ShapeDtypeStruct((length,), jnp.int32)


def main(argv=None):
  """Runs the command line; returns the exit code: 0, or 2 for bad input."""
  return commands.exit_code(lambda: _main(argv))


def _main(argv):
  parser = commands.Parser("-m alma_jax.export", __doc__)
  parser.add_argument("--workdir", required=True, help="run folder")
  parser.add_argument("--stage", type=int, help="of the run, from 0; the last one saved by default")
  parser.add_argument("--config", help="config file that registers the run's learner or network, if it is your own")
  parser.add_argument("--out", help="folder to write to; default: export/ in the run folder")
  args = parser.parse_args(argv)
  commands.quiet()
  if args.config:
    configs.load_file(args.config)
  print(export(args.workdir, args.stage, args.out))


if __name__ == "__main__":
  sys.exit(main())
