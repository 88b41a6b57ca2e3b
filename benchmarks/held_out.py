"""Writes an npz file in which a part of a data set's training images stands for its test set.

    python benchmarks/held_out.py --name=mnist --data_dir=DIR --held_out=10000 --out=held_out.npz
    python benchmarks/held_out.py --name=cifar10 --change=noise40 --out=noise40.npz

Choose hyper-parameters on it: the file has no test image. `--change` derives other data from it:

    grey      the images without colour
    noise20   20 % of the training labels are random
    noise40   40 % of them
    large     20,000 training and 4,000 test images, enlarged to 64x64 pixels
    pairs     100 classes: 40,000 training and 10,000 test pairs of images side by side, without 4 columns on each side
"""
import argparse
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from PIL import Image

from alma_jax.data import datasets


class Split(NamedTuple):
  """Images uint8 [N, H, W, C] and labels int [N]."""
  x_train: np.ndarray
  y_train: np.ndarray
  x_test: np.ndarray
  y_test: np.ndarray


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("--name", default="mnist", help="as dataset.name")
  parser.add_argument("--data_dir", default="", help="as dataset.data_dir")
  parser.add_argument("--held_out", type=int, default=10_000, help="number of images that are held out")
  parser.add_argument("--change", choices=CHANGES, help="changes the data, see above")
  parser.add_argument("--out", default="held_out.npz")
  args = parser.parse_args()
  data = datasets.load(args.name, args.data_dir)
  order = np.random.default_rng(0).permutation(len(data.x_train))
  test, train = np.split(order, [args.held_out])
  split = Split(data.x_train[train], data.y_train[train], data.x_train[test], data.y_train[test])
  if args.change:
    split = CHANGES[args.change](split, np.random.default_rng(0))
  np.savez(args.out, **split._asdict())
  print(f"{args.out}: {len(split.y_train)} images to train on and {len(split.y_test)} held out, of the training images "
        f"of {args.name}")


def grey(split: Split, rng: np.random.Generator) -> Split:
  del rng
  weigh = lambda x: (x.astype(np.float32) @ np.float32([0.299, 0.587, 0.114])).round().astype(np.uint8)[..., None]
  return split._replace(x_train=weigh(split.x_train), x_test=weigh(split.x_test))


def noise(share: float) -> Callable[[Split, np.random.Generator], Split]:
  def change(split: Split, rng: np.random.Generator) -> Split:
    y, is_random = split.y_train.copy(), rng.random(len(split.y_train)) < share
    y[is_random] = rng.integers(0, y.max() + 1, is_random.sum())
    return split._replace(y_train=y)
  return change


def large(split: Split, rng: np.random.Generator) -> Split:
  del rng
  enlarged = lambda x: np.stack([np.asarray(Image.fromarray(image).resize((64, 64), Image.Resampling.BICUBIC))
                                 for image in x])
  return Split(enlarged(split.x_train[:20_000]), split.y_train[:20_000], enlarged(split.x_test[:4000]),
               split.y_test[:4000])


def pairs(split: Split, rng: np.random.Generator) -> Split:
  def paired(x: np.ndarray, y: np.ndarray, num: int) -> tuple[np.ndarray, np.ndarray]:
    i, j = rng.permutation(len(x))[:num], rng.permutation(len(x))[:num]
    return np.concatenate([x[i][:, :, 4:-4], x[j][:, :, 4:-4]], 2), 10 * y[i] + y[j]
  return Split(*paired(split.x_train, split.y_train, 40_000), *paired(split.x_test, split.y_test, 10_000))


CHANGES = {"grey": grey, "noise20": noise(0.2), "noise40": noise(0.4), "large": large, "pairs": pairs}


if __name__ == "__main__":
  main()
