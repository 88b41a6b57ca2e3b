"""Says how runs are: alma status RUNS...

RUNS are run folders, or folders that hold run folders; or their addresses. One line a run: whether it is alive, dead
(it is not finished, and no process on this machine runs it; if it has an address, none on another machine either),
finished or diverged; its stage, error, prequential error (the mean over the stream so far), the newest values of
`log.metrics`, drift alarms, the time left, and when it was saved.
"""
import sys
from collections.abc import Sequence

from alma_jax import commands
from alma_jax.errors import BadInput
from alma_jax.monitor import view


@commands.command
def main(argv: Sequence[str] | None = None) -> None:
  """Runs the command line."""
  parser = commands.Parser("-m alma_jax.status", __doc__)
  parser.add_argument("runs", nargs="+", metavar="RUNS", help="run folders, or folders that hold run folders")
  args = parser.parse_args(argv)
  folders, failed = view.find(args.runs), []
  for folder in folders:
    try:
      commands.show(view.line(view.view(folder)))
    except BadInput as error:
      failed.append(str(error))
  if len(failed) == len(folders):
    raise BadInput(failed[0])
  commands.warn(failed)


if __name__ == "__main__":
  sys.exit(main())
