"""Configs: their fields, templates, checks, and the identity of a run.

A config is a ConfigDict until `parse` turns it into a frozen `RunConfig`; no other module sees a ConfigDict.

    base, tasks, language      configs to start from
    load_config, load_file     run a config file; `find` and `packaged` know the package's own, under configs/
    run_file                   calls a function of any Python file
    overridden, changed        apply changes from the command line, and from a sweep
    parse                      checks everything that needs no data
    identity                   the fields that decide the results; see also digest, differences and compared
    default_workdir            the run folder of a config
    to_dict, flatten, nested   nested and flat dicts of a config
    register                   adds a learner, a network, a data set, an optimiser or a metric

Every field is declared once (see fields.py): those of all runs in sections.py, those of each problem in
image_sections.py, text_sections.py and task_sections.py, and those of a learner, a network, a data set or an optimiser
beside its code. This package imports neither jax nor numpy until a config names something.
"""
from alma_jax.config.code import find, load_config, load_file, packaged, run_file
from alma_jax.config.identity import (
    INCIDENTAL,
    INCIDENTAL_LIVE,
    STORED,
    changed_since,
    compared,
    default_workdir,
    differences,
    digest,
    identity,
)
from alma_jax.config.layout import FIXED, changed, fields_of, flatten, nested, overridden, parse, to_dict
from alma_jax.config.presets import RECIPES, Recipe, base, language, tasks
from alma_jax.config.registry import register

__all__ = [
    "FIXED", "INCIDENTAL", "INCIDENTAL_LIVE", "RECIPES", "STORED", "Recipe", "base", "changed", "changed_since",
    "compared", "default_workdir", "differences", "digest", "fields_of", "find", "flatten", "identity", "language",
    "load_config", "load_file", "nested", "overridden", "packaged", "parse", "register", "run_file", "tasks", "to_dict"]
