"""Anytime learning: train and test on data that arrive in mega-batches.

Run
  alma demo                      compare three learners on your machine, in a page
  alma run --config=digits:anytime
                                 run a learner on a stream, or resume the run
  alma sweep --config=FILE       run many configs
  alma apart --config=CONFIG:hmoe --workdir DIR
                                 train experts in separate processes
  alma stream DIR --config=CONFIG
                                 write mega-batches as a live stream

Look
  alma status [RUNS]             show how runs are doing, in a table
  alma compare RUN RUN           show how two runs differ
  alma board RUNS                open a live page of runs
  alma report RUNS --out DIR     write tables, figures and findings

Use
  alma predict --workdir DIR X   print class probabilities or scores of texts
  alma evaluate --workdir DIR    score a run on its test set or on new data
  alma serve --workdir DIR       serve predictions over HTTP
  alma sample --workdir DIR      write text with a language model
  alma export --workdir DIR      make a predictor that runs without alma_jax

Find
  alma list [FILE]               list learners, configs, networks, data sets,
                                 optimisers, metrics and streams that change,
                                 also those in your FILE
  alma fields [PATTERN]          list the fields of a config, or those whose
                                 name or meaning contains PATTERN
  alma --version                 print the version

`alma COMMAND --help` explains a command. Without the command `alma`, write
`python -m alma_jax.main` for `alma run`, `python -m alma_jax.sweep` for
`alma sweep`, and so on.
"""
import ast
import importlib
import shutil
import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence

from alma_jax import commands
from alma_jax import config as configs
from alma_jax.config import document, registry
from alma_jax.errors import BadInput
from alma_jax.version import __version__

_FIRST = {"anytime": "Start here to get good predictions soon after data arrive.",
          "sm": "Start here to find out when to train, and as the baseline of a comparison."}
_WIDTH = 120  # where there is no terminal
_MODULES = {"run": "main", **{name: name for name in (
    "demo", "sweep", "apart", "stream", "report", "sample", "export", "predict", "evaluate", "serve", "status",
    "compare", "board")}}


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
  elif args[0] == "list" and len(args) < 3:
    for path in set(args[1:]) - {"-h", "--help"}:
      configs.load_file(*path.partition(":")[::2])
    commands.show("\n".join(_listing()))
  elif args[0] == "fields" and len(args) < 3:
    pattern = "".join(args[1:]).removeprefix("--config.")
    fields = document.text("" if pattern in ("-h", "--help") else pattern)
    if not fields:
      raise BadInput(f"no field has {pattern!r} in its name or meaning; `alma fields` lists all of them.")
    commands.show(fields)
  else:
    close = registry.meant(args[0], [*_MODULES, "list", "fields"])
    raise BadInput(f"there is no command {' '.join(args)!r}{close}; the commands are {', '.join(_MODULES)}, list, "
                   "fields and --version.")


def _listing() -> Iterator[str]:
  """The lines of `alma list`."""
  config = {name: (ast.get_docstring(ast.parse(file.read_text())) or "").split("\n")[0]
            for name, file in configs.packaged().items()}
  columns = shutil.get_terminal_size((_WIDTH, 0)).columns
  groups: dict[str, Mapping[str, str]] = {
      "Learners for images (--config=CONFIG:LEARNER)": {
          **_learners(registry.IMAGES),
          "NAME,authors": "The learner NAME (not a recipe), with early stopping where the authors' code has it."},
      "Learners for text (--config=lm:LEARNER)": _learners(registry.TEXT),
      "Learners for streams of tasks (--config=tasks:LEARNER,STREAM)": _learners(registry.TASKS),
      "Configs": {name: text for name, text in config.items() if "/" not in name},
      "Sweeps (alma sweep --config=NAME)": {name: text for name, text in config.items() if "/" in name},
      "Networks (--config.model.name)": _about(registry.NETWORKS[registry.IMAGES]),
      "Networks for text (--config.model.name)": _about(registry.NETWORKS[registry.TEXT]),
      "Images (--config.dataset.name)": _about(registry.DATA_SETS[registry.IMAGES]),
      "Texts (--config.dataset.name)": _about(registry.DATA_SETS[registry.TEXT]),
      "Streams of tasks (--config=tasks:LEARNER,STREAM)": _about(registry.DATA_SETS[registry.TASKS]),
      "Streams that change (--config=drift:LEARNER,STREAM)": _about(registry.DRIFTS[registry.IMAGES]),
      "Optimisers (--config.train.optimizer)": _about(registry.OPTIMIZERS[registry.IMAGES]),
      "Metrics (--config.log.metrics)": _about(registry.METRICS[registry.IMAGES]),
      "Metrics for text (--config.log.metrics)": _about(registry.METRICS[registry.TEXT]),
  }
  for number, (title, entries) in enumerate(groups.items()):
    yield f"{chr(10) if number else ''}{title}"
    width = max(map(len, entries))
    for name, text in entries.items():
      yield textwrap.fill(text, columns, initial_indent=f"  {name:<{width}}  ", subsequent_indent=" " * (width + 4),
                          break_on_hyphens=False)


def _learners(problem: str) -> dict[str, str]:
  """{name: one line} of the learners of a problem, and of recipes with their learners."""
  recipes = configs.RECIPES[problem]
  every = _about(registry.LEARNERS[problem]) | {
      name: f"{recipe.meaning} ({recipe.learner})" for name, recipe in recipes.items()}
  return {name: f"{every[name]} {when}" for name, when in _FIRST.items() if name in every} | {
      name: text for name, text in every.items() if name not in _FIRST}


def _about(names: registry.Registry) -> dict[str, str]:
  """{name as users write it: one line}."""
  return {form: (cls.__doc__ or "").split("\n")[0] for form, cls in zip(names.forms(), names.values())}


if __name__ == "__main__":
  sys.exit(main())
