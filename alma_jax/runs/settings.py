"""What a run is made of: its config, its protocol, and its learner, which never sees the test set."""
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
from jax.sharding import Mesh

from alma_jax import learners, protocols
from alma_jax.config import schema
from alma_jax.data import datasets
from alma_jax.learners import contract
from alma_jax.parallel import environment
from alma_jax.protocols.contract import Facts, Protocol
from alma_jax.runs import budget, loaded
from alma_jax.store import run_files
from alma_jax.store.metrics import Entry
from alma_jax.store.run_folder import Identity


class Setting(NamedTuple):
  """Everything that a run is made of; all of it is checked before any computation.

  Attributes:
    config: RunConfig, with what its budget decides.
    protocol: how the data arrive.
    facts: what the learner was made from.
    learner: before the first stage.
    root: the pretrained network that `learner.root` names.
    arrays: what loaded.digests returned.
    decided: the fields that the budget decides.
  """
  config: schema.RunConfig
  protocol: Protocol
  facts: Facts
  learner: contract.Learner
  root: contract.Root | None = None
  arrays: Mapping[str, str] = {}
  decided: Mapping[str, int] = {}

  @property
  def identity(self) -> Identity:
    """What makes this run the run in a folder."""
    of_root = {} if self.root is None else {"root_sha256": self.root.sha256}
    of_arrays = {"arrays": dict(self.arrays)} if self.arrays else {}
    decided = {"decided": dict(self.decided)} if self.decided else {}
    digests = {"data_fingerprint": self.protocol.fingerprint} | of_root | of_arrays | decided
    return Identity(self.given, digests, environment.made_with(describe_devices(self.learner.mesh)),
                    self.protocol.named_data)

  @property
  def given(self) -> schema.RunConfig:
    """The config as the user wrote it."""
    return budget.applied(self.config, dict.fromkeys(self.decided, 0))

  def fitted(self, facts: Facts) -> "Setting":
    """The setting with a learner for other facts."""
    return self._replace(facts=facts, learner=learners.make(contract.Context(self.config, *facts, root=self.root)))


def prepare(config: schema.RunConfig, data: Sequence[Any] | datasets.Dataset | None = None,
            run: pathlib.Path | None = None, root: contract.Root | None = None) -> Setting:
  """Loads the data, and builds the learner. Of a live stream it waits for the first mega-batch.

  Args:
    config: RunConfig.
    data: (x_train, y_train, x_test, y_test), or a Dataset, in place of `dataset.name`.
    run: folder of a run that goes on: what its budget has decided, and which mega-batches of a live stream were used.
    root: the network of `learner.root`.

  Raises:
    BadInput: they do not fit together.
  """
  protocol = protocols.of(config)(config, data, run)
  facts = protocol.facts(())
  stored = run_files.find_config(run) if run else None
  decided = budget.decided(config, facts, protocol.sizes(), stored.get("decided", {}) if stored else None)
  protocol.config = config = budget.applied(config, decided)
  learner = learners.make(contract.Context(config, *facts, root=root))
  arrays = loaded.digests(contract.Context(config, facts.problem, facts.example_shape, 1))  # as in context_of
  return Setting(config, protocol, facts, learner, root, arrays, decided)


def context_of(config: schema.RunConfig, meta: Entry) -> contract.Context:
  """What a learner that only predicts is built from, for the data that `meta` of a checkpoint describes."""
  return contract.Context(config, *protocols.of(config).of_meta(config, meta))


def describe_devices(mesh: Mesh) -> str:
  """E.g. "8 x NVIDIA H100" or "cpu"."""
  kind = mesh.devices.flat[0].device_kind
  processes = f" in {jax.process_count()} processes" if jax.process_count() > 1 else ""
  return (f"{mesh.size} x {kind}" if mesh.size > 1 else kind) + processes


def of_stages(setting: Setting) -> str:
  """As in " of 50", if their number is known."""
  sizes = setting.protocol.sizes()
  return f" of {len(sizes.train)}" if sizes.exact else ""


def round_name(problem: Any) -> str:
  """The name of the parts of a stage that end with a validation."""
  return "epoch" if problem.in_epochs else "round"
