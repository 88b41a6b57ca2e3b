"""Command line: python -m alma_jax.main --config=configs/digits.py:ens

Without --config it runs the digits ensemble. The same command again goes on
with the run, or says that it is complete. Exit codes: 0 done, 2 bad input (one
sentence), 143 stopped by SIGTERM after saving, 1 anything else.
"""
import signal
import sys
import warnings

from absl import flags
from ml_collections import config_flags

from alma_jax import config as configs
from alma_jax.errors import BadInput, Diverged, Stopped

_FLAGS = flags.FLAGS
_WORKDIR = flags.DEFINE_string("workdir", None, "run folder; default: runs/NAME-LEARNER-<short hash>")
_OVERWRITE = flags.DEFINE_bool("overwrite", False, "start again where the folder holds a run")
_COORDINATOR = flags.DEFINE_string("coordinator", None, "host:port of process 0; SLURM, MPI and Kubernetes need none")
_NUM_PROCESSES = flags.DEFINE_integer("num_processes", None, "processes of the run, with --coordinator")
_PROCESS_ID = flags.DEFINE_integer("process_id", None, "number of this process from 0, with --coordinator")
_CONFIG = config_flags.DEFINE_config_file(
    "config", None, "configs/NAME.py:LEARNER; fields are changed with --config.a.b=value")


def main(argv=None):
  """Runs the command line; returns the exit code."""
  try:
    config = _parse_flags(sys.argv if argv is None else argv)
    return 0 if config is None else _run(config)
  except BadInput as error:
    print(f"error: {error}", file=sys.stderr)
    return 2
  except Diverged as error:
    print(f"error: {error}", file=sys.stderr)
    return 1


def _parse_flags(argv):
  """RunConfig, or None when help was asked for.

  Raises:
    BadInput: whatever absl or ml_collections would have made of it.
  """
  if any(arg in ("-h", "--help", "-help") for arg in argv[1:]):
    print(__doc__.strip() + "\n\n" + _FLAGS.main_module_help())
    return None
  try:
    rest = _FLAGS(argv)
  except flags.Error as error:
    raise BadInput(_sentence(error)) from error
  except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
    if isinstance(error, BadInput):
      raise
    raise BadInput(_sentence(error)) from error
  if rest[1:]:
    raise BadInput(f"unexpected argument {rest[1]!r}; options start with --, as in --config=configs/digits.py:ens.")
  return configs.parse(_CONFIG.value or configs.base())


def _sentence(error):
  text = " ".join(str(error).split())
  return text if text.endswith(".") else text + "."


def _run(config):
  stopping = []
  for number in (signal.SIGTERM, signal.SIGINT):
    signal.signal(number, lambda number, frame: stopping.append(number))
  from alma_jax import experiment, sharding  # jax only now: --help stays quick

  warnings.showwarning = lambda message, *unused, **named: print(f"warning: {message}", file=sys.stderr)
  sharding.initialize(_COORDINATOR.value, _NUM_PROCESSES.value, _PROCESS_ID.value)
  try:
    run = experiment.run(config, _WORKDIR.value, overwrite=_OVERWRITE.value, should_stop=lambda: bool(stopping))
  except Stopped as stopped:
    experiment.say(str(stopped))
    return 143 if signal.SIGTERM in stopping else 1
  if sharding.is_main():
    print(_report(run))
  return 0


def _report(run):
  s = run.summary
  return (f"CER {s['cer']:.4f} over {len(run.metrics['t'])} mega-batches, mean error {s['mean_error']:.4f}, "
          f"final error {s['final_error']:.4f}\n"
          f"parameters held {s['cumulative_params']:,}, forward multiply-adds {s['cumulative_fwd_macs']:,}, "
          f"training flops {s['cumulative_train_flops']:,}\n"
          f"{s['num_stages']} stages in {s['wall_seconds']:.1f} s, {s['compile_seconds']:.1f} s of it compiling, "
          f"on {s['device']}\n{run.path}")


if __name__ == "__main__":
  sys.exit(main())
