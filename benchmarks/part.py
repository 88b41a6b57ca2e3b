"""Writes a part of a text: whole training documents, as many as fit, and all of the others.

    python benchmarks/part.py --text=books --megabytes=6 --out=part

`--text` is a folder with train/, valid/ and test/, see dataset.name=text:DIR. The training documents are taken in an
order that is drawn once for all; a document that does not fit is skipped.
"""
import argparse
import pathlib
import shutil

import numpy as np


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("--text", required=True, help="folder with train/, valid/ and test/")
  parser.add_argument("--megabytes", type=float, default=6.0, help="of training documents, at most")
  parser.add_argument("--out", default="part", help="folder of the part; it must not exist")
  args = parser.parse_args()
  text, out = pathlib.Path(args.text), pathlib.Path(args.out)
  files = sorted((text / "train").glob("*.txt"))
  size, num = 0, 0
  (out / "train").mkdir(parents=True)
  for i in np.random.default_rng(0).permutation(len(files)):
    if size + files[i].stat().st_size <= 1e6 * args.megabytes:
      shutil.copyfile(files[i], out / "train" / files[i].name)
      size, num = size + files[i].stat().st_size, num + 1
  for split in ("valid", "test"):
    shutil.copytree(text / split, out / split)
  print(f"{out}: {num} of {len(files)} training documents, {size / 1e6:.2f} MB")


if __name__ == "__main__":
  main()
