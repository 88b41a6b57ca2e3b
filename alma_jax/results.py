"""Reading a run folder: metrics, summary, predictions."""
import pathlib

import numpy as np

from alma_jax import checkpoint, environment, runtime, writers
from alma_jax import config as configs
from alma_jax.errors import BadInput
from alma_jax.tasks import classification


class Run:
  """A run folder, finished or not.

  Attributes:
    path: the folder.
    config: RunConfig.
    metrics: dict of numpy arrays [B'], a column of metrics.jsonl each, over the
      mega-batches so far; null is NaN.
    train: list of the entries of train.jsonl.
    summary: dict of summary.json, or None while the run is unfinished.
  """

  def __init__(self, path):
    self.path = pathlib.Path(path).expanduser()
    tree = writers.read_json(self.path / "config.json")
    if tree is None:
      raise BadInput(f"there is no run in {self.path}: it has no config.json.")
    tree.pop("data_fingerprint", None)
    self.config = configs.parse(configs.completed(tree))
    self.metrics = _columns(_lines(self.path / writers.METRICS))
    self.train = _lines(self.path / writers.TRAIN)
    self.summary = writers.read_json(self.path / "summary.json")

  def __repr__(self):
    state = f"{len(self.metrics.get('t', ()))} mega-batches"
    if self.summary:
      name = "cer" if "cer" in self.summary else "average_perplexity"
      state = f"{name}={self.summary[name]:.4f}"
    return f"Run({str(self.path)!r}, {state})"

  def stages(self):
    """The stages whose learner can be asked for predictions, ascending."""
    return sorted(self._saved_stages())

  def predict(self, x, stage=None):
    """Class probabilities of the learner as it was after a stage.

    Args:
      x: raw inputs [N, ...], of the shape and dtype of the training images.
      stage: counts from 0; None: the last one saved.

    Returns:
      float32 [N, K].

    Raises:
      BadInput: no such stage is saved, or x does not look like the data.
    """
    if self.config.is_language:
      raise BadInput(f"{self.path} is a language model, which predicts no classes; `sample` writes with it.")
    opened, learner = self.open(stage)
    data = opened.meta["data"]
    x = _like_examples(x, tuple(data["example_shape"]), np.dtype(data["dtype"]))
    state = restore_state(learner, opened)
    mean, std = (np.asarray(data[key], np.float32) for key in ("mean", "std"))
    pool = classification.make_pool(x, np.zeros(len(x)), mean, std, learner.mesh)
    total = None
    for block in range(learner.num_blocks(state)):
      total = classification.join(total, learner.contribution(state, block, pool))
    return learner.resolve(state, total)[1]

  def sample(self, prompt="", **options):
    """Continues a text with a language model.

    Options are num_tokens (200), temperature (0.8), top_k (0: all), seed (0) and stage (None: the last saved); see
    alma_jax.sample.sample.
    """
    from alma_jax import sample
    return sample.sample(self, prompt, **options)

  def describe(self, stage=None):
    """Text for people: what the learner had grown to after a stage (None: the last saved).

    Raises:
      BadInput: no such stage is saved.
    """
    opened, learner = self.open(stage)
    return learner.describe(opened.meta["spec"])

  def spec(self, stage=None):
    """The static facts of the learner after a stage (None: the last saved), a dict.

    Of `gmoe` the splits of every mixture layer (see `plots.gate_tree`), of `ff` the widths, of growing ensembles the
    number of frozen members.

    Raises:
      BadInput: no such stage is saved.
    """
    return self.open(stage)[0].meta["spec"]

  def open(self, stage=None):
    """The checkpoint of a stage (None: the last saved), and the learner that can read it.

    Raises:
      BadInput: no such stage is saved.
    """
    runtime.setup(self.config)
    saved = self._saved_stages()
    if not saved:
      raise BadInput(f"{self.path} has saved no finished stage yet.")
    if stage is not None and stage not in saved:
      raise BadInput(f"{self.path} has saved the stages {sorted(saved)}, not {stage}; "
                     "the last one is always kept, others as checkpoint.keep_every says.")
    opened = self._checkpoints().open(saved[max(saved) if stage is None else stage])
    return opened, environment.reader(self.config, opened.meta["data"])

  def _checkpoints(self):
    return checkpoint.Checkpoints(self.path / "checkpoints", self.config.checkpoint.keep)

  def _saved_stages(self):
    """{stage trained last: newest checkpoint that holds its learner}."""
    if not (self.path / "checkpoints").is_dir():
      return {}
    metas = self._checkpoints().metas()
    # Between two trainings of a stage a state is of no stage; runs of earlier versions do not say so.
    return {meta["stage"] - 1: step for step, meta in metas.items() if meta["stage"] and meta.get("complete", True)}


def load_run(workdir):
  """Opens a run folder for reading.

  Raises:
    BadInput: there is none.
  """
  return Run(workdir)


def restore_state(learner, opened):
  """The LearnerState of an opened checkpoint."""
  shapes = learner.template(opened.meta["spec"])
  opt = opened.tree("opt", shapes.opt) if opened.has("opt") else None
  return learner.restore(shapes._replace(live=opened.tree("live", shapes.live), frozen=opened.frozen(shapes.frozen),
                                         opt=opt))


def _lines(path):
  return writers.read_lines(path) if path.exists() else []


def _columns(lines):
  if not lines:
    return {}
  return {key: np.array([np.nan if entry[key] is None else entry[key] for entry in lines]) for key in lines[0]}


def _like_examples(x, shape, dtype):
  x = np.asarray(x)
  if x.ndim == len(shape) and shape[-1] == 1 and x.shape[1:] == shape[:-1]:
    x = x[..., None]  # grey images without their channel
  if x.shape[1:] != shape or x.ndim != len(shape) + 1 or not len(x):
    wanted = ", ".join(map(str, shape))
    raise BadInput(f"inputs of shape {x.shape} do not look like the training examples, [N, {wanted}], N at least 1.")
  if x.dtype != dtype and not (dtype == np.float32 and np.issubdtype(x.dtype, np.floating)):
    raise BadInput(f"inputs are {x.dtype}, but the training examples were {dtype}; give raw, unnormalised inputs.")
  return x.astype(dtype)

