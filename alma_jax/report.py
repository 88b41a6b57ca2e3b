"""Reports on finished runs, as tables, figures and findings: alma report RUNS... [--out DIR]

RUNS are run folders, or folders that hold run folders. Without --out the command
prints the tables: means over seeds, for language models the paper's Tables 1 and 2,
the best choice at each price of compute, the metrics of streams of tasks, and the
answers: what is best, and whether growing pays. With --out it writes into DIR:
runs.csv, stream.csv, pareto.csv (for streams of tasks: tasks.csv), report.md, the
figures as PNG and PDF, and index.html, a page with all of them. Runs that are not
finished or are damaged are left out, with a warning for each. Runs that diverged have
no value: they are left out of means and figures, and the tables say how many did.

--ablation=FIELD=OFF,... adds a table of what each of these fields is worth, and
ablation.csv. OFF is the value that switches a field off, as in
--ablation=train.augment=false,stream.replay=0.

--waiting_times=1,10,50 chooses the panels of figures.
"""
import re
import sys
from collections.abc import Sequence

from alma_jax import commands
from alma_jax.errors import BadInput


@commands.command
def main(argv: Sequence[str] | None = None) -> None:
  """Runs the command line."""
  parser = commands.Parser("-m alma_jax.report", __doc__)
  parser.add_argument("runs", nargs="+", metavar="RUNS", help="run folders, or folders that hold run folders")
  parser.add_argument("--out", help="folder of the report; default: print the tables and the answers")
  parser.add_argument("--ablation", metavar="FIELD=OFF,...", help="fields to compare switched on and off")
  parser.add_argument("--waiting_times", metavar="W,W,...", help="those that figures show; by default all, if they fit")
  args = parser.parse_args(argv)
  # pandas and scipy only now, where Ctrl-C ends the command quietly
  from alma_jax.reports import ablation, cards, collect, findings, tables
  waits = [] if args.waiting_times is None else _waits(args.waiting_times, args.out)
  parts = [] if args.ablation is None else ablation.parse(args.ablation)
  studies, notes = collect.collect(args.runs)
  commands.warn(notes)
  if args.out:
    from alma_jax.reports import page  # only here, because matplotlib is slow to import
    print(page.write(studies, notes, args.out, parts, waits))
  else:
    blocks = []
    for study, ablations in ablation.of_all(studies, parts):
      blocks += [study.name] if len(studies) > 1 else []
      more = [ablation.table(study, each) for each in ablations]
      blocks += [f"{table.heading}\n\n{table.markdown}" for table in (*tables.all_of(study), *more)]
      growth = findings.growth(study)
      blocks.append("\n".join([*(card.line for card in cards.of(study, growth)), *(each.line for each in growth)]))
    print("\n\n".join(blocks))


def _waits(text: str, out: str | None) -> list[int]:
  """The waiting times of the flag."""
  if out is None:
    raise BadInput("--waiting_times chooses the panels of figures, which need --out=DIR.")
  if not re.fullmatch(r" *\d+ *(, *\d+ *)*", text, re.ASCII):
    raise BadInput(f"--waiting_times={text} should be whole numbers with commas between them, as in 1,10,50.")
  return [int(part) for part in text.split(",")]


if __name__ == "__main__":
  sys.exit(main())
