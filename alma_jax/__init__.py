"""On Anytime Learning at Macroscale in JAX.

    import alma_jax
    config = alma_jax.base_config("ens")      # the digits run
    config.stream.waiting_time = 5
    run = alma_jax.run(config, "runs/mine")   # or resume it
    run.summary["cer"], run.metrics["error"], run.predict(images)
"""
from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from alma_jax.version import __version__

if TYPE_CHECKING:  # type checkers cannot see what __getattr__ imports
  from alma_jax.config import base as base_config  # noqa: F401
  from alma_jax.config import language as language_config  # noqa: F401
  from alma_jax.config import load_config as load_config
  from alma_jax.config import tasks as task_config  # noqa: F401
  from alma_jax.config.fields import field as field
  from alma_jax.config.registry import register as register
  from alma_jax.config.sections import DataSet as DataSet
  from alma_jax.config.sections import Metric as Metric
  from alma_jax.config.sections import Optimizer as Optimizer
  from alma_jax.config.sections import Options as Options
  from alma_jax.config.task_sections import TaskOptions as TaskOptions
  from alma_jax.data.drifting import Drift as Drift
  from alma_jax.errors import BadInput as BadInput
  from alma_jax.errors import Diverged as Diverged
  from alma_jax.errors import Stopped as Stopped
  from alma_jax.errors import Unsaved as Unsaved
  from alma_jax.learners.contract import Context as Context
  from alma_jax.learners.contract import GrowthReport as GrowthReport
  from alma_jax.learners.paths import Paths as Paths
  from alma_jax.learners.paths import Proposal as Proposal
  from alma_jax.learners.stacked import Stacked as Stacked
  from alma_jax.models.network import ImageModel as Model  # noqa: F401
  from alma_jax.protocols.contract import Protocol as Protocol
  from alma_jax.runs.mixture import Mixture as load_mixture  # noqa: F401
  from alma_jax.runs.stream import Stream as Stream

# Where each name comes from: "MODULE", or "MODULE:NAME THERE".
_EXPORTS = {
    "run": "runs.experiment", "load_run": "runs.results", "Run": "runs.results", "plot": "runs.results",
    "load_mixture": "runs.mixture:Mixture", "Stream": "runs.stream", "base_config": "config:base",
    "language_config": "config:language", "task_config": "config:tasks", "load_config": "config",
    "field": "config.fields", "register": "config.registry",
    "Options": "config.sections", "TaskOptions": "config.task_sections",
    "Protocol": "protocols.contract",
    "Model": "models.network:ImageModel", "DataSet": "config.sections", "Metric": "config.sections",
    "Optimizer": "config.sections", "Drift": "data.drifting",
    "Stacked": "learners.stacked", "Paths": "learners.paths", "Proposal": "learners.paths",
    "GrowthReport": "learners.contract", "Context": "learners.contract",
    "BadInput": "errors", "Diverged": "errors", "Stopped": "errors", "Unsaved": "errors",
}
__all__ = ["__version__", *_EXPORTS]


def __getattr__(name: str) -> Any:  # imports jax only when something is used
  if name not in _EXPORTS:
    raise AttributeError(f"module 'alma_jax' has no attribute {name!r}")
  module, _, attribute = _EXPORTS[name].partition(":")
  return getattr(importlib.import_module(f"alma_jax.{module}"), attribute or name)


def __dir__() -> list[str]:
  return [*globals(), *_EXPORTS]
