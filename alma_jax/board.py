"""Shows runs on a live page: alma board RUNS... [--port 8001]

RUNS are run folders, or folders that hold run folders; runs that appear there later are shown as well. The page lists
the runs with their results and costs, those that are alive first. It draws the test errors, the prequential errors with
drift alarms, the parameters and the trainings, and follows the runs as they go on. Click a run or its line to see it
alone. The page loads nothing from other sites. The service listens to this machine alone; --host=0.0.0.0 lets everyone
in. Needs `pip install 'alma_jax[serve]'`.
"""
import sys
from collections.abc import Sequence

from alma_jax import commands, messages, web
from alma_jax.monitor import board


@commands.command
def main(argv: Sequence[str] | None = None) -> None:
  """Runs the command line."""
  parser = commands.Parser("-m alma_jax.board", __doc__)
  parser.add_argument("runs", nargs="+", metavar="RUNS", help="run folders, or folders that hold run folders")
  web.add_arguments(parser, port=8001)
  args = parser.parse_args(argv)
  made = board.Board(args.runs)
  with web.listen(args.host, args.port) as sock:
    messages.say(f"the board is at {web.address(sock)}")
    web.server(board.app(made)).run(sockets=[sock])


if __name__ == "__main__":
  sys.exit(main())
