"""Tables, figures and findings of finished runs: python -m alma_jax.report RUNS... --out DIR

RUNS are run folders, or folders that hold run folders. Without --out the command
prints the tables: means over seeds, and for language models the paper's Tables 1
and 2. With --out it writes into DIR: runs.csv, stream.csv, report.md, the figures
as PNG and PDF, and index.html, a page with all of them. Runs that are not finished,
diverged or are damaged are left out, with a warning for each.
"""
import sys
from collections.abc import Sequence

from alma_jax import commands


def main(argv: Sequence[str] | None = None) -> int:
  """Runs the command line; returns the exit code: 0, or 2 for bad input."""
  return commands.exit_code(lambda: _main(argv))


def _main(argv: Sequence[str] | None) -> None:
  parser = commands.Parser("-m alma_jax.report", __doc__)
  parser.add_argument("runs", nargs="+", metavar="RUNS", help="run folders, or folders that hold run folders")
  parser.add_argument("--out", help="folder of the report; without it the tables are printed")
  args = parser.parse_args(argv)
  from alma_jax.reports import collect, tables  # pandas and scipy only now, where Ctrl-C ends the command quietly
  studies, notes = collect.collect(args.runs)
  commands.warn(notes)
  if args.out:
    from alma_jax.reports import write  # only here, because matplotlib is slow to import
    print(write.report(studies, notes, args.out))
  else:
    print(tables.text(studies))


if __name__ == "__main__":
  sys.exit(main())
