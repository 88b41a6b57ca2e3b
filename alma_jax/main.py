"""Runs a learner on a stream: alma run --config=configs/digits.py:ens

Without --config, it runs the digits ensemble. If the run was stopped, run the
command again and it continues where it stopped.

Exit codes: 0 done; 2 bad input, which one sentence explains; 143, 129 or 130
stopped by SIGTERM, SIGHUP or Ctrl-C, after saving what there was to save; 1
anything else.
"""
import argparse
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from alma_jax import commands, messages
from alma_jax import config as configs
from alma_jax.config import schema
from alma_jax.errors import BadInput, Diverged, Stopped, Unsaved
from alma_jax.messages import brief_number, duration

if TYPE_CHECKING:  # it imports jax
  from alma_jax.runs.results import Run

_LABEL, _TITLE = 11, 70  # widths of columns
_SIGNALS: dict[int, int] = {signal.SIGTERM: 143, signal.SIGINT: 130}
if hasattr(signal, "SIGHUP"):
  _SIGNALS[signal.SIGHUP] = 129

_FIELDS = """\
fields that people change most, with examples of values:
  --config.seed=1                     seed of all random numbers
  --config.dataset.name=mnist         data set, or your own data: npz:PATH,
                                      folder:DIR; `alma list` has all names
  --config.dataset.data_dir=DIR       folder of prepared TFDS data sets
  --config.stream.num_megabatches=20  number of mega-batches
  --config.stream.waiting_time=2      mega-batches to wait for before training
  --config.stream.replay=1.0          share of the old data to train on again
  --config.model.name=mlp             network
  --config.model.width=32             neurons or channels of each layer
  --config.train.epochs=100           epochs of each training
  --config.train.learning_rate=1.0    learning rate
  --config.log.predictor=true         publish a predictor after each training

`alma fields` lists all fields, and `alma fields PATTERN` those whose name or
meaning contains PATTERN. For language models use --config=lm:LEARNER, for
streams of tasks tasks:LEARNER, and for live streams live:LEARNER.
"""


def main(argv: Sequence[str] | None = None) -> int:
  """Runs the command line; returns the exit code. `argv` are its arguments; None: those of the process."""
  def work() -> int:
    watched = _watch_signals()  # before the config imports jax, whose garbage collection swallows a KeyboardInterrupt
    return _run(*_parse(argv), *watched)

  return commands.exit_code(work)


def _parse(argv: Sequence[str] | None) -> tuple[argparse.Namespace, schema.RunConfig]:
  """The options of the command line, and the checked config.

  Raises:
    BadInput: an option is unknown or has no value, or the config is not allowed.
    SystemExit: help was asked for, and printed.
  """
  parser = commands.Parser("-m alma_jax.main", __doc__)
  parser.epilog = _FIELDS
  parser.add_argument("--config", action="append", metavar="FILE:LEARNER",
                      help="config file and learner; --config.a.b=VALUE changes a field")
  parser.add_argument("--workdir", metavar="DIR",
                      help="run folder, or an address such as s3://BUCKET/PATH; default: runs/DATA-LEARNER-HASH")
  parser.add_argument("--overwrite", action="store_true", help="delete the run in the folder and start again")
  parser.add_argument("--coordinator", metavar="HOST:PORT",
                      help="with several processes: address of process 0; not needed with SLURM or Open MPI 4")
  parser.add_argument("--num_processes", type=int, metavar="N", help="with --coordinator: number of processes")
  parser.add_argument("--process_id", type=int, metavar="I", help="with --coordinator: number of this process, from 0")
  parser.add_argument("--peer_timeout", type=float, default=300.0, metavar="SECONDS",
                      help="how long to wait for the other processes; default: 300")
  options, overrides = parser.parse_with_fields(argv)
  if len(options.config or ()) > 1:
    raise BadInput("--config is given more than once; give it once.")
  if not options.peer_timeout > 0:
    raise BadInput(f"--peer_timeout={options.peer_timeout} should be above 0.")
  if options.config is None:
    tree = configs.base().to_dict()
  else:
    tree = configs.load_file(*options.config[0].partition(":")[::2])
  return options, configs.parse(configs.overridden(tree, overrides))


def _run(options: argparse.Namespace, config: schema.RunConfig, should_stop: Callable[[], bool],
         stopped_code: Callable[[], int]) -> int:
  from alma_jax.parallel import peers, runtime, sharding  # jax only now: --help stays quick
  from alma_jax.runs import experiment

  commands.quiet()
  try:
    sharding.initialize(options.coordinator, options.num_processes, options.process_id, options.peer_timeout)
    runtime.setup(config, alone=True)
    run = experiment.run(config, options.workdir, overwrite=options.overwrite, should_stop=should_stop)
  except Stopped as stopped:
    peers.leave()
    sharding.say(str(stopped))
    return stopped_code()
  except BaseException as error:
    if peers.is_connected():
      time.sleep(2.0)  # if another process has ended, that is the cause: its sentence arrives and ends this one
    if peers.is_connected() or isinstance(error, Unsaved):
      _leave(error)
    raise
  peers.leave()
  if sharding.is_main():
    commands.show(_report(run))
  return 0


def _leave(error: BaseException) -> NoReturn:
  """Ends the process after an error, without what libraries do at its exit; does not return.

  jax would wait for the other processes, TensorBoard would write to a full disk.
  """
  from alma_jax.parallel import peers

  def fail() -> NoReturn:
    raise error

  known = isinstance(error, (BadInput, Diverged, Unsaved))
  sentence = " ".join((str(error) or type(error).__name__).split())
  peers.leave(sentence if known else f"{type(error).__name__}: {sentence}", 2 if isinstance(error, BadInput) else 1)
  code = 1
  try:
    code = commands.exit_code(fail)
  except BaseException:
    messages.say(traceback.format_exc().rstrip())
  finally:
    try:
      sys.stdout.flush()
    finally:
      os._exit(code)


def _watch_signals() -> tuple[Callable[[], bool], Callable[[], int]]:
  """SIGTERM, SIGHUP and SIGINT stop the run where it can be saved, and at once while there is nothing to save.

  Python's own handler waits for the main thread, which may be inside one call for minutes (a download, a
  compilation); a thread that reads the wake-up pipe does not. A SIGHUP that is ignored, as under nohup, stays ignored.

  Returns:
    should_stop(), for the run to poll once it can save, and stopped_code(), the exit code.
  """
  stopping: list[int] = []
  polled: list[bool] = []
  received, wake_up = os.pipe()

  def code() -> int:
    return _SIGNALS[stopping[0]] if stopping else 143  # another process of the run was told to stop

  def stop(number: int, frame: Any) -> None:
    del frame
    stopping.append(number)
    signal.signal(number, signal.SIG_DFL)  # a second one ends the process at once

  def leave() -> None:
    stopping.extend(os.read(received, 1))
    if not polled:
      os._exit(code())  # an exception would not leave the main thread's call

  def should_stop() -> bool:
    polled[:] = [True]
    return bool(stopping)

  os.set_blocking(wake_up, False)
  signal.set_wakeup_fd(wake_up, warn_on_full_buffer=False)
  threading.Thread(target=leave, daemon=True).start()
  for number in _SIGNALS:
    if signal.getsignal(number) != signal.SIG_IGN:
      signal.signal(number, stop)
  return should_stop, code


def _report(run: "Run") -> str:
  """The results, the costs, and what to do next."""
  from alma_jax import protocols
  from alma_jax.store import run_files

  summary, config, folder = run.summary or {}, run.config, run_files.shown(run.path)
  compiling = summary["compile_seconds"]
  told = protocols.of(config).told(config, summary, run.lines)
  seconds = (f"{duration(summary['wall_seconds'])} on {summary['device']}, {duration(compiling)} of it compiling"
             + " (cached next time)" * (compiling >= 1))
  rows = [(told.measured, told.curve), ("score", f"{told.value}   {told.meaning}"),
          ("cost", f"{brief_number(summary['cumulative_fwd_macs'])} multiply-adds · {run.lines[-1]['num_params']:,} "
                   f"parameters · {seconds}")]
  links = [("picture", str(run.path / "curve.png")),  # a store does not hold it by its name
           ("next", f"{commands.written('compare')} {folder} ANOTHER_RUN"),
           ("", f"{commands.written('board')} {run_files.shown(run.path.parent)}")]
  title = f"{config.dataset.name} · {config.label} · {len(run.lines)} {config.unit}"
  body = ["\n".join(f"  {label:<{_LABEL}} {text}".rstrip() for label, text in part) for part in (rows, links)]
  return "\n\n".join([f"{title:<{_TITLE}}  {folder}", *body])


if __name__ == "__main__":
  sys.exit(main())
