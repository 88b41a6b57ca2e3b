"""Measures how long growing takes relative to the training of a stage.

    python benchmarks/growth.py --data_dir ~/tensorflow_datasets
    python benchmarks/growth.py --config=configs/cifar.py --data_dir ~/tensorflow_datasets --width=8

Prints for gmoe and ff the seconds of the second stage's growth and of its training at 100 epochs (estimated from a
few), both without compilation, and their ratio.
"""
import argparse
import runpy
import time

import jax

from alma_jax import config as configs
from alma_jax.config import schema
from alma_jax.learners import contract
from alma_jax.parallel import runtime
from alma_jax.runs import settings
from alma_jax.training import loop

EPOCHS, TIMED = 100, 3


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("--config", default="configs/mnist.py")
  parser.add_argument("--data_dir", default="", help="folder of prepared TFDS data sets")
  parser.add_argument("--width", type=int, default=32)
  args = parser.parse_args()
  for learner in ("gmoe", "ff"):
    config = runpy.run_path(args.config)["get_config"](learner)
    config.update_from_flattened_dict({"dataset.data_dir": args.data_dir, "model.width": args.width,
                                       "train.epochs": TIMED, "train.patience": 0})
    measure(configs.parse(config))


def measure(config: schema.RunConfig) -> None:
  """Prints a line for one learner."""
  runtime.setup(config, alone=True)
  setting = settings.prepare(config)
  learner, ends = setting.learner, setting.protocol.expected_ends
  first, second = (setting.protocol.stage(ends[:number], learner, {}).data for number in (1, 2))
  state = train(learner, learner.init(), first)
  learner.grow(state, second)  # compiles
  began = time.perf_counter()
  grown, _ = learner.grow(state, second)
  jax.block_until_ready(grown.live)
  growth = time.perf_counter() - began
  train(learner, grown, second)  # compiles
  began = time.perf_counter()
  train(learner, grown, second)
  training = (time.perf_counter() - began) * EPOCHS / TIMED
  print(f"{config.dataset.name} {config.learner.name}: growth {growth:.2f} s, {EPOCHS} epochs {training:.1f} s, "
        f"ratio {growth / training:.3f}", flush=True)


def train(learner: contract.Learner, state: contract.LearnerState, data: loop.StageData) -> contract.LearnerState:
  """The state after the training of a stage."""
  fit = loop.begin(learner.training(state, data))
  while fit.cursor < loop.num_steps(fit):
    fit, records = loop.advance(fit, 64)
    loop.read(fit, records)
  return learner.finish(state, data, loop.finish(fit)).state


if __name__ == "__main__":
  main()
