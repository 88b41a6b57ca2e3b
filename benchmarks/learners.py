"""Runs every learner on one stream and prints a table sorted by CER.

    python benchmarks/learners.py
    python benchmarks/learners.py --config=configs/mnist.py --learners sm gens gmoe ff \\
        --config.model.width=4 --config.learner.grow_every=5 --config.dataset.data_dir=~/tensorflow_datasets

Runs `python -m alma_jax.main --config=CONFIG:LEARNER` once for each learner, one after the other. Further arguments are
passed on, --config.learner.* only to learners that have the field. Prints a Markdown table of CER, final error,
cumulative parameters and multiply-adds, and seconds. With --workdir the run folders are kept there, and finished ones
are not run again.
"""
import argparse
import dataclasses
import json
import pathlib
import subprocess
import sys
import tempfile
from collections.abc import Sequence

from alma_jax.config.registry import LEARNERS

COLUMNS = {"cer": "CER", "final_error": "final error", "cumulative_params": "parameters",
           "cumulative_fwd_macs": "multiply-adds", "wall_seconds": "seconds"}
FORMATS = dict(zip(COLUMNS, ("{:.3f}", "{:.4f}", "{:.2e}", "{:.2e}", "{:.0f}")))


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter,
                                   allow_abbrev=False)
  parser.add_argument("--config", default="configs/digits.py")
  # Without a part of `alma apart`, and the two networks for streams that change.
  names = ["anytime", *(name for name in LEARNERS["images"] if name not in ("expert", "dual"))]
  parser.add_argument("--learners", nargs="+", default=names, choices=names)
  parser.add_argument("--workdir", help="folder of the run folders; default: a temporary one")
  args, flags = parser.parse_known_args()
  with tempfile.TemporaryDirectory() as folder:
    table(args.config, args.learners, pathlib.Path(args.workdir or folder), flags)


def table(file: str, learners: Sequence[str], folder: pathlib.Path, flags: Sequence[str]) -> None:
  """Runs the learners that are not finished and prints the table."""
  rows = {}
  for learner in learners:
    mine = [flag for flag in flags if _has(learner, flag)]
    command = [sys.executable, "-m", "alma_jax.main", f"--config={file}:{learner}", f"--workdir={folder / learner}"]
    done = subprocess.run([*command, *mine], capture_output=True, text=True, check=False)
    if done.returncode:
      sys.exit(f"{learner}: {done.stderr.strip().splitlines()[-1]}")
    rows[learner] = json.loads((folder / learner / "summary.json").read_text())
  print("| learner | " + " | ".join(COLUMNS.values()) + " |")
  print("| --- |" + " --- |" * len(COLUMNS))
  for learner, row in sorted(rows.items(), key=lambda item: item[1]["cer"]):
    print(f"| `{learner}` | " + " | ".join(FORMATS[key].format(row[key]) for key in COLUMNS) + " |", flush=True)


def _has(learner: str, flag: str) -> bool:
  """Whether a learner takes a flag: it has the field, or the flag is not one of --config.learner.*."""
  prefix = "--config.learner."
  field = flag.partition("=")[0].removeprefix(prefix)
  name = "sm" if learner == "anytime" else learner  # whose recipe it is
  return not flag.startswith(prefix) or field in {f.name for f in dataclasses.fields(LEARNERS["images"][name])}


if __name__ == "__main__":
  main()
