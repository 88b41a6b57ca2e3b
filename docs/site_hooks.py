"""What the site adds to the pages in docs/: pages from other sources, old addresses, hover texts, unbroken numbers.

MkDocs calls the functions `on_*`. `mkdocs build --strict` fails on a broken link.
"""
import contextlib
import importlib
import io
import pathlib
import re
from html import escape
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = pathlib.Path(__file__).parents[1]
COMMANDS = ("main", "sweep", "apart", "stream", "report", "sample", "export", "predict", "evaluate", "serve", "status",
            "compare", "board", "demo")
# Pages made from files beside docs/: {page: file}.
COPIES = {"contributing.md": "CONTRIBUTING.md", "changelog.md": "CHANGELOG.md"}
FINDINGS = "results/README.md"
# Addresses of earlier versions: {address: where it leads now}. The pages say so to browsers and to people.
MOVED = {"results/claims/": "findings/"}
GLOSSARY = pathlib.Path(__file__).parent / "glossary.md"
# A block of commands, which narrow screens wrap: {a line of one that begins it}.
COMMANDS_BLOCK = re.compile(r'<div class="language-text highlight">(?=<pre>(?:<span></span>)?<code>(?:<a [^>]*></a>)?'
                            r"(?:alma|python|pip|curl|[.]venv) )")
NUMBER = re.compile(r"<td((?: style=\"[^\"]*\")?)>((?!\d+[.] )[-+±≤≥]?\d[^<]{0,34})</td>")
# Modules of the API page: {title: [names]}.
API = {
    "Running": ["runs.experiment.run", "runs.results.load_run", "runs.results.Run", "runs.stream.Stream",
                "runs.mixture.Mixture"],
    "Configs": ["config.presets.base", "config.presets.tasks", "config.presets.language", "config.code.load_config"],
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
  """Adds the pages that are made here. Moves a README from the address that the page of its folder's name has.

  A list that follows a line gets the empty line that MkDocs wants.
  """
  pages = {"command-line.md": command_line(), "api.md": api()}
  for page, source in COPIES.items():
    pages[page] = (ROOT / source).read_text().replace("](docs/", "](").replace(":\n- ", ":\n\n- ")
  findings = files.get_file_from_path(FINDINGS)
  assert findings is not None
  findings.dest_uri = "findings/index.html"
  for name, content in pages.items():
    files.append(File.generated(config, name, content=content))
  return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
  """Adds the hover texts of the glossary to every other page. Lists in lists get the four spaces that MkDocs wants.

  A page that is a section by itself needs no list of the section's pages.
  """
  if page.parent is None:
    page.meta["hide"] = ["navigation"]
  markdown = re.sub(r"^ {2,3}(?=(?:-|\d\.) )", "    ", markdown, flags=re.MULTILINE)
  if page.file.src_uri == GLOSSARY.name:
    return markdown
  return markdown + "\n\n" + "\n".join(f"*[{term}]: {meaning}" for term, meaning in hover_texts().items())


def on_page_content(html: str, **_: Any) -> str:
  """Marks cells that are numbers, so that they do not wrap. A click on a picture shows it in full size.

  A term has its hover text where a page first says it.
  """
  said: set[str] = set()

  def first(match: re.Match[str]) -> str:
    if match[1] in said or match.string.rfind("<h", 0, match.start()) > match.string.rfind("</h", 0, match.start()):
      return match[2]
    said.add(match[1])
    return match[0]
  html = COMMANDS_BLOCK.sub('<div class="language-text highlight commands">', html)
  html = re.sub(r'(<img [^>]*src="([^"]+\.(?:png|svg))"[^>]*>)', r'<a class="picture" href="\2">\1</a>', html)
  return NUMBER.sub(r'<td class="number"\1>\2</td>', re.sub(r'<abbr title="(.*?)">(.*?)</abbr>', first, html))


def on_post_build(config: Any) -> None:
  """Writes a page at every old address that leads to the new one."""
  for old, new in MOVED.items():
    to = "../" * old.count("/") + new
    path = pathlib.Path(config.site_dir) / old / "index.html"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f'<!doctype html><meta charset="utf-8"><title>Moved</title>\n<link rel="canonical" href="{to}">\n'
                    f'<meta http-equiv="refresh" content="0; url={to}">\n<a href="{to}">This page has moved.</a>\n')


def hover_texts() -> dict[str, str]:
  """{term: first sentence of its entry in the glossary}, in the forms in which pages write it."""
  texts = {}
  for terms, meaning in re.findall(r"^\*\*(.+?)\*\* · (.*?)(?=\n\n|\Z)", GLOSSARY.read_text(), re.M | re.S):
    plain = re.sub(r"[*`$]|\[(.*?)\]\(.*?\)", r"\1", " ".join(meaning.split()))
    sentence = escape(re.split(r"(?<=[.])\s", plain, maxsplit=1)[0])
    for term in terms.split(", "):
      forms = (term, f"{term}s", re.sub("(ch|x)$", r"\1es", term))
      texts |= {form: sentence for each in forms for form in {each, each[0].upper() + each[1:]}}
  return texts


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
  parts = ["# API\n\n`alma_jax.run`, `load_run`, `Run`, `Stream`, `base_config`, `task_config`, `language_config`, "
           "`register`, `field`, `Options`, `TaskOptions`, `Model` (models.network.ImageModel), `DataSet`, "
           "`Optimizer`, `Metric`, `Protocol`, `Stacked`, `Paths`, `Proposal`, `Context`, `GrowthReport` and the "
           "errors can be imported from `alma_jax` itself. Arrays carry their axes in their names; the legend is in "
           "`alma_jax.types`."]
  for title, names in API.items():
    parts += [f"## {title}", *(f"::: alma_jax.{name}" for name in names)]
  return "\n\n".join(parts) + "\n"


def _help(module: str) -> str:
  output = io.StringIO()
  with contextlib.redirect_stdout(output):
    importlib.import_module(f"alma_jax.{module}").main(["--help"])
  return output.getvalue().strip()
