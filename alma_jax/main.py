"""Command line: python -m alma_jax.main --config=configs/digits.py:ens

Without --config it runs the digits ensemble. The same command again goes on
with the run, or says that it is complete. Exit codes: 0 done, 2 bad input (one
sentence), 143 stopped by SIGTERM after saving, 1 anything else.
"""
import os
import signal
import sys
import threading

from absl import flags
from ml_collections import config_flags

from alma_jax import commands
from alma_jax import config as configs
from alma_jax.errors import BadInput, Stopped

_FLAGS = flags.FLAGS
_WORKDIR = flags.DEFINE_string("workdir", None, "run folder; default: runs/NAME-LEARNER-<short hash>")
_OVERWRITE = flags.DEFINE_bool("overwrite", False, "start again where the folder holds a run")
_COORDINATOR = flags.DEFINE_string("coordinator", None, "host:port of process 0; SLURM, MPI and Kubernetes need none")
_NUM_PROCESSES = flags.DEFINE_integer("num_processes", None, "processes of the run, with --coordinator")
_PROCESS_ID = flags.DEFINE_integer("process_id", None, "number of this process from 0, with --coordinator")
_CONFIG = config_flags.DEFINE_config_file(
    "config", None, "configs/NAME.py:LEARNER; fields are changed with --config.a.b=value")


def main():
  """Runs the command line; returns the exit code."""
  def work():
    config = _parse_flags(sys.argv)
    return 0 if config is None else _run(config)

  return commands.exit_code(work)


def _parse_flags(argv):
  """RunConfig, or None when help was asked for.

  Raises:
    BadInput: whatever absl or ml_collections would have made of it.
  """
  if any(arg in ("-h", "--help", "-help") for arg in argv[1:]):
    print(__doc__.strip() + "\n\n" + _FLAGS.main_module_help())
    return None
  _check_overrides(argv)
  try:
    rest = _FLAGS(argv)
    config = _CONFIG.value or configs.base()
  except BadInput:
    raise
  except (flags.Error, OSError, ValueError, TypeError, LookupError, AttributeError) as error:
    raise BadInput(" ".join(str(error).split()).rstrip(" .?") + ".") from error
  if rest[1:]:
    raise BadInput(f"unexpected argument {rest[1]!r}; options start with --, as in --config=configs/digits.py:ens.")
  return configs.parse(config)


def _check_overrides(argv):
  """Names a config file or a field that does not exist, where absl would not."""
  args, tree = argv[1:], None
  for i, arg in enumerate(args[:-1]):  # "--config FILE" is "--config=FILE"
    if arg in ("--config", "-config"):
      args[i] = f"{arg}={args[i + 1]}"
  options = [arg.lstrip("-").partition("=") for arg in args if arg.lstrip("-").startswith("config")]
  if sum(option == "config" for option, _, _ in options) > 1:
    raise BadInput("--config is given more than once.")
  for option, _, value in options:
    if option == "config" and value:
      tree = configs.load_file(*value.partition(":")[::2])
  for option, equals, value in options:
    if option.startswith("config."):
      tree = tree or configs.base().to_dict()
      configs.check_field(option.removeprefix("config."), value if equals else None, tree)


def _run(config):
  should_stop, stopped_code = _watch_signals()
  from alma_jax import experiment, runtime, sharding  # jax only now: --help stays quick

  commands.quiet()
  sharding.initialize(_COORDINATOR.value, _NUM_PROCESSES.value, _PROCESS_ID.value)
  runtime.setup(config, alone=True)
  try:
    run = experiment.run(config, _WORKDIR.value, overwrite=_OVERWRITE.value, should_stop=should_stop)
  except Stopped as stopped:
    experiment.say(str(stopped))
    return stopped_code()
  if sharding.is_main():
    print(_report(run))
  return 0


def _watch_signals():
  """SIGTERM and SIGINT stop the run where it can be saved, and at once while there is nothing to save.

  Python's own handler waits for the main thread, which may be inside one call for minutes (a download, a
  compilation); a thread that reads the wake-up pipe does not.

  Returns:
    should_stop(), for the run to poll once it can save, and stopped_code(), the exit code.
  """
  stopping, polled = [], []
  received, wake_up = os.pipe()

  def code():
    return 1 if signal.SIGINT in stopping else 143

  def stop(number, frame):
    del frame
    stopping.append(number)
    signal.signal(number, signal.SIG_DFL)  # a second one is not to be argued with

  def leave():
    stopping.extend(os.read(received, 1))
    if not polled:
      os._exit(code())  # an exception would not leave the main thread's call

  def should_stop():
    polled[:] = [True]
    return bool(stopping)

  os.set_blocking(wake_up, False)
  signal.set_wakeup_fd(wake_up, warn_on_full_buffer=False)
  threading.Thread(target=leave, daemon=True).start()
  for number in (signal.SIGTERM, signal.SIGINT):
    signal.signal(number, stop)
  return should_stop, code


def _report(run):
  s = run.summary
  num = len(run.metrics["t"])
  if "cer" in s:
    judged = (f"CER {s['cer']:.4f} over {num} mega-batches, mean error {s['mean_error']:.4f}, "
              f"final error {s['final_error']:.4f}")
  else:
    judged = (f"average perplexity {s['average_perplexity']:.2f} after {num} mega-batches, "
              f"final perplexity {s['final_perplexity']:.2f}")
  return (f"{judged}\n"
          f"parameters held {s['cumulative_params']:,}, forward multiply-adds {s['cumulative_fwd_macs']:,}, "
          f"training flops {s['cumulative_train_flops']:,}\n"
          f"{s['num_stages']} stages in {s['wall_seconds']:.1f} s, {s['compile_seconds']:.1f} s of it compiling, "
          f"on {s['device']}\n{run.path}")


if __name__ == "__main__":
  sys.exit(main())
