"""Exports the predictor of a run: python -m alma_jax.export --workdir RUN [--stage S] [--task T] [--out DIR]

DIR (RUN/export by default, of a stream of tasks RUN/export/task-0001
and so on) gets predictor.stablehlo, predictor.json, which describes the
input and the output, and load.py, which loads the predictor. It needs
jax and flatbuffers alone, on a CPU, GPU or TPU. Any stage that the run has saved can
be exported (counted from 0; the last one saved by default).
"""
import sys
from collections.abc import Sequence

from alma_jax import commands
from alma_jax import config as configs
from alma_jax.runs.exporting import export


@commands.command
def main(argv: Sequence[str] | None = None) -> None:
  """Runs the command line."""
  parser = commands.Parser("-m alma_jax.export", __doc__)
  parser.add_argument("--workdir", required=True, help="run folder")
  parser.add_argument("--stage", type=int, help="stage of the run, from 0; default: the last one saved")
  parser.add_argument("--task", help="of a stream of tasks: the name of the task, or its number, from 1")
  parser.add_argument("--config", help="config file that registers what the run uses of your own")
  parser.add_argument("--out", help="folder to write to; default: export/ in the run folder, of a stream of tasks "
                      "export/task-0001 and so on")
  args = parser.parse_args(argv)
  commands.quiet()
  if args.config:
    configs.load_file(args.config)
  print(export(args.workdir, args.stage, args.out, args.task))


if __name__ == "__main__":
  sys.exit(main())
