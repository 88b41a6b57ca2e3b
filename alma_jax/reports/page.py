"""The files of a report: tables, lists and figures of studies, and one self-contained HTML page of all of them."""
import base64
import html
import io
import pathlib
import re
import string
from collections.abc import Collection, Sequence
from typing import NamedTuple

import pandas as pd
from matplotlib.figure import Figure

from alma_jax.errors import BadInput
from alma_jax.reports import ablation, drawing, figures, findings, tables, task_figures, trade_offs
from alma_jax.reports.ablation import Ablation, Part
from alma_jax.reports.studies import Study
from alma_jax.reports.tables import Table
from alma_jax.store import run_files

_NATURAL, _LEAST = 140, 95  # CSS pixels per inch of a figure: if there is room, and at least


class Bullets(NamedTuple):
  """Markdown lines that begin with "- ", under a heading."""
  heading: str
  lines: list[str]


class Picture(NamedTuple):
  """A figure with its caption.

  Attributes:
    caption: text.
    png: contents of the file.
    width: of the figure, in inches.
  """
  caption: str
  png: bytes
  width: float


class Section(NamedTuple):
  """The tables, lists and pictures of a study, under its name."""
  heading: str
  parts: Sequence[Table | Bullets | Picture]


def write(studies: Sequence[Study], notes: Sequence[str], out: str | pathlib.Path,
          ablated: Sequence[Part] = (), waits: Collection[float] = ()) -> pathlib.Path:
  """Writes the report of studies into a folder.

  The files of an earlier report in the folder are replaced. Figures that the earlier report has and this one lacks are
  removed.

  Args:
    studies, notes: as collect.collect returns them.
    out: folder; it is made if it does not exist.
    ablated: the parts of learners that the ablation tables switch off.
    waits: the waiting times that figures show; empty: all, or as many as fit.

  Returns:
    Path of the page.

  Raises:
    BadInput: `out` cannot be written, the runs do not form the ablation, or no figure can show `waits`.
  """
  figures.check(waits, studies)
  out, ablations = run_files.local(out), ablation.of_all(studies, ablated)
  try:
    out.mkdir(parents=True, exist_ok=True)
    (out / "index.html").touch()
  except OSError as error:
    raise BadInput(f"the folder {out} cannot be made or written: {error.strerror}.") from error
  earlier = (out / "report.md").read_text() if (out / "report.md").exists() else ""
  _write_csv(ablations, out, earlier)
  sections, markdown = [], ["# Report", *notes]
  for (study, of_study), prefix in zip(ablations, _prefixes(studies)):
    texts, pictures = parts(study, of_study), _write_figures(study, out, prefix, waits)
    markdown += [f"## {study.name}", *map(_markdown, texts),
                 *(f"![{picture.caption}]({stem}.png)\n\n{picture.caption}" for stem, picture in pictures.items())]
    sections.append(Section(study.name, [*texts, *pictures.values()]))
  text = "\n\n".join(markdown) + "\n"
  (out / "report.md").write_text(text)
  for stem in _figures_of(earlier) - _figures_of(text):
    for suffix in (".png", ".pdf"):
      (out / f"{stem}{suffix}").unlink(missing_ok=True)
  (out / "index.html").write_text(page("Anytime learning: report", sections, notes))
  return out / "index.html"


def parts(study: Study, ablations: Sequence[Ablation] = ()) -> list[Table | Bullets]:
  """The tables and lists of a study."""
  every = [*tables.all_of(study), *(ablation.table(study, each) for each in ablations)]
  if study.tasks:
    return [*every, Bullets("What the columns mean", tables.task_columns(study))]
  diverged = [] if study.diverged.empty else [findings.HOW_DIVERGED]
  lists = [("Which waiting time is best?", [findings.HOW], findings.waiting_times(study)),
           ("Is growing better than a fixed learner with the same compute and memory?",
            [findings.HOW, findings.HOW_GROWTH], findings.growth(study))]
  return [*every, *(Bullets(heading, [*how, *diverged, *lines]) for heading, how, lines in lists if lines)]


def page(title: str, sections: Sequence[Section], notes: Sequence[str] = ()) -> str:
  """HTML text of a page; the notes stand above the sections."""
  body = []
  if len(sections) > 1:
    links = "".join(f'<a href="#s{i}">{html.escape(section.heading)}</a>' for i, section in enumerate(sections))
    body.append(f"<nav>{links}</nav>")
  body += [f'<p class="note">{html.escape(note)}</p>' for note in notes]
  for i, section in enumerate(sections):
    body += [f'<h2 id="s{i}">{html.escape(section.heading)}</h2>', *map(_html, section.parts)]
  template = string.Template(pathlib.Path(__file__).with_name("page.html").read_text())
  return template.substitute(title=html.escape(title), body="\n".join(body))


def png(figure: Figure, dots: int = 200) -> bytes:
  """PNG of a matplotlib Figure; `dots` are pixels per inch."""
  file = io.BytesIO()
  figure.savefig(file, dpi=dots, metadata={"Software": None})
  return file.getvalue()


def _write_csv(ablations: Sequence[tuple[Study, list[Ablation]]], out: pathlib.Path, earlier: str) -> None:
  """Writes the CSV files of studies and their ablations; `earlier` is the text of the report that they replace."""
  studies = [study for study, _ in ablations]
  pd.concat([study.runs for study in studies]).to_csv(out / "runs.csv", index=False)
  pd.concat([study.stream for study in studies]).to_csv(out / "stream.csv", index=False)
  files = {name: [points(study).assign(study=study.name).set_index("study") for study in studies
                  if bool(study.tasks) == of_tasks]
           for name, points, of_tasks in (("pareto.csv", trade_offs.points, False),
                                          ("tasks.csv", tables.task_points, True))}
  files["ablation.csv"] = [ablation.frame(study, each).set_index("study") for study, of_study in ablations
                           for each in of_study]
  for name, rows in files.items():
    if rows:
      pd.concat(rows).to_csv(out / name)
    elif earlier and (name != "ablation.csv" or f"### {ablation.TITLE}" in earlier):
      (out / name).unlink(missing_ok=True)


def _write_figures(study: Study, out: pathlib.Path, prefix: str, waits: Collection[float]) -> dict[str, Picture]:
  """Writes the figures of a study as PNG and PDF; {file name without suffix: Picture}."""
  pictures = {}
  plots = task_figures.plots(study) if study.tasks else figures.plots(study, waits)
  for name, plot in plots.items():
    figure = drawing.draw(plot)
    pictures[f"{prefix}{name}"] = Picture(plot.caption, png(figure), figure.get_figwidth())
    (out / f"{prefix}{name}.png").write_bytes(pictures[f"{prefix}{name}"].png)
    figure.savefig(out / f"{prefix}{name}.pdf", metadata={"CreationDate": None, "Producer": None})
  return pictures


def _figures_of(report: str) -> set[str]:
  """File names, without suffix, of the figures that a report shows; `report` is the text of its report.md."""
  return set(re.findall(r"^!\[.*\]\(([A-Za-z0-9-]+)\.png\)$", report, re.MULTILINE))


def _prefixes(studies: Sequence[Study]) -> list[str]:
  """The beginning of the names of each study's figures: "" for a single study."""
  if len(studies) == 1:
    return [""]
  stems = [re.sub(r"[^A-Za-z0-9]+", "-", study.name).strip("-") for study in studies]
  return [f"{stem}-{i}-" if stems.count(stem) > 1 else f"{stem}-" for i, stem in enumerate(stems, 1)]


def _markdown(part: Table | Bullets) -> str:
  return f"### {part.heading}\n\n{part.markdown if isinstance(part, Table) else chr(10).join(part.lines)}"


def _html(part: Table | Bullets | Picture) -> str:
  if isinstance(part, Table):
    return f"<h3>{html.escape(part.heading)}</h3>\n{_table(part.markdown)}"
  if isinstance(part, Bullets):
    items = "".join(f"<li>{_inline(line.removeprefix('- '))}</li>" for line in part.lines)
    return f"<h3>{html.escape(part.heading)}</h3>\n<ul>{items}</ul>"
  data, caption = base64.b64encode(part.png).decode(), html.escape(part.caption)
  widths = f"width:{round(_NATURAL * part.width)}px;min-width:{round(_LEAST * part.width)}px"
  image = f'<img style="{widths}" alt="{caption}" src="data:image/png;base64,{data}">'
  return f"<figure><figcaption>{caption}</figcaption>{_wide(image)}</figure>"


def _table(markdown: str) -> str:
  head, rule, *rows = ([cell.strip() for cell in line[2:-2].split(" | ")] for line in markdown.splitlines())
  number = ['class="number"' if dashes.endswith(":") else "" for dashes in rule]
  cells = lambda tag, row: "".join(f"<{tag} {kind}>{_inline(cell)}</{tag}>" for cell, kind in zip(row, number))
  body = "".join(f"<tr>{cells('td', row)}</tr>" for row in rows)
  return _wide(f"<table><thead><tr>{cells('th', head)}</tr></thead><tbody>{body}</tbody></table>")


def _wide(content: str) -> str:
  """A frame that scrolls content that is wider than the page: by touch, mouse or keys."""
  return f'<div class="wide" tabindex="0">{content}</div>'


def _inline(text: str) -> str:
  """Escaped text; Markdown's **bold** and `code` become HTML."""
  text = re.sub(r"\*\*(.+?)\*\*", r"<strong>\1</strong>", html.escape(text, quote=False))
  return re.sub(r"`(.+?)`", r"<code>\1</code>", text)
