"""No code outside alma_jax/protocols asks what kind of run, data, learner or problem it holds: it calls a method.

ALLOWED lists the tests for kinds that are left, each with its reason. A new one fails here, and so does an entry that
stands for nothing any more.
"""
import ast
import importlib
import inspect

from test_layout import FILES

from alma_jax.config import image_sections, schema, sections, task_sections, text_sections
from alma_jax.learners import stacked, task_learner, tuned
from alma_jax.problems import classification, language_modeling, live, sequence
from alma_jax.protocols.contract import Protocol

KINDS = (schema.RunConfig, sections.DataSet, sections.AnyOptions, sections.AnyStream, sections.Schedule, sections.Log,
         image_sections.Train, text_sections.Train, task_sections.Train, classification.Classification,
         language_modeling.LanguageModeling, classification.Images, language_modeling.Texts, sequence.Tasks,
         live.LiveSource, stacked.Stacked, task_learner.TaskLearner, tuned.Tuned, Protocol)
FLAGS = ("is_language", "is_live", "has_test")

ALLOWED = {
    ("config.layout", "schema.RunConfig"): "a parsed config, or a tree that is still to be parsed",
    ("problems.classification", "has_test"): "a source says whether it has a test set",
    ("problems.language_modeling", "has_test"): "likewise",
    ("problems.live", "has_test"): "likewise",
    ("training.optimizers", "text_sections.Train"): "the schedule of a text's learning rate is inside its optimiser",
    ("runs.routes", "hmoe.HMoE"): "pictures of routes, which these learners alone have",
    ("runs.routes", "gmoe.MoE"): "likewise",
}


def asked(module, path):
  """The tests for kinds in a module, as (its name, the kind)."""
  for node in ast.walk(ast.parse(path.read_text())):
    if isinstance(node, ast.Attribute) and node.attr in FLAGS:
      yield node.attr
    elif isinstance(node, ast.Call) and ast.unparse(node.func) in ("isinstance", "issubclass"):
      try:
        found = eval(ast.unparse(node.args[1]), vars(importlib.import_module(module)))
      except NameError:  # a variable of a function, as in `isinstance(value, kind)` of a field
        continue
      classes = [each for each in (found if isinstance(found, tuple) else (found,)) if inspect.isclass(each)]
      if any(issubclass(each, KINDS) for each in classes):
        yield ast.unparse(node.args[1])


def test_no_code_asks_for_the_kind_of_a_run():
  found = {(module.removeprefix("alma_jax."), kind) for module, path in FILES.items()
           if not module.startswith("alma_jax.protocols") for kind in asked(module, path)}
  assert found - ALLOWED.keys() == set(), "call a method of what you hold instead"
  assert ALLOWED.keys() - found == set(), "take these entries out"
