"""On Anytime Learning at Macroscale in JAX.

    import alma_jax
    config = alma_jax.base_config("ens")      # the digits run
    config.stream.waiting_time = 5
    run = alma_jax.run(config, "runs/mine")   # or resume it
    run.summary["cer"], run.metrics["error"], run.predict(images)
"""
import importlib

from alma_jax.version import __version__

_EXPORTS = {
    "run": "experiment", "load_run": "results", "Run": "results", "base_config": "config:base",
    "language_config": "config:language",
    "register_learner": "plugins", "register_model": "plugins",
    "BadInput": "errors", "Diverged": "errors", "Stopped": "errors",
}
__all__ = ["__version__", *_EXPORTS]


def __getattr__(name):  # imports jax only when something is used
  if name not in _EXPORTS:
    raise AttributeError(f"module 'alma_jax' has no attribute {name!r}")
  module, _, attribute = _EXPORTS[name].partition(":")
  return getattr(importlib.import_module(f"alma_jax.{module}"), attribute or name)


def __dir__():
  return [*globals(), *_EXPORTS]
