"""How soon drift alarms come, and how often there is a false one, on simulated mega-batches.

    python benchmarks/drift.py

Errors of images fall from 0.33 to 0.05, and jump to 0.25 after 200 mega-batches. Losses of text fall from 6.5 to 4.7
nats per token of a vocabulary of 8,192. Those of the windows of a mega-batch scatter by 0.6 nats around the mean of
the mega-batch, which scatters by 0.2 nats because of its topic, and jump after 200 mega-batches.
"""
import math
import sys

import numpy as np

from alma_jax import commands
from alma_jax.protocols import drift
from alma_jax.store import metrics

TRIALS, BEFORE, AFTER, DELTA, VOCABULARY = 20, 200, 50, 0.002, 8192


def images(rng: np.random.Generator, t: int, size: int, error: float) -> metrics.Entry:
  rate = error if t > BEFORE else 0.05 + 0.28 / t
  return {"prequential_error": rng.binomial(size, rate) / size}


def texts(rng: np.random.Generator, t: int, size: int, jump: float) -> metrics.Entry:
  mean = 4.5 + 2 * t ** -0.5 + rng.normal(0, 0.2) + (jump if t > BEFORE else 0)
  losses = rng.normal(mean, 0.6, size)
  return {"prequential_perplexity": math.exp(losses.mean()), metrics.DEVIATION: losses.std()}


def report(what: str, simulated, size: int, shift: float, *kind) -> None:
  false, delays = 0, []
  for trial in range(TRIALS):
    rng, detector = np.random.default_rng(trial), drift.Detector(DELTA, *kind)
    alarms = [t for t in range(1, BEFORE + AFTER + 1) if detector.update(simulated(rng, t, size, shift), size)]
    false += sum(t <= BEFORE for t in alarms)
    delays.append(next((t - BEFORE for t in alarms if t > BEFORE), math.inf))
  print(f"{what}, {size} a mega-batch: alarms after {min(delays)} to {max(delays)} mega-batches, the median "
        f"{np.median(delays):g}; {false} false alarms in {TRIALS * BEFORE:,} mega-batches")


def main() -> None:
  commands.Parser("benchmarks/drift.py", __doc__).parse_args()
  for size in (20, 60, 1200):
    report("images, error 0.05 to 0.25", images, size, 0.25)
  for jump in (0.5, 1.0, 2.0):
    for size in (4, 16, 64, 1000):
      report(f"text, loss +{jump} nats", texts, size, jump, "prequential_perplexity", math.log(VOCABULARY))


if __name__ == "__main__":
  sys.exit(commands.exit_code(main))
