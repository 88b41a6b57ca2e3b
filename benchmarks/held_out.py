"""Writes an npz file in which a part of a data set's training images stands for its test set.

    python benchmarks/held_out.py --name=mnist --data_dir=DIR --held_out=10000 --out=held_out.npz

Choices of numbers are made on such data: no test image is in the file.
"""
import argparse

import numpy as np

from alma_jax.data import datasets


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("--name", default="mnist", help="as dataset.name")
  parser.add_argument("--data_dir", default="", help="as dataset.data_dir")
  parser.add_argument("--held_out", type=int, default=10_000, help="number of images that are held out")
  parser.add_argument("--out", default="held_out.npz")
  args = parser.parse_args()
  data = datasets.load(args.name, args.data_dir)
  order = np.random.default_rng(0).permutation(len(data.x_train))
  test, train = np.split(order, [args.held_out])
  np.savez(args.out, x_train=data.x_train[train], y_train=data.y_train[train], x_test=data.x_train[test],
           y_test=data.y_train[test])
  print(f"{args.out}: {len(train)} images to train on and {len(test)} held out, of the training images of {args.name}")


if __name__ == "__main__":
  main()
