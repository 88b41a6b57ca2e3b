"""Tables, figures and findings of finished runs: python -m alma_jax.report RUNS... --out DIR

RUNS are run folders, or folders that hold some. Without --out the tables are
printed: means over seeds, and for language models the paper's Tables 1 and 2.
With it DIR gets runs.csv, stream.csv, report.md, figures as PNG and PDF, and
index.html, one page with all of it.
"""
import pathlib
import re
import sys

import pandas as pd

from alma_jax import commands
from alma_jax.errors import BadInput
from alma_jax.reports import collect, tables


def report(paths, out):
  """Writes the report of runs into a folder.

  Args:
    paths: run folders, or folders that hold some.
    out: folder, made if need be; the files of an earlier report in it are
      replaced, figures that this one does not have are removed.

  Returns:
    Path of the page.

  Raises:
    BadInput: there is no finished run, or `out` cannot be written.
  """
  from alma_jax.reports import figures, page
  studies, problems = collect.collect(paths)
  out = pathlib.Path(out).expanduser()
  try:
    out.mkdir(parents=True, exist_ok=True)
    (out / "index.html").touch()
  except OSError as error:
    raise BadInput(f"the folder {out} cannot be made or written: {error.strerror}.") from error
  pd.concat([study.runs for study in studies]).to_csv(out / "runs.csv", index=False)
  pd.concat([study.stream for study in studies]).to_csv(out / "stream.csv", index=False)
  notes = _notes(studies, problems)
  _warn(notes)
  sections, text, old = [], ["# Report", *notes], _figures_of(out)
  stems = [_plain(study.name) for study in studies]
  stems = [f"{stem}-{i}" if stems.count(stem) > 1 else stem for i, stem in enumerate(stems, 1)]
  for study, of_study in zip(studies, stems):
    parts = _texts(study)
    text += [f"## {study.name}", *(f"### {heading}\n\n{body if isinstance(body, str) else chr(10).join(body)}"
                                   for _, heading, body in parts)]
    for name, (caption, figure) in figures.all_of(study).items():
      stem = name if len(studies) == 1 else f"{of_study}-{name}"
      picture = page.png(figure)
      (out / f"{stem}.png").write_bytes(picture)
      figure.savefig(out / f"{stem}.pdf", metadata={"CreationDate": None, "Producer": None})
      parts.append(("figure", caption, picture, round(70 * figure.get_figwidth())))
      text.append(f"![{caption}]({stem}.png)\n\n{caption}")
    sections.append((study.name, parts))
  (out / "report.md").write_text("\n\n".join(text) + "\n")
  for stem in old - _figures_of(out):
    for kind in (".png", ".pdf"):
      (out / f"{stem}{kind}").unlink(missing_ok=True)
  (out / "index.html").write_text(page.page("Anytime learning: report", sections, notes))
  return out / "index.html"


def _figures_of(out):
  """Stems of the figures that the report in a folder shows."""
  file = out / "report.md"
  text = file.read_text() if file.exists() else ""
  return set(re.findall(r"^!\[.*\]\(([A-Za-z0-9-]+)\.png\)$", text, re.MULTILINE))


def _texts(study):
  """[(kind, heading, Markdown text or lines)] of all that is no figure."""
  from alma_jax.reports import findings
  parts = [("table", "Runs, mean and deviation over seeds", tables.overview(study))]
  iid = tables.iid(study)
  if iid:
    parts.append(("table", "One mega-batch after the other against all at once", iid))
  for heading, lines, how in (("Which waiting time?", findings.waiting_times(study), []),
                              ("Did growing pay, within its compute and memory?", findings.growth(study),
                               [findings.HOW_GROWTH])):
    if lines:
      parts.append(("list", heading, [findings.HOW, *how, *lines]))
  return parts


def _notes(studies, problems):
  notes = list(problems)
  if len(studies) > 1:
    notes.append(f"The runs are of {len(studies)} streams, which are reported one after the other: "
                 f"{'; '.join(study.name for study in studies)}.")
  return notes


def _warn(notes):
  for note in notes:
    print(f"warning: {note}", file=sys.stderr)


def _plain(name):
  return re.sub(r"[^A-Za-z0-9]+", "-", name).strip("-")


def main(argv=None):
  """Runs the command line; returns the exit code: 0, or 2 for bad input."""
  return commands.exit_code(lambda: _main(argv))


def _main(argv):
  parser = commands.Parser("-m alma_jax.report", __doc__)
  parser.add_argument("runs", nargs="+", metavar="RUNS", help="run folders, or folders that hold some")
  parser.add_argument("--out", help="folder of the report; without it the tables are printed")
  args = parser.parse_args(argv)
  if args.out:
    print(report(args.runs, args.out))
    return
  studies, problems = collect.collect(args.runs)
  _warn(_notes(studies, problems))
  for study in studies:
    print(f"\n{study.name}\n" if len(studies) > 1 else "", end="")
    print("\n\n".join(filter(None, [tables.overview(study), tables.iid(study)])))


if __name__ == "__main__":
  sys.exit(main())
