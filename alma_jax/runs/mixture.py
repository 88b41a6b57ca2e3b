"""Flat hard mixtures whose experts are trained apart: what is published, the configs of the experts, and predictions.

A coordinator publishes a gate (learners/gate.py), once. Every expert is a run of the learner `expert` in a folder of
its own, and reads nothing but the gate and the data. The manifest lists the experts.
"""
import dataclasses
import functools
import os
import pathlib
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from alma_jax import messages
from alma_jax.config import schema, sections
from alma_jax.errors import BadInput, Stopped
from alma_jax.growth import cluster
from alma_jax.learners import expert, expert_stacks, gate, hmoe, sm
from alma_jax.parallel import environment, sharding
from alma_jax.runs import experiment, results, settings, snapshot
from alma_jax.store import metrics, run_files
from alma_jax.store.record import Record
from alma_jax.store.run_folder import RunFolder

MANIFEST = "manifest.json"


def check(config: schema.RunConfig) -> tuple[schema.RunConfig, hmoe.Options]:
  """(the config, the options of its learner).

  Raises:
    BadInput: it is no config of `hmoe`, or its experts need each other or clusters that change.
  """
  options: Any = config.learner
  if not (options.trains_apart and config.dataset.is_complete):
    raise BadInput(f"learner.name={options.name!r} on dataset.name={config.dataset.name!r} has no experts that can be "
                   "trained apart; use hmoe, as in --config=configs/mnist.py:hmoe, on data that are complete.")
  if config.train.budget:
    raise BadInput(f"train.budget={config.train.budget:g} does not work for experts that are trained apart; set it to "
                   "0, and set model.width, train.steps and train.batch_size.")
  for name, least in (("em_rounds", 1), ("split_every", 0), ("add_beyond", 0)):
    if getattr(options, name) > least:
      raise BadInput(f"learner.{name}={getattr(options, name)} changes the clusters later, but experts that are "
                     f"trained apart keep theirs; leave it {least}.")
  return config, options


def base_config(config: schema.RunConfig) -> schema.RunConfig:
  """The config of the base network's run, from that of an `hmoe`."""
  whole, options = check(config)
  return dataclasses.replace(whole, learner=sm.Options(**_common(options)),
                             model=dataclasses.replace(whole.model, num_experts=1))


def expert_config(config: schema.RunConfig, file: pathlib.Path, number: int) -> schema.RunConfig:
  """The config of one expert's run, from that of an `hmoe`; `file` is that of the gate."""
  whole, options = check(config)
  widths = options.expert_widths or (whole.model.width,)
  learner = expert.Options(
      **_common(options), gate=str(file), cluster=number, init=options.init,
      init_from_scratch=options.init_from_scratch)
  model = dataclasses.replace(whole.model, num_experts=1, width=widths[number % len(widths)])
  return dataclasses.replace(whole, learner=learner, model=model)


@environment.fixed()
def publish(config: schema.RunConfig, workdir: str | os.PathLike[str], num_clusters: int,
            should_stop: Callable[[], bool] | None = None) -> None:
  """Trains a base network on the first stage of its stream, or goes on with that, and publishes the gate.

  Args:
    config: of `base_config`.
    workdir: run folder; the gate is its file run_files.GATE.
    num_clusters: number of clusters of the features. There are fewer if there are fewer different examples.
    should_stop: see experiment.run.

  Raises:
    BadInput, Diverged, Unsaved, Stopped: see experiment.run.
  """
  path, setting = run_files.local(workdir), settings.prepare(config)
  learner: Any = setting.learner
  network, shape = learner.network({}), (1, *setting.facts.example_shape)
  expert_stacks.check_features(network, shape, config.model.name)
  if not _is_saved(path):
    try:
      experiment.run(config, path, should_stop=lambda: bool(_ends(path) or (should_stop and should_stop())))
    except Stopped:
      if not _is_saved(path):
        raise
  opened, _ = results.load_run(path).open(0)
  ends = _ends(path)[:1]
  base, data = snapshot.restore_learner(learner, opened).predicting, setting.protocol.stage(ends, learner, {}).data
  features = expert_stacks.features(network, setting.facts.problem, learner.mesh, base, data.pool, data.train)
  clusters = cluster.kmeans(features, num_clusters, cluster.rng_of(data, 0))
  line = run_files.read_lines(path / run_files.METRICS)[ends[0] - 1]
  looked = expert_stacks.feature_macs(network, shape) * len(data.train)
  published = gate.Gate(config.model.width, sharding.fetch(base), clusters.prototypes, clusters.counts,
                        line["fwd_macs"] + looked)
  with RunFolder(path) as folder:
    folder.write({run_files.GATE: gate.packed(published)})
  messages.say(f"published {path / run_files.GATE} with {len(clusters.counts)} clusters")


@environment.fixed()
def write_manifest(root: pathlib.Path, file: pathlib.Path, experts: Mapping[int, pathlib.Path],
                   config: schema.RunConfig) -> "Mixture":
  """Writes manifest.json, and returns the mixture.

  Args:
    root: folder of the manifest, which holds all that it lists.
    file: of the gate.
    experts: {number: run folder} of all experts, those that are not trained yet included.
    config: of the `hmoe`; its test set is predicted if all experts are trained.
  """
  published, digest = gate.read(file)
  listed = []
  for number, folder in experts.items():
    entry: dict[str, Any] = dict(cluster=number, folder=str(folder.relative_to(root)), trained=False)
    if Record(folder).is_finished:
      run = results.load_run(folder)
      if _gate_of(run) != digest:
        raise BadInput(f"the expert in {folder} was trained with another gate than {file}; delete the folder, and run "
                       "`alma apart` again.")
      entry |= dict(trained=True, width=run.config.model.width, num_params=int(run.metrics["num_params"][-1]),
                    sha256=_digest(run), fwd_macs=run.summary["cumulative_fwd_macs"] if run.summary else 0)
    listed.append(entry)
  tree = dict(gate=dict(file=str(file.relative_to(root)), sha256=digest, bytes=file.stat().st_size,
                        width=published.width, fwd_macs=published.macs), experts=listed)
  run_files.write_json(root / MANIFEST, tree)
  mixture = Mixture(root)
  if all(entry["trained"] for entry in listed):
    protocol: Any = settings.prepare(base_config(config)).protocol
    source = protocol.source
    wrong = mixture.predict(source.dataset.x_test).argmax(-1) != source.dataset.y_test
    run_files.write_json(root / MANIFEST, tree | dict(test_error=float(wrong.mean())))
  return Mixture(root)


class Mixture:
  """A flat hard mixture whose experts were trained apart.

  Attributes:
    path: the folder of the manifest.
    manifest: what manifest.json holds.
  """

  def __init__(self, path: str | os.PathLike[str]):
    """Opens the mixture that the manifest in a folder lists; experts are loaded when they are needed.

    Raises:
      BadInput: there is no manifest, or the gate is not the one that it lists.
    """
    self.path = run_files.local(path)
    self.manifest = run_files.read_json(self.path / MANIFEST)
    if not isinstance(self.manifest, dict):
      raise BadInput(f"there is no {MANIFEST} in {self.path}; `alma apart` writes it.")
    self._file = self.path / self.manifest["gate"]["file"]
    self._gate, digest = gate.read(self._file)
    if digest != self.manifest["gate"]["sha256"]:
      raise BadInput(f"{self._file} is not the gate that {self.path / MANIFEST} lists; restore it, or run `alma apart` "
                     "again.")
    self.loaded = functools.cache(self._load)

  @environment.fixed()
  def predict(self, x: Any) -> np.ndarray:
    """Class probabilities float32 [N, K] of raw inputs [N, ...], of the shape and dtype of the training images.

    Only the experts of the examples' clusters are loaded.

    Raises:
      BadInput: x does not look like the data, or an expert that is needed is not trained or was changed.
    """
    opened, learner = results.load_run(self._file.parent).open(0)
    data: Any = opened.meta["data"]
    stacked: Any = learner
    problem, pool = results.to_predict(x, data, learner)
    base = sharding.put(self._gate.base, learner.mesh)
    features = expert_stacks.features(stacked.network({}), problem, learner.mesh, base, pool,
                                      np.arange(len(x), dtype=np.int32))
    nearest, _ = cluster.nearest(features, self._gate.prototypes)
    answers = np.zeros((len(x), data["num_classes"]), np.float32)
    for number in np.unique(nearest).tolist():
      mine = nearest == number
      answers[mine] = self.loaded(number).predict(x[mine])
    return answers

  def _load(self, number: int) -> results.Run:
    entry = self.manifest["experts"][number]
    if not entry["trained"]:
      raise BadInput(f"the expert of cluster {number} in {self.path / entry['folder']} is not trained yet; run "
                     "`alma apart` again.")
    run = results.load_run(self.path / entry["folder"])
    if _digest(run) != entry["sha256"]:
      raise BadInput(f"the expert in {run.path} is not the one that {self.path / MANIFEST} lists; run `alma apart` "
                     "again.")
    return run


def _common(options: sections.Options) -> dict[str, Any]:
  """The options that all learners have."""
  return {f.name: getattr(options, f.name) for f in dataclasses.fields(sections.Options) if f.name != "name"}


def _is_saved(path: pathlib.Path) -> bool:
  """Whether a run folder holds the learner after its first stage."""
  return (path / run_files.CONFIG).exists() and 0 in results.load_run(path).stages()


def _ends(path: pathlib.Path) -> tuple[int, ...]:
  """The mega-batches after which the run in a folder has trained, counted from 1."""
  lines = path / run_files.METRICS
  return tuple(metrics.ends(run_files.read_lines(lines))) if lines.exists() else ()


def _gate_of(run: results.Run) -> str:
  """SHA-256 of the gate that the expert of a finished run was trained with."""
  opened, learner = run.open()
  return str(snapshot.restore_learner(learner, opened).host["gate"])


def _digest(run: results.Run) -> str:
  """SHA-256 of the weights of a finished run, from the sums that its checkpoint was verified by."""
  opened, _ = run.open()
  sums = {name: each for name, each in opened.meta["sha256"].items() if name.startswith(("live.", "average."))}
  return run_files.digest_of(sums)
