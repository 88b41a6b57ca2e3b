"""Compares CER with that of the authors' PyTorch code, with the settings of that run.

    python benchmarks/parity.py --data_dir ~/tensorflow_datasets

MNIST, 50 mega-batches, waiting time 1, 10 epochs, no early stopping. The authors' code at width 32 with seed 0 reached
CER 3.053 for SM (last error 0.0478) and 2.319 for Ens of 5 (0.0313). At width 4 the order should be SM > Ens > UMix
with added logits.
"""
import argparse
import statistics
import tempfile

from ml_collections import ConfigDict

import alma_jax
from alma_jax import config as configs

AUTHORS = {"sm": (3.053, 0.0478), "ens": (2.319, 0.0313)}  # CER, final error


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("--data_dir", default="", help="folder of prepared TFDS data sets")
  parser.add_argument("--seeds", type=int, default=3)
  args = parser.parse_args()
  for width, learners in ((32, ("sm", "ens")), (4, ("sm", "ens", "umix"))):
    for learner in learners:
      with tempfile.TemporaryDirectory() as folder:
        runs = [alma_jax.run(config(learner, width, seed, args.data_dir), f"{folder}/{seed}").summary
                for seed in range(args.seeds)]
      cers = [run["cer"] for run in runs]
      text = (f"width {width:2d} {learner:4s} CER {statistics.mean(cers):.3f} "
              f"({', '.join(f'{cer:.3f}' for cer in cers)}), final error "
              f"{statistics.mean(run['final_error'] for run in runs):.4f}")
      if width == 32:
        cer, final = AUTHORS[learner]
        text += f"; authors {cer:.3f}, {final:.4f}: {100 * (statistics.mean(cers) / cer - 1):+.1f}% in CER"
      print(text, flush=True)


def config(learner: str, width: int, seed: int, data_dir: str) -> ConfigDict:
  """The config of one run."""
  c = configs.base(learner)
  c.update_from_flattened_dict({
      "seed": seed, "dataset.name": "mnist", "dataset.data_dir": data_dir, "stream.num_megabatches": 50,
      "stream.waiting_time": 1, "model.width": width, "train.epochs": 10, "train.patience": 0,
      "log.progress": False, "log.tensorboard": False})
  if learner == "umix":
    c.learner.combine = "sum"
  return c


if __name__ == "__main__":
  main()
