"""The command `alma`.

  alma run --config=mnist:ens    runs a learner on a stream (python -m alma_jax.main)
  alma sweep --config=FILE       runs many configs (python -m alma_jax.sweep)
  alma apart --config=CONFIG:hmoe --workdir DIR
                                 trains experts in processes of their own (python -m alma_jax.apart)
  alma report RUNS --out DIR     tables, figures and findings of runs (python -m alma_jax.report)
  alma sample --workdir DIR      writes text with a language model (python -m alma_jax.sample)
  alma export --workdir DIR      a predictor that does not need this package (python -m alma_jax.export)
  alma predict --workdir DIR X   class probabilities of images, or scores of texts (python -m alma_jax.predict)
  alma evaluate --workdir DIR    scores a run on new labelled data (python -m alma_jax.evaluate)
  alma serve --workdir DIR       predictions over HTTP (python -m alma_jax.serve)
  alma status RUNS               a line about each run (python -m alma_jax.status)
  alma compare RUN RUN           what differs between two runs (python -m alma_jax.compare)
  alma board RUNS                a live page of runs (python -m alma_jax.board)
  alma list                      the learners, configs, models and data sets
  alma --version

`alma COMMAND --help` lists the arguments of a command.
"""
import ast
import importlib
import sys
from collections.abc import Iterator, Mapping, Sequence

from alma_jax import commands
from alma_jax import config as configs
from alma_jax.config import schema
from alma_jax.errors import BadInput
from alma_jax.version import __version__

_MODULES = {"run": "main", **{name: name for name in (
    "sweep", "apart", "report", "sample", "export", "predict", "evaluate", "serve", "status", "compare", "board")}}
_STREAMS = {  # those of data/task_streams.py, which imports numpy
    "digits": "8 small tasks of scikit-learn's digits, 8x8 pixels; bundled",
    "s_minus": "CTrL-like: can it use what it learned first?",
    "s_plus": "CTrL-like: can it improve on a task that it saw with few examples?",
    "s_in": "CTrL-like: the last task has the first one's classes on another colour",
    "s_out": "CTrL-like: the last task has the first one's images with other labels",
    "s_pl": "CTrL-like: unrelated tasks, a large one last",
    "s_long": "CTrL-like: 100 tasks of 5 classes, later ones small",
    "nevis_mini": "24 tasks of 5 families with 50 to 50,000 training images; two tasks return",
    "tasks:PATH.py": "a list of your own",
}
_DATA_SETS = {
    "digits": "scikit-learn's digits, 8x8 pixels; bundled",
    "mnist": "TFDS",
    "cifar10": "TFDS",
    "tfds:NAME": "any TFDS data set for image classification, or of texts",
    "npz:PATH": "your own arrays x_train y_train x_test y_test",
    "folder:DIR": "your own images in folders by class",
    "text:DIR": "your own texts, .txt files",
}


def main(argv: Sequence[str] | None = None) -> int:
  """Runs the command line; returns the exit code. `argv` are its arguments; None: those of the process."""
  args = list(sys.argv[1:] if argv is None else argv)
  if args and args[0] in _MODULES:
    with commands.called_as(f"alma {args[0]}"):
      code: int = importlib.import_module(f"alma_jax.{_MODULES[args[0]]}").main(args[1:])
    return code
  return commands.exit_code(lambda: _main(args))


def _main(args: Sequence[str]) -> None:
  if args in (["-h"], ["--help"], []):
    commands.show((__doc__ or "").strip())
  elif args == ["--version"]:
    commands.show(f"alma_jax {__version__}")
  elif args in (["list"], ["list", "--help"], ["list", "-h"]):
    commands.show("\n".join(_listing()))
  else:
    raise BadInput(f"there is no command {' '.join(args)!r}; the commands are {', '.join(_MODULES)}, list and "
                   "--version.")


def _listing() -> Iterator[str]:
  """The lines of `alma list`."""
  config = {name: (ast.get_docstring(ast.parse(file.read_text())) or "").split("\n")[0]
            for name, file in configs.packaged().items()}
  groups = {
      "Learners for images (--config=CONFIG:LEARNER)": _learners(configs.LEARNERS, configs.RECIPES),
      "Learners for text (--config=lm:LEARNER)": _learners(configs.TEXT_LEARNERS, configs.TEXT_RECIPES),
      "Learners for streams of tasks (--config=tasks:LEARNER,STREAM)": _learners(configs.TASK_LEARNERS, {}),
      "Streams of tasks": _STREAMS,
      "Configs": {name: text for name, text in config.items() if "/" not in name},
      "Sweeps (alma sweep --config=NAME)": {name: text for name, text in config.items() if "/" in name},
      "Models (--config.model.name)": {
          "mlp": "a perceptron with two hidden layers", "vgg": "VGG19 of constant width, with batch normalisation",
          "resnet": "ResNet18 of constant width",
          schema.Switch.name: "the Switch Transformer, for text"},
      "Data sets (--config.dataset.name)": _DATA_SETS,
  }
  for number, (title, entries) in enumerate(groups.items()):
    yield f"{chr(10) if number else ''}{title}"
    for name, text in entries.items():
      yield f"  {name:<14} {text}"


def _learners(classes: Mapping[str, type], recipes: Mapping[str, configs.Recipe]) -> dict[str, str]:
  """{name: one line} of learners, and of recipes with their learners."""
  lines = {name: (cls.__doc__ or "").split("\n")[0] for name, cls in classes.items()}
  lines |= {name: f"{recipe.meaning} ({recipe.learner})" for name, recipe in recipes.items()}
  if recipes is configs.RECIPES:
    lines["NAME,authors"] = "The learner NAME (no recipe), whose stages stop early if they do so in the authors' code."
  return lines


if __name__ == "__main__":
  sys.exit(main())
