"""Writes a report: tables, findings and figures of studies, as files and as one HTML page."""
import pathlib
import re
from collections.abc import Collection, Sequence

import pandas as pd

from alma_jax.errors import BadInput
from alma_jax.reports import ablation, blocks, figures, page, panels, task_figures, task_tables, trade_offs
from alma_jax.reports.ablation import Ablation, Part
from alma_jax.reports.parts import Bullets, Picture, Section, Table
from alma_jax.reports.studies import Study
from alma_jax.store import run_files


def report(studies: Sequence[Study], notes: Sequence[str], out: str | pathlib.Path,
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
  panels.check(waits, studies)
  out, found = run_files.local(out), ablation.of_all(studies, ablated)
  try:
    out.mkdir(parents=True, exist_ok=True)
    (out / "index.html").touch()
  except OSError as error:
    raise BadInput(f"the folder {out} cannot be made or written: {error.strerror}.") from error
  earlier = _read(out / "report.md")
  _write_csv(found, out, earlier)
  sections, markdown, old = [], ["# Report", *notes], _figures_of(earlier)
  for (study, ablations), prefix in zip(found, _prefixes(studies)):
    words, pictures = blocks.of(study, ablations), _write_figures(study, out, prefix, waits)
    markdown += [f"## {study.name}", *map(_markdown, words),
                 *(f"![{picture.caption}]({stem}.png)\n\n{picture.caption}" for stem, picture in pictures.items())]
    sections.append(Section(study.name, [*words, *pictures.values()]))
  (out / "report.md").write_text("\n\n".join(markdown) + "\n")
  for stem in old - _figures_of(_read(out / "report.md")):
    for suffix in (".png", ".pdf"):
      (out / f"{stem}{suffix}").unlink(missing_ok=True)
  (out / "index.html").write_text(page.page("Anytime learning: report", sections, notes))
  return out / "index.html"


def _write_csv(found: Sequence[tuple[Study, list[Ablation]]], out: pathlib.Path, earlier: str) -> None:
  """Writes the CSV files of studies and their ablations; `earlier` is the text of the report that they replace."""
  studies = [study for study, _ in found]
  pd.concat([study.runs for study in studies]).to_csv(out / "runs.csv", index=False)
  pd.concat([study.stream for study in studies]).to_csv(out / "stream.csv", index=False)
  for name, points, mine in (("pareto.csv", trade_offs.points, [study for study in studies if not study.tasks]),
                             ("tasks.csv", task_tables.points, [study for study in studies if study.tasks])):
    if mine:
      rows = pd.concat([points(study).assign(study=study.name) for study in mine])
      rows.set_index("study").to_csv(out / name, index_label="study")
    elif earlier:
      (out / name).unlink(missing_ok=True)
  ablations = [ablation.frame(study, each) for study, mine in found for each in mine]
  if ablations:
    pd.concat(ablations).to_csv(out / "ablation.csv", index=False)
  elif f"### {ablation.TITLE}" in earlier:
    (out / "ablation.csv").unlink(missing_ok=True)


def _markdown(part: Table | Bullets) -> str:
  body = part.markdown if isinstance(part, Table) else "\n".join(part.lines)
  return f"### {part.heading}\n\n{body}"


def _write_figures(study: Study, out: pathlib.Path, prefix: str, waits: Collection[float]) -> dict[str, Picture]:
  """Writes the figures of a study as PNG and PDF; {file name without suffix: Picture}."""
  found = {}
  drawn = task_figures.all_of(study) if study.tasks else figures.all_of(study, waits)
  for name, (caption, figure) in drawn.items():
    picture = Picture(caption, page.png(figure), figure.get_figwidth())
    (out / f"{prefix}{name}.png").write_bytes(picture.png)
    figure.savefig(out / f"{prefix}{name}.pdf", metadata={"CreationDate": None, "Producer": None})
    found[f"{prefix}{name}"] = picture
  return found


def _figures_of(report: str) -> set[str]:
  """File names, without suffix, of the figures that a report shows; `report` is the text of its report.md."""
  return set(re.findall(r"^!\[.*\]\(([A-Za-z0-9-]+)\.png\)$", report, re.MULTILINE))


def _read(file: pathlib.Path) -> str:
  return file.read_text() if file.exists() else ""


def _prefixes(studies: Sequence[Study]) -> list[str]:
  """The beginning of the names of each study's figures: "" for a single study."""
  if len(studies) == 1:
    return [""]
  stems = [re.sub(r"[^A-Za-z0-9]+", "-", study.name).strip("-") for study in studies]
  return [f"{stem}-{i}-" if stems.count(stem) > 1 else f"{stem}-" for i, stem in enumerate(stems, 1)]
