"""No code outside alma_jax/protocols asks what kind of run, data, learner or problem it holds: it calls a method.

ALLOWED lists the tests for kinds that are left, each with its reason. A new one fails here, and so does an entry that
stands for nothing any more.
"""
import ast
import importlib
import inspect
import pkgutil

from test_layout import FILES

from alma_jax.config import registry
from alma_jax.config.fields import Section
from alma_jax.learners import contract, tuned
from alma_jax.problems import classification, language_modeling, live, sequence
from alma_jax.protocols.contract import Protocol

BASES = (Section, contract.Learner, tuned.Tuned, classification.Classification, language_modeling.LanguageModeling,
         classification.Images, language_modeling.Texts, sequence.Tasks, live.LiveSource, Protocol)
FLAGS = ("is_language", "is_live", "has_test", "waits")
PROBLEMS = {name for value in (registry.IMAGES, registry.TEXT, registry.TASKS) for name in (value.upper(), repr(value))}
NAMED = ("model.name", "learner.name", "dataset.name", "train.optimizer.name", "stream.schedule.name")

ALLOWED = {
    ("config.layout", "schema.RunConfig"): "a parsed config, or a tree that is still to be parsed",
    ("config.registry", "registries"): "a user's class, which may inherit from anything",
    ("config.schema", "table"): "the classes of configs",
    ("config.presets", "table"): "the recipes",
    ("runs.experiment", "waits"): "the check of processes",
    ("models.path", "parts"): "of a user's Flax module, which may lack it",
    ("data.sets.texts", "'text'"): "a column of a TFDS data set",
}


def attributes():
  """The names of what kinds have, and objects of other classes may lack."""
  todo, names = [*BASES], set()
  while todo:
    cls = todo.pop()
    todo += cls.__subclasses__()
    names |= {name for name in dir(cls) if not name.startswith("__")}
  return names


def resolved(module, node):
  """What an expression such as `schema.RunConfig` stands for in a module; None: it is known only when it runs."""
  try:
    return pkgutil.resolve_name(f"{module}:{ast.unparse(node)}")
  except (AttributeError, ValueError):
    return None


def is_kind(module, node):
  return inspect.isclass(cls := resolved(module, node)) and bool({*BASES} & {*cls.__mro__})


def is_problem(node):
  return node is not None and ast.unparse(node).rpartition(".")[2] in PROBLEMS


def asked(module, path, names):
  """The tests for kinds in a module, each as a word."""
  for node in ast.walk(ast.parse(path.read_text())):
    tested = []
    match node:
      case ast.Attribute(attr=name, ctx=ast.Load()) if name in FLAGS and resolved(module, node) is None:
        yield name
      case ast.Call(func=ast.Name("isinstance" | "issubclass"), args=[_, classes]) | ast.MatchClass(cls=classes):
        tested = [*ast.walk(classes)]
      case ast.Call(func=ast.Name("getattr" | "hasattr"), args=[_, ast.Constant(name), *_]) if name in names:
        yield name
      case ast.Compare() | ast.MatchValue():
        tested = [each for operand in ast.iter_child_nodes(node) for each in getattr(operand, "elts", [operand])]
      case ast.Dict(keys=keys) if sum(map(is_problem, keys)) > 1:
        yield "table"
    yield from (ast.unparse(each) for each in tested if isinstance(each, ast.expr) and (
        is_kind(module, each) or is_problem(each) or ast.unparse(each).endswith(NAMED)))


def test_no_code_asks_for_the_kind_of_a_run():
  for module in FILES:
    importlib.import_module(module)
  names = attributes()
  found = {(module.removeprefix("alma_jax."), kind) for module, path in FILES.items()
           if not module.startswith("alma_jax.protocols") for kind in asked(module, path, names)}
  assert found - ALLOWED.keys() == set(), "call a method of what you hold instead"
  assert ALLOWED.keys() - found == set(), "take these entries out"
