"""Shows how runs are doing: alma status [RUNS...]

RUNS are run folders, folders that hold run folders, or their addresses; by default `runs`. Each run has a row:

  state       alive; stopped: saved and ended on request; dead: unfinished, and no process on this machine runs it
              (for an address: none anywhere); diverged; finished; or published, as `alma apart` does
  seen        mega-batches or tasks of the stream so far
  trainings   how often the learner was trained
  error       the test error or perplexity after the last training
  before use  the mean error on mega-batches that were tested before the learner used them
  notes       machine, activity, the metrics of `log.metrics`, drift alarms, time left, when it was saved

Runs that are alive come first. Exit code: 0 if no run needs attention; 3 if a run is stopped, dead, diverged
or unreadable; 2 if no run can be read.
"""
import pathlib
import sys
from collections.abc import Sequence

from alma_jax import commands
from alma_jax.errors import BadInput
from alma_jax.monitor import view

_NEEDS_HELP = 3  # exit code


@commands.command
def main(argv: Sequence[str] | None = None) -> int:
  """Runs the command line."""
  parser = commands.Parser("-m alma_jax.status", __doc__)
  parser.add_argument("runs", nargs="*", default=["runs"], metavar="RUNS",
                      help="run folders, or folders that hold run folders; default: runs")
  args = parser.parse_args(argv)
  folders: dict[pathlib.Path, pathlib.Path] = {}
  views, failed = list[view.View](), list[str]()
  for given in args.runs:
    try:
      folders |= {folder.resolve(): folder for folder in view.find([given])}
    except BadInput as error:
      failed.append(str(error))
  for folder in folders.values():
    try:
      views.append(view.view(folder))
    except BadInput as error:
      failed.append(str(error))
  if not views:
    raise BadInput(failed[0])
  commands.show(view.table(views))
  commands.warn(failed)
  return _NEEDS_HELP if failed or any(each.state in view.NEED_HELP for each in views) else 0


if __name__ == "__main__":
  sys.exit(main())
