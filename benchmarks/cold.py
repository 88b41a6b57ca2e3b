"""Where the time of a cold start goes: seconds of lowering and compiling, by function, from an empty cache.

    python benchmarks/cold.py digits:ens
    python benchmarks/cold.py mnist:gmoe --config.stream.num_megabatches=50 --config.train.epochs=10

Runs a config in this process, and reads the messages of jax_log_compiles. The arguments are those of a run.
"""
import argparse
import collections
import logging
import os
import re
import tempfile
import time

PHASES = {"lowering": r"Finished jaxpr to MLIR module conversion (?:jit\()?(.*?)\)? in ([0-9.e-]+) sec",
          "compiling": r"Finished XLA compilation of (?:jit\()?(.*?)\)? in ([0-9.e-]+) sec"}


class Counter(logging.Handler):
  """Adds up the seconds of each (phase, function)."""

  def __init__(self) -> None:
    super().__init__()
    self.seconds: dict[tuple[str, str], float] = collections.Counter()
    self.times: dict[tuple[str, str], int] = collections.Counter()

  def emit(self, record: logging.LogRecord) -> None:
    for phase, pattern in PHASES.items():
      if found := re.search(pattern, record.getMessage()):
        self.seconds[phase, found[1]] += float(found[2])
        self.times[phase, found[1]] += 1


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter,
                                   allow_abbrev=False)
  parser.add_argument("config", help="CONFIG:LEARNER")
  args, flags = parser.parse_known_args()
  began = time.monotonic()
  with tempfile.TemporaryDirectory() as folder:
    os.environ["XDG_CACHE_HOME"] = folder
    import jax

    from alma_jax import main as command
    counter = Counter()
    jax.config.update("jax_log_compiles", True)
    logger = logging.getLogger("jax")
    logger.handlers, logger.propagate = [counter], False
    command.main([f"--config={args.config}", f"--workdir={folder}/run", *flags])
  print(f"{time.monotonic() - began:.1f} s in all; " + ", ".join(
      f"{phase} {sum(s for (name, _), s in counter.seconds.items() if name == phase):.2f} s" for phase in PHASES))
  print(f"{'function':32} {'phase':10} {'times':>5} {'seconds':>8}")
  for (phase, function), seconds in sorted(counter.seconds.items(), key=lambda item: -item[1])[:20]:
    print(f"{function[:32]:32} {phase:10} {counter.times[phase, function]:5} {seconds:8.2f}")


if __name__ == "__main__":
  main()
