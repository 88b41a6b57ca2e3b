"""Measures the time and memory of a report on 1,000 runs of 500 mega-batches.

    python benchmarks/report.py

Writes run folders with random errors, without training, into a temporary folder, and runs
`python -m alma_jax.report` on them.
"""
import argparse
import json
import pathlib
import resource
import subprocess
import sys
import tempfile
import time

import numpy as np

from alma_jax import config
from alma_jax.store import metrics, run_files
from alma_jax.types import Cost

LEARNERS, WIDTHS = ("sm", "ens", "umix", "gens", "gmoe"), (4, 8, 32, 64)
WAITS = (1, 2, 5, 10, 20, 50, 100, 200, 250, 500)


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("--seeds", type=int, default=5, help="seeds of each of the 200 kinds of runs")
  parser.add_argument("--megabatches", type=int, default=500)
  args = parser.parse_args()
  with tempfile.TemporaryDirectory() as folder:
    runs, out = pathlib.Path(folder) / "runs", pathlib.Path(folder) / "report"
    num = 0
    for seed in range(args.seeds):
      for learner in LEARNERS:
        for width in WIDTHS:
          for wait in WAITS:
            write_run(runs / str(num), learner, width, wait, seed, args.megabatches)
            num += 1
    start = time.monotonic()
    subprocess.run([sys.executable, "-m", "alma_jax.report", str(runs), "--out", str(out)], check=True)
    seconds = time.monotonic() - start
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 2**20
    page = (out / "index.html").stat().st_size / 2**20
  print(f"{num} runs of {args.megabatches} mega-batches: {seconds:.1f} s, {peak:.2f} GiB, a page of {page:.1f} MiB")


def write_run(path: pathlib.Path, learner: str, width: int, wait: int, seed: int, num: int) -> None:
  """Writes the folder of a finished run of `num` mega-batches."""
  c = config.base(learner)
  c.dataset.name, c.stream.num_megabatches, c.stream.waiting_time = "mnist", num, wait
  c.model.width, c.seed = width, seed
  rng = np.random.default_rng([seed, width, wait, LEARNERS.index(learner)])
  lines: list[metrics.Entry] = []
  cost = Cost(100 * width, 10**3 * width, 10**4 * width, 10**3 * width)
  for t in range(1, num + 1):
    if t % wait:
      lines.append(metrics.waiting("error", t, lines[-1] if lines else None, 0.9, cost))
    else:
      error = float(rng.uniform(0.5, 1) / (1 + t) ** 0.5)
      lines.append(metrics.line("error", t, t // wait, True, error, error, error, cost.num_params, 10**6 * width,
                                10**7, predict_macs=cost.predict_macs))
  path.mkdir(parents=True)
  (path / "config.json").write_text(json.dumps(c.to_dict() | {
      "data_fingerprint": "0" * 64, "format": run_files.FORMAT}))
  (path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
  summary = metrics.summarize(lines, 100 * width) | dict(
      wall_seconds=1.0, compile_seconds=1.0, device="cpu", config_sha256=config.digest(c.to_dict()))
  (path / "summary.json").write_text(json.dumps(summary))


if __name__ == "__main__":
  main()
