"""The files of a report: tables, lists and figures of studies, and one self-contained HTML page of all of them."""
import html
import pathlib
import re
import string
from collections.abc import Collection, Sequence
from typing import NamedTuple

import pandas as pd

from alma_jax.errors import BadInput
from alma_jax.reports import ablation, cards, drawing, figures, findings, svg, tables, task_figures, trade_offs
from alma_jax.reports.ablation import Ablation, Part
from alma_jax.reports.cards import Card
from alma_jax.reports.studies import Study
from alma_jax.reports.tables import Table
from alma_jax.store import run_files

_FEW = 8  # lines of a list or a table that are shown at once; longer ones open on a click
_FOLDED = ("stream-compute", "compute", "parameters")  # figures that open on a click, where others say it in short
_FILES = ("Point at a figure to see its values; click a name to see it alone. The folder of this page has every figure "
          "as PNG and PDF, and the numbers in full as CSV files.")


class Bullets(NamedTuple):
  """Markdown lines that begin with "- ", under a heading; `how` says how to read them."""
  heading: str
  lines: list[str]
  how: Sequence[str] = ()


class Picture(NamedTuple):
  """A figure with its title, its caption, and its HTML; `folded`: it opens on a click."""
  title: str
  caption: str
  body: str
  folded: bool = False


class Section(NamedTuple):
  """What a page shows of a study: the headline, what it leaves out, the answers, and the parts below them."""
  heading: str
  about: str
  cards: Sequence[Card]
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
    growth = findings.growth(study)
    answers, (runs, texts) = cards.of(study, growth), parts(study, of_study, growth)
    heading, pictures = cards.headline(study, len(studies) == 1), _write_figures(study, out, prefix, waits)
    markdown += [f"## {study.name}", heading,
                 "\n".join(card.line for card in answers),
                 *map(_markdown, [runs, *texts]),
                 *(f"![{picture.caption}]({stem}.png)\n\n{picture.caption}" for stem, picture in pictures.items())]
    first, last = ([summary], [runs]) if (summary := tables.summary(runs)) else ([runs], [])
    sections.append(Section(heading, cards.about(study), answers,
                            [*first, *pictures.values(), *texts, *last]))
  text = "\n\n".join(markdown) + "\n"
  (out / "report.md").write_text(text)
  for stem in _figures_of(earlier) - _figures_of(text):
    for suffix in (".png", ".pdf"):
      (out / f"{stem}{suffix}").unlink(missing_ok=True)
  (out / "index.html").write_text(page(sections, notes))
  return out / "index.html"


def parts(study: Study, ablations: Sequence[Ablation], growth: Sequence[findings.Growth]
          ) -> tuple[Table, list[Table | Bullets]]:
  """(the table of the runs of a study, its lists and other tables); `growth` comes from findings.growth."""
  runs, *further = tables.all_of(study)
  others: list[Table | Bullets] = [*further, *(ablation.table(study, each) for each in ablations)]
  if study.tasks:
    return runs, [*others, Bullets("What the columns mean", tables.task_columns(study))]
  diverged = [] if study.diverged.empty else [findings.HOW_DIVERGED]
  lists = [Bullets("Which waiting time is best?", findings.waiting_times(study), [findings.HOW, *diverged]),
           Bullets("Is growing better than a fixed learner with the same compute and memory?",
                   [each.line for each in growth], [findings.HOW, findings.HOW_GROWTH, *diverged])]
  return runs, [*(each for each in lists if each.lines), *others]


def page(sections: Sequence[Section], notes: Sequence[str] = ()) -> str:
  """HTML text of a page; the notes stand above the answers."""
  alone = len(sections) == 1
  title = html.escape(sections[0].heading if alone else f"Report of {len(sections)} streams")
  body = [svg.symbols(), f"<h1>{title}</h1>"]
  if not alone:
    links = (f'<li><a href="#s{i}">{html.escape(section.heading)}</a></li>' for i, section in enumerate(sections))
    body += [f"<nav><ul>{''.join(links)}</ul></nav>", _notes(notes)]
  for i, section in enumerate(sections):
    body += [f'<section id="s{i}">', "" if alone else f"<h2>{html.escape(section.heading)}</h2>",
             f'<p class="sub">{html.escape(section.about)}</p>', _notes(notes) if alone else "",
             f'<div class="cards">{"".join(map(_card, section.cards))}</div>',
             *(_html(part, not place) for place, part in enumerate(section.parts)), "</section>"]
  template = string.Template(pathlib.Path(__file__).with_name("page.html").read_text())
  return template.substitute(title=title, body="\n".join([*body, f"<footer>{_FILES}</footer>"]))


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
  plots, titles = (task_figures.plots(study), task_figures.TITLES) if study.tasks else (
      figures.plots(study, waits), figures.TITLES)
  for name, plot in plots.items():
    figure = drawing.draw(plot)
    pictures[f"{prefix}{name}"] = Picture(titles[name], plot.caption, svg.figure(plot, figure), name in _FOLDED)
    figure.savefig(out / f"{prefix}{name}.png", dpi=200, metadata={"Software": None})
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
  lines = [part.markdown] if isinstance(part, Table) else [*part.how, *part.lines]
  return f"### {part.heading}\n\n{chr(10).join(lines)}"


def _notes(notes: Sequence[str]) -> str:
  """What a reader must know; many notes open on a click."""
  lines = "".join(f'<p class="note">{html.escape(note)}</p>' for note in notes)
  return lines if len(notes) < 4 else _folded(f"{len(notes)} notes on these runs", lines, False)


def _card(card: Card) -> str:
  dot = _dot(card.learner) if card.learner else ""
  value = f"<em>{html.escape(card.value)}</em>" if card.value else ""
  return (f'<div class="card"><p>{html.escape(card.question)}</p><b>{dot}{html.escape(card.answer)}</b>{value}'
          f"<p>{html.escape(card.details)}</p></div>")


def _html(part: Table | Bullets | Picture, is_open: bool = False) -> str:
  """A part of a page; `is_open`: a table is shown without a click."""
  if isinstance(part, Picture):
    about = f"<details><summary>What it shows</summary><figcaption>{html.escape(part.caption)}</figcaption></details>"
    return _folded(part.title, f"<figure>{part.body}{about}</figure>", not part.folded)
  if isinstance(part, Table):
    return _folded(part.heading, _table(part.markdown), is_open)
  lists = ["<ul>{}</ul>".format("".join(f"<li>{_inline(line.removeprefix('- '))}</li>" for line in lines))
           for lines in (part.lines, part.how)]
  how = f"<details><summary>How runs are compared</summary>{lists[1]}</details>" if part.how else ""
  return _folded(part.heading, lists[0] + how, len(part.lines) <= _FEW)


def _folded(heading: str, body: str, shown: bool) -> str:
  """What opens on a click; what follows a colon in the heading is written smaller."""
  name, colon, more = heading.partition(":")
  summary = html.escape(name) + (f"<small>{colon}{html.escape(more)}</small>" if more else "")
  return f"<details{' open' if shown else ''}><summary>{summary}</summary>{body}</details>"


def _dot(learner: str) -> str:
  return f'<i class="dot" style="--c:{drawing.style(learner)[0]}"></i>'


def _table(markdown: str) -> str:
  """A frame that scrolls a table that is wider than the page: by touch, mouse or keys."""
  head, rule, *rows = ([cell.strip() for cell in line[2:-2].split(" | ")] for line in markdown.splitlines())
  number = [' class="number"' if dashes.endswith(":") else "" for dashes in rule]
  cells = lambda tag, row: "".join(
      f"<{tag}{kind}>{_dot(cell) if tag == 'td' and name == 'learner' else ''}{_inline(cell)}</{tag}>"
      for name, cell, kind in zip(head, row, number))
  body = "".join(f"<tr>{cells('td', row)}</tr>" for row in rows)
  return (f'<div class="wide" tabindex="0"><table><thead><tr>{cells("th", head)}</tr></thead><tbody>{body}</tbody>'
          "</table></div>")


def _inline(text: str) -> str:
  """Escaped text; Markdown's **bold** and `code` become HTML."""
  text = re.sub(r"\*\*(.+?)\*\*", r"<strong>\1</strong>", html.escape(text, quote=False))
  return re.sub(r"`(.+?)`", r"<code>\1</code>", text)
