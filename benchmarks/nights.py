"""Drops MNIST into a folder night by night, while a live run is killed and started again.

    python benchmarks/nights.py [--data_dir=DIR] [--nights=30] [--picture=docs/images/nights.png] [--keep=DIR]

A night brings 500 images. The digits 8 and 9 first appear in night 8. From night 21 on the images are inverted, as if
the scanner had been replaced. The upload of night 12 is torn and repeated. The run is killed (SIGKILL) in nights 5, 13
and 22, at a random moment. At the end a second run over the same folder, without kills, shows that nothing was
lost.
"""
import argparse
import json
import pathlib
import random
import subprocess
import sys
import tempfile
import time

import numpy as np

from alma_jax.data import datasets

SIZE, NEW, INVERTED, TORN, KILLED = 500, 8, 21, 12, (5, 13, 22)


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("--data_dir", default="", help="folder of prepared TFDS data sets")
  parser.add_argument("--nights", type=int, default=30)
  parser.add_argument("--picture", default="", help="where the picture is written")
  parser.add_argument("--keep", default="", help="an empty folder for the stream and the runs, which are kept")
  options = parser.parse_args()
  with tempfile.TemporaryDirectory() as temporary:
    folder = pathlib.Path(options.keep or temporary)
    mnist = datasets.load("mnist", options.data_dir)
    (folder / "stream").mkdir(parents=True)
    np.savez(folder / "test.npz", x=mnist.x_test[:2000], y=mnist.y_test[:2000])
    arrived = drop_all(folder, mnist, options.nights)
    report(folder, arrived)
    print("killed and resumed, the run has the lines of one that was not:", same(folder / "run", folder / "again"))
    if options.picture:
      draw(folder / "run", pathlib.Path(options.picture))


def drop_all(folder: pathlib.Path, mnist: datasets.Dataset, nights: int) -> dict[int, float]:
  """Runs the nights; returns when each of them arrived, in seconds since the epoch."""
  rng, moment = np.random.default_rng(0), random.Random(0)
  early, rest = (list(rng.permutation(np.flatnonzero(which))) for which in (mnist.y_train < 8, mnist.y_train >= 0))
  process, arrived = start(folder, "run"), {}
  for night in range(1, nights + 1):
    source = early if night < NEW else rest
    part, source[:SIZE] = np.array(source[:SIZE]), []
    x = mnist.x_train[part]
    name = f"night-{night:03d}.npz"
    if night == TORN:
      (folder / "stream" / name).write_bytes(b"PK torn upload")
      wait(lambda: (folder / "run" / "rejected.jsonl").exists())
      (folder / "stream" / name).unlink()
    np.savez(folder / "stream" / f".{name}", x=255 - x if night >= INVERTED else x, y=mnist.y_train[part])
    time.sleep(0.5)
    (folder / "stream" / f".{name}").rename(folder / "stream" / name)
    arrived[night] = time.time()
    if night in KILLED:
      time.sleep(moment.uniform(0.3, 2))
      process.kill()
      process.wait()
      process = start(folder, "run")
    wait(lambda night=night: count(folder / "run") >= night)
  (folder / "end").touch()
  process.wait()
  start(folder, "again").wait()
  return arrived


def start(folder: pathlib.Path, run: str) -> subprocess.Popen:
  return subprocess.Popen([
      sys.executable, "-m", "alma_jax.main", "--config=configs/live.py:anytime", f"--config.dataset.name=live:{folder}",
      f"--workdir={folder / run}"])


def count(run: pathlib.Path) -> int:
  path = run / "metrics.jsonl"
  return path.read_bytes().count(b"\n") if path.exists() else 0


def wait(done) -> None:
  while not done():
    time.sleep(0.02)


def lines(run: pathlib.Path) -> list[dict]:
  return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def report(folder: pathlib.Path, arrived: dict[int, float]) -> None:
  found = lines(folder / "run")
  for line in found:
    extra = {key: value for key, value in line.items() if key.startswith(("drift", "new_"))}
    print(f"night {line['t']:2}: prequential error {line['prequential_error']}, test error {line['error']:.4f}, "
          f"{line['seconds']:.1f} s {extra or ''}")
  print("set aside:", (folder / "run" / "rejected.jsonl").read_text().strip())


def same(first: pathlib.Path, second: pathlib.Path) -> bool:
  clean = lambda run: [{key: value for key, value in line.items() if key != "seconds"} for line in lines(run)]
  return clean(first) == clean(second)


def draw(run: pathlib.Path, path: pathlib.Path) -> None:
  import matplotlib
  matplotlib.use("Agg")
  from matplotlib import pyplot as plt

  found = lines(run)
  t = [line["t"] for line in found]
  figure, axes = plt.subplots(figsize=(8, 3.6), layout="constrained")
  axes.plot(t, [line["prequential_error"] for line in found], "o-", ms=3, label="prequential error of the night")
  axes.plot(t, [line["error"] for line in found], "-", label="error on the fixed test set")
  marks = [("killed and resumed", "tab:gray", ":", KILLED), ("new classes", "tab:green", "--", [
      line["t"] for line in found if "new_classes" in line]), ("drift alarm", "tab:red", "-", [
          line["t"] for line in found if "drift_after" in line])]
  for label, color, style, nights in marks:
    for i, night in enumerate(nights):
      axes.axvline(night, color=color, ls=style, lw=1, zorder=0, label=label if not i else None)
  axes.set(xlabel="night", ylabel="error", ylim=(0, 1), xlim=(0.5, len(t) + 0.5))
  axes.spines[["top", "right"]].set_visible(False)
  axes.legend(frameon=False)
  figure.savefig(path, dpi=150)


if __name__ == "__main__":
  main()
