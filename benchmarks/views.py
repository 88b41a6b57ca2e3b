"""What test-time augmentation is worth: CER and final error of a run if it predicted from several views of an image.

    alma run --config=CONFIG --config.checkpoint.keep_every=1 --config.train.test_augment=false --workdir RUN
    python benchmarks/views.py held_out.npz RUN [--flip]

Give it the npz file that the run trained on. The logits of the views are averaged. A view is shifted by rows and
columns of pixels (1,1: up and left by one), with mirrored edges. --flip adds flipped views.
"""
import argparse
import functools

import numpy as np

import alma_jax

ALL = [(i, j) for i in (0, -1, 1) for j in (0, -1, 1)]
MOVES = {
    "the image": [(0, 0)], "and 1,1": [(0, 0), (1, 1)], "and -1,-1": [(0, 0), (-1, -1)], "and 0,1": [(0, 0), (0, 1)],
    "and 1,1 and -1,-1": [(0, 0), (1, 1), (-1, -1)], "and 1,-1 and -1,1": [(0, 0), (1, -1), (-1, 1)],
    "all nine": ALL}


def main(data: str, folder: str, flip: bool) -> None:
  run, test = alma_jax.load_run(folder), np.load(data)
  x, y = test["x_test"], test["y_test"]
  x = x[..., None] if x.ndim == 3 else x
  wide = np.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)), mode="reflect")
  kinds = {name: [(*move, False) for move in moves] for name, moves in MOVES.items()}
  if flip:
    kinds |= {"and 1,1 flipped": [(0, 0, False), (1, 1, True)]}
    kinds |= {f"{name}, both also flipped": [(*move, flipped) for move in moves for flipped in (False, True)]
              for name, moves in MOVES.items()}
  updates = [line for line in run.lines if line["updated"]]
  ends = [*(line["t"] for line in updates), len(run.lines) + 1]
  cer, errors = dict.fromkeys(kinds, 0.0), dict.fromkeys(kinds, 1.0)
  for line, t, later in zip(updates, ends, ends[1:]):
    @functools.cache
    def logits(row: int, column: int, flipped: bool, stage: int = line["stage"]) -> np.ndarray:
      view = wide[:, 1 + row:1 + row + x.shape[1], 1 + column:1 + column + x.shape[2]]
      return np.log(np.maximum(run.predict(view[:, :, ::-1] if flipped else view, stage=stage), 1e-12))

    for name, views in kinds.items():
      errors[name] = float((sum(logits(*view) for view in views).argmax(-1) != y).mean())
      cer[name] += errors[name] * (later - t)
  for name in kinds:
    print(f"{name:40} {len(kinds[name]):2} views   CER {cer[name]:.3f}   final error {errors[name]:.4f}")


if __name__ == "__main__":
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("data")
  parser.add_argument("run")
  parser.add_argument("--flip", action="store_true")
  given = parser.parse_args()
  main(given.data, given.run, given.flip)
