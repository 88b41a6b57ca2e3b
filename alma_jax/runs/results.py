"""Reading a run folder: metrics, summary, predictions."""
import os
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from alma_jax import learners, protocols
from alma_jax.config import schema
from alma_jax.data import cache, form, tokens
from alma_jax.errors import BadInput
from alma_jax.learners import contract, prediction
from alma_jax.parallel import environment, runtime
from alma_jax.problems import classification
from alma_jax.protocols.contract import Shown
from alma_jax.runs import loaded, plots, sampling, settings, snapshot
from alma_jax.store import checkpoint, local_copy, run_files
from alma_jax.store.metrics import Entry, Measure
from alma_jax.store.record import Record

if TYPE_CHECKING:  # slow to import
  from matplotlib.figure import Figure


class Run(Record):
  """A run folder, finished or not.

  Attributes:
    path: the folder.
    config: RunConfig.
    lines: list of the entries of metrics.jsonl, one for each mega-batch (of a stream of tasks for each task) so far.
    metrics: dict of numpy arrays [B'], a column of `lines` each; null is NaN. Entries that are lists are left out.
    train: list of the entries of train.jsonl.
    summary: dict of summary.json, or None while the run is unfinished.
    accuracies: of a stream of tasks R[t, i], the test accuracy on task i after task t, so far; None of other runs.
  """

  def __init__(self, path: str | os.PathLike[str]):
    super().__init__(local_copy.readable(path))
    for read in ("config", "lines", "train", "summary"):  # a damaged file is refused now
      getattr(self, read)
    self.metrics = _columns(self.lines)
    self._arrays: dict[str, str] = self.tree.get("arrays", {})  # until they are compared, which is done once

  def __repr__(self) -> str:
    state = f"{len(self.metrics.get('t', ()))} mega-batches"
    if self.summary:
      measured = f" ({self.summary['measured']})" if "measured" in self.summary else ""
      state = f"{self.config.results[0]}={self.summary[self.config.results[0]]:.4f}{measured}"
    return f"Run({self._shown!r}, {state})"

  def _repr_png_(self) -> bytes | None:
    """The curve, for notebooks; None before anything was measured."""
    return plots.png(plot(self)) if self.lines else None

  @property
  def _shown(self) -> str:
    return run_files.shown(self.path)

  @property
  def classes(self) -> Any:
    """Names of the classes, in the order of the columns of `predict`; of a stream of tasks a list for each task.

    If the data set has no names, they are the numbers "0" to "K-1". None: the run is a language model.

    Raises:
      BadInput: nothing is saved yet.
    """
    metas = self._metas()
    if not metas:
      raise BadInput(f"{self._shown} has saved nothing yet, so its classes are not known.")
    return protocols.of(self.config).classes(metas[max(metas)]["data"])

  def stages(self) -> list[int]:
    """The stages whose learner is saved, ascending."""
    return sorted(self._saved_stages())

  @environment.fixed()
  def predict(self, x: Any, stage: int | None = None, task: int | str | None = None) -> np.ndarray:
    """Class probabilities of the learner as it was after a stage.

    Args:
      x: raw inputs [N, ...], of the shape and dtype of the training images.
      stage: counts from 0; None: the last one saved.
      task: of a stream of tasks, the task that x belongs to: its name, or its number, from 1. A text that is a name is
        that name, even if it is a number.

    Returns:
      float32 [N, K].

    Raises:
      BadInput: no such stage is saved, there is no such task, or x does not look like the data.
    """
    shown, learner = self.shown(task, stage)
    state, data = shown.state, shown.meta
    if "num_classes" not in data:
      raise BadInput(f"{self._shown} is a language model, which predicts no classes; use `sample`.")
    problem, pool = to_predict(x, data, learner)
    return np.asarray(prediction.of_pool(learner, problem, state, pool)[1])

  def shown(self, task: int | str | None = None, stage: int | None = None) -> tuple[Shown, contract.Learner]:
    """(a predictor of this run, the learner that it is a state of).

    Args:
      task: see `predict`.
      stage: counts from 0; None: the last one saved.

    Raises:
      BadInput: no such stage is saved, there is no such task, or the run is on a stream of tasks and none is given; or
        modules of the task are lost.
    """
    opened, learner = self.open(stage)
    state = snapshot.restore(learner, opened, partly=True)
    return protocols.of(self.config).view(learner, state, task, opened.lost, self._shown), learner

  @environment.fixed()
  def routes(self, x: Any, stage: int | None = None) -> dict[str, np.ndarray]:
    """The weights of the experts for each image, {mixture: float32 [N, E]}; each row sums to 1.

    `moe` and `gmoe` have a mixture in each of several layers. `hmoe` has one, "experts", whose weights are 0 and 1.

    Args:
      x: raw images [N, ...], of the shape and dtype of the training images.
      stage: counts from 0; None: the last one saved.

    Raises:
      BadInput: the learner has no gates, or has a single expert, or no such stage is saved.
    """
    opened, learner = self.open(stage)
    weights_of = learner.router(snapshot.restore_learner(learner, opened))
    if weights_of is None:
      raise BadInput(f"{self._shown} has no experts to choose from; give a run of moe, gmoe or hmoe that has several.")
    return weights_of(to_predict(x, opened.meta["data"], learner)[1])

  @environment.fixed()
  def sample(self, prompt: str = "", *, num_tokens: int = 200, temperature: float = 0.8, top_k: int = 0, seed: int = 0,
             stage: int | None = None) -> str:
    """Continues a text with a language model.

    Args:
      prompt: the text to continue; empty: the beginning of a document.
      num_tokens: number of tokens at most. The continuation ends earlier where the document ends.
      temperature: divides the log-probabilities before a token is drawn; 0: always the likeliest token.
      top_k: only the k likeliest tokens are drawn; 0: all.
      seed: another one gives another text.
      stage: counts from 0; None: the last one saved.

    Returns:
      The prompt and its continuation.

    Raises:
      BadInput: the run is no language model, has not saved the stage, or an argument is out of range.
    """
    options: dict[str, Any] = dict(num_tokens=num_tokens, temperature=temperature, top_k=top_k, seed=seed)
    sampling.check(prompt, **options)
    opened, learner = self.open(stage)
    state, data = snapshot.restore_learner(learner, opened), opened.meta["data"]
    problem, end = settings.context_of(self.config, data).problem, data.get("end")
    if end is None:
      raise BadInput(f"{self._shown} is a run of image classification, which writes no text.")
    try:
      tokenizer = tokens.parse((self.path / "tokenizer.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
      raise BadInput(f"{self.path / 'tokenizer.json'} cannot be read ({error}); delete it, and the run's own command "
                     "writes it again.") from error
    start = [end, *tokens.encode_one(tokenizer, prompt)]
    written = sampling.continuation(learner, problem, state, start, end, **options)
    return prompt + tokenizer.decode(written)

  @environment.fixed()
  def describe(self, stage: int | None = None) -> str:
    """Text that describes what the learner had grown to after a stage (None: the last saved).

    Raises:
      BadInput: no such stage is saved.
    """
    opened, learner = self.open(stage)
    spec, host = snapshot.spec_and_host(opened)
    return learner.describe(contract.LearnerState(spec, None, host=host))

  @environment.fixed()
  def spec(self, stage: int | None = None) -> dict[str, Any]:
    """The static facts and the small state of the learner after a stage (None: the last saved), a dict.

    E.g. for `gmoe` the splits of every mixture layer (see `plots.gate_tree`), for `ff` the widths, for growing
    ensembles the number of frozen members.

    Raises:
      BadInput: no such stage is saved.
    """
    spec, host = snapshot.spec_and_host(self.open(stage)[0])
    return spec | host

  @environment.fixed()
  def open(self, stage: int | None = None) -> tuple[checkpoint.Opened, contract.Learner]:
    """The checkpoint of a stage (None: the last saved), and the learner that can read it.

    Raises:
      BadInput: no such stage is saved.
    """
    runtime.setup(self.config)
    saved = self._saved_stages()
    if not (self.path / "checkpoints").is_dir() and (self.summary is not None or self.metrics):
      raise BadInput(f"{self._shown} lacks its folder checkpoints, which holds the saved learners; restore it.")
    if not saved:
      raise BadInput(f"{self._shown} has saved no finished stage yet.")
    if stage is not None and stage not in saved:
      raise BadInput(f"{self._shown} has saved the stages {sorted(saved)}, not {stage}; "
                     "the last one is always kept, others as checkpoint.keep_every says.")
    opened = checkpoint.Checkpoints(self.path).open(saved[max(saved) if stage is None else stage])
    snapshot.check_config(self.path, self.config, opened.meta)
    stored, self._arrays = self._arrays, {}
    context = settings.context_of(self.config, opened.meta["data"])
    now = loaded.digests(context) if stored else {}
    for name in stored.keys() & now.keys():
      if stored[name] != now[name]:
        warnings.warn(f"the arrays that {name!r} loads have changed since the run in {self._shown} began, so its "
                      "predictions may differ; restore them", stacklevel=3)
    return opened, learners.make(context)

  def _metas(self) -> dict[int, checkpoint.Meta]:
    is_there = (self.path / checkpoint.CHECKPOINTS).is_dir()
    return checkpoint.Checkpoints(self.path).metas() if is_there else {}

  def _saved_stages(self) -> dict[int, int]:
    """{stage trained last: newest checkpoint that holds its learner}."""
    # Between two trainings of a stage the state belongs to no stage.
    return {meta["stage"] - 1: step for step, meta in self._metas().items() if meta["stage"] and meta["complete"]}


def plot(*runs: Run) -> "Figure":
  """Draws the curves of runs, finished or not, into one matplotlib Figure: `alma_jax.plot(run, other)`.

  Raises:
    BadInput: there is no run, nothing was measured yet, or the runs do not measure the same.
  """
  curves = [curve_of(run.config, protocols.of(run.config), run.measure, run.summary, run.lines) for run in runs]
  measured = {(curve.measure, curve.labels) for curve in curves if curve.lines}
  if len(measured) != 1:
    raise BadInput("plot needs runs that have seen a mega-batch and that measure the same; give, for example, two runs "
                   "on images with a test set.")
  return plots.draw(*curves)


def curve_of(config: schema.RunConfig, protocol: Any, measure: Measure, summary: Entry | None, lines: Sequence[Entry]
             ) -> plots.Curve:
  """A run as a picture shows it; `protocol` is that of its config, or its class."""
  name, result = config.dataset.name.rstrip("/").rsplit("/", 1)[-1].split(":", 1)[-1], ""
  if summary is not None:
    told = protocol.told(config, summary, lines)
    result = f"{told.name} {told.value}"
  return plots.Curve(f"{name} · {config.label}", result, lines, measure, (summary or {}).get("chance"),
                     protocol.labels, config.label)


def load_run(workdir: str | os.PathLike[str]) -> Run:
  """Opens a run folder for reading; one at an address, as s3://bucket/runs/x, is fetched first.

  Raises:
    BadInput: there is none, or it cannot be fetched.
  """
  return Run(workdir)


def load_root(config: schema.RunConfig) -> contract.Root | None:
  """The pretrained network that `learner.root` names (docs/task-streams.md): a run's network after its last stage.

  Of a run on a stream of tasks it is the network of the last task.

  Raises:
    BadInput: there is no such run, it is not finished, or it has several networks.
  """
  path = config.learner.root
  if not path:
    return None
  try:
    run = load_run(path)
    if run.summary is None:
      raise BadInput("the run is not finished; its own command goes on with it.")
    opened, learner = run.open()
    state = snapshot.restore_learner(learner, opened)
    variables = learner.only_network(state)
    if variables is None:
      raise BadInput("the run has several networks; give a run of the learner sm, or a run on a stream of tasks.")
  except BadInput as error:
    raise BadInput(f"learner.root={path!r} cannot be used: {error}") from error
  return contract.Root(path, variables, cache.hash_arrays(dict(checkpoint.flatten(variables))))


def _columns(lines: list[Entry]) -> dict[str, np.ndarray]:
  if not lines:
    return {}
  value = lambda entry, key: np.nan if entry.get(key) is None else entry[key]
  single = [key for key in lines[0] | lines[-1] if not any(isinstance(line.get(key), (list, dict)) for line in lines)]
  return {key: np.array([value(entry, key) for entry in lines]) for key in single}


def to_predict(x: Any, meta: Entry, learner: contract.Learner) -> tuple[classification.Classification, Any]:
  """(the problem, a pool of the learner) to predict the classes of inputs.

  Args:
    x: raw inputs [N, ...], of the shape and dtype of the training images.
    meta: of the State of the run.
    learner: of the run.

  Raises:
    BadInput: x does not look like the training examples.
  """
  like = form.Form(tuple(meta["example_shape"]), np.dtype(meta["dtype"]), owner="the training examples have")
  try:
    x = like.fit(np.asarray(x))
  except BadInput as error:
    raise BadInput(f"x cannot be predicted: {error}") from error
  mean, std = (np.asarray(meta[key], np.float32) for key in ("mean", "std"))
  pool = classification.make_pool(x, np.zeros(len(x)), mean, std, learner.mesh)
  return classification.Classification(meta["num_classes"], augment=False), pool
