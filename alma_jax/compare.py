"""Compares two runs: alma compare RUN RUN [--out FILE.png]

Says which run is better and what both cost, on the mega-batches that both have seen. Then it prints the fields in which
their configurations differ, the test errors of both over the stream, and the mean difference: of the test error and,
with a 95 % interval, of the prequential error. The runs need not be finished. --out draws the curves. For many
runs over several seeds use `alma report`.
"""
import sys
from collections.abc import Sequence

from alma_jax import commands
from alma_jax.monitor import pair, view


@commands.command
def main(argv: Sequence[str] | None = None) -> None:
  """Runs the command line."""
  parser = commands.Parser("-m alma_jax.compare", __doc__)
  parser.add_argument("first", metavar="RUN", help="run folder A")
  parser.add_argument("second", metavar="RUN", help="run folder B")
  parser.add_argument("--out", help="picture of the curves, e.g. curves.png")
  args = parser.parse_args(argv)
  runs = view.view(args.first).record, view.view(args.second).record
  told = pair.text(*runs)
  if args.out:
    pair.draw(*runs, args.out)
  commands.show(told)


if __name__ == "__main__":
  sys.exit(main())
