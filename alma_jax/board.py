"""Shows runs on a live page: alma board RUNS... [--port 8001]

RUNS are run folders, or folders that hold run folders; runs that appear there later are shown as well. The page has the
test errors, the prequential errors with drift alarms, the decisions to train and the growth of the runs, and is
refreshed while they run. It loads nothing from other sites. The service listens to this machine alone; --host=0.0.0.0
lets everyone in. Needs `pip install 'alma_jax[serve]'`.
"""
import sys
from collections.abc import Sequence

from alma_jax import commands, messages, web
from alma_jax.monitor import dashboard


@commands.command
def main(argv: Sequence[str] | None = None) -> None:
  """Runs the command line."""
  parser = commands.Parser("-m alma_jax.board", __doc__)
  parser.add_argument("runs", nargs="+", metavar="RUNS", help="run folders, or folders that hold run folders")
  web.add_arguments(parser, port=8001)
  args = parser.parse_args(argv)
  made = dashboard.Board(args.runs)
  with web.listen(args.host, args.port) as sock:
    messages.say(f"the board is at {web.address(sock)}")
    web.run(dashboard.app(made), sock)


if __name__ == "__main__":
  sys.exit(main())
