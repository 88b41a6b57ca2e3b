"""Configs: their fields, templates, checks, and the identity of a run.

A config is a ConfigDict until `parse` turns it into a frozen `RunConfig`; no other module sees a ConfigDict.

    base, tasks, language    configs to start from
    load_file          runs a config file, such as those under configs/; find, packaged: the package's own
    run_file           runs any Python file of the user's
    overridden         applies fields from the command line; read_value and check_field treat one field
    parse              checks everything that needs no data
    identity           the fields that decide the results; digest, default_workdir, differences, compared
    completed          a stored config with the fields of later versions
    to_dict, flatten, set_field   nested and flat dicts of a config

Every field is declared once, in sections.py, text_sections.py, task_sections.py, schema.py, learner_options.py or
task_options.py (see fields.py); document.py lists them for `--help` and docs/fields.md. This package imports neither
jax nor numpy, so that `--help` is instant.
"""
from alma_jax.config.checks import parse
from alma_jax.config.files import find, load_file, packaged, run_file
from alma_jax.config.identity import (
    INCIDENTAL,
    STORED,
    compared,
    completed,
    default_workdir,
    differences,
    digest,
    identity,
)
from alma_jax.config.learner_options import LEARNERS, TEXT_LEARNERS
from alma_jax.config.overrides import check_field, overridden, read_value
from alma_jax.config.presets import RECIPES, TEXT_RECIPES, Recipe, base, language, tasks
from alma_jax.config.task_options import TASK_LEARNERS
from alma_jax.config.trees import flatten, set_field, to_dict

__all__ = [
    "INCIDENTAL", "LEARNERS", "RECIPES", "STORED", "TASK_LEARNERS", "TEXT_LEARNERS", "TEXT_RECIPES", "Recipe", "base",
    "check_field", "compared", "completed", "default_workdir", "differences", "digest", "find", "flatten", "identity",
    "language", "load_file", "overridden", "packaged", "parse", "read_value", "run_file",
    "set_field", "tasks", "to_dict"]
