"""Pages of the site that are made from other sources when it is built: the command line, and files of the repository.

MkDocs calls the functions `on_*`. `mkdocs build --strict` fails on a broken link.
"""
import contextlib
import importlib
import io
import pathlib
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = pathlib.Path(__file__).parents[1]
COMMANDS = ("main", "sweep", "apart", "report", "sample", "export", "predict", "evaluate", "serve", "status", "compare",
            "board")
# Pages made from files beside docs/: {page: file}.
COPIES = {"contributing.md": "CONTRIBUTING.md", "changelog.md": "CHANGELOG.md"}
CLAIMS = "results/README.md"
# Modules of the API page: {title: [names]}.
API = {
    "Running": ["runs.experiment.run", "runs.results.load_run", "runs.results.Run", "runs.mixture.Mixture"],
    "Configs": ["config.presets.base", "config.presets.tasks", "config.presets.language"],
    "Learners of your own": [
        "config.registry.register", "config.fields.field", "config.sections.AnyOptions", "config.sections.Options",
        "config.task_sections.TaskOptions", "learners.contract", "learners.stacked.Stacked", "learners.paths.Paths",
        "learners.paths.Proposal", "data.memory.StageData", "training.stage.Examples", "training.stage.Training",
        "training.stage.Trained", "training.stage.FitReport"],
    "Networks, data sets, optimisers and metrics of your own": [
        "config.sections.Model", "models.network.ImageModel", "models.layers", "config.sections.DataSet",
        "data.datasets.from_arrays", "data.datasets.Dataset", "config.sections.Optimizer", "config.sections.Metric",
        "problems.measures.Targets"],
    "Protocols of your own": ["protocols.contract"],
    "Sweeps": ["sweeps.Sweep", "sweeps.axis", "sweeps.product", "sweeps.zipped"],
    "Export": ["runs.exporting.export"],
    "Errors": ["errors"],
}


def on_files(files: Files, config: Any) -> Files:
  """Adds the pages that are made here. Moves a README from the address that the page of its folder's name has."""
  pages = {"command-line.md": command_line(), "api.md": api()}
  for page, source in COPIES.items():
    pages[page] = (ROOT / source).read_text().replace("](docs/", "](")
  claims = files.get_file_from_path(CLAIMS)
  assert claims is not None
  claims.dest_uri = "results/claims/index.html"
  for name, content in pages.items():
    files.append(File.generated(config, name, content=content))
  return files


def command_line() -> str:
  """A page with the --help of every command; the fields of configs have a page of their own."""
  parts = ["# Command line\n\nThese are the `--help` texts of the commands. `alma run` is `python -m alma_jax.main`, "
           "`alma sweep` is `python -m alma_jax.sweep`, and so on. The fields of a config, `--config.a.b=VALUE`, are "
           f"listed in [fields](fields.md).\n\n## alma\n\n```text\n{_help('cli')}\n```"]
  for name in COMMANDS:
    parts.append(f"## alma_jax.{name}\n\n```text\n{_help(name)}\n```")
  return "\n\n".join(parts) + "\n"


def api() -> str:
  """A page with the docstrings of what users call."""
  parts = ["# API\n\n`alma_jax.run`, `load_run`, `Run`, `base_config`, `task_config`, `language_config`, `register`, "
           "`field`, `Options`, `TaskOptions`, `Model` (models.network.ImageModel), `DataSet`, `Optimizer`, `Metric`, "
           "`Protocol`, `Stacked`, `Paths`, `Proposal`, `Context`, `GrowthReport` and the errors can be imported from "
           "`alma_jax` itself. Arrays carry their axes in their names; the legend is in `alma_jax.types`."]
  for title, names in API.items():
    parts += [f"## {title}", *(f"::: alma_jax.{name}" for name in names)]
  return "\n\n".join(parts) + "\n"


def _help(module: str) -> str:
  output = io.StringIO()
  with contextlib.redirect_stdout(output):
    importlib.import_module(f"alma_jax.{module}").main(["--help"])
  return output.getvalue().strip()
