"""Bytes exchanged and wall time of experts that are trained apart, by 1, 2 and 4 workers.

    python benchmarks/apart.py --config=configs/digits.py:hmoe
    python benchmarks/apart.py --config=configs/mnist.py:hmoe --config.model.num_experts=8 \\
        --config.stream.num_megabatches=1 --config.stream.waiting_time=1 --config.train.epochs=10

Runs `alma apart` in a folder of its own for every number of workers. Each line says how long the base network and the
experts took, what was published, what each expert has read of it, and what the experts have written; nothing else goes
from one process to another. For comparison it says what the same training steps would send if every worker trained on
a part of each batch and the gradients were added around a ring: 2 (n - 1) times the parameters, 4 bytes each, in every
step of an expert. It is an error if the mixtures of different numbers of workers are not equal to the bit.
"""
import argparse
import pathlib
import sys
import tempfile
import time

from kill import finished

from alma_jax.runs.mixture import MANIFEST
from alma_jax.store import run_files


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("--config", default="configs/digits.py:hmoe")
  parser.add_argument("--workers", type=int, nargs="+", default=[1, 2, 4])
  args, rest = parser.parse_known_args()
  manifests = []
  print("workers  base s  experts s  test error  published B  read B in all  written B  ring would send B")
  with tempfile.TemporaryDirectory() as folder:
    for number in args.workers:
      root = pathlib.Path(folder) / str(number)
      began = time.time()
      finished([sys.executable, "-m", "alma_jax.apart", f"--config={args.config}", f"--workers={number}",
                f"--workdir={root}", *rest])
      took, manifest = time.time() - began, run_files.read_json(root / MANIFEST)
      manifests.append(manifest)
      gate, experts = manifest["gate"], manifest["experts"]
      base = (root / gate["file"]).stat().st_mtime - began
      written = sum(4 * entry["num_params"] for entry in experts)
      ring = sum(2 * (number - 1) * 4 * entry["num_params"] * _steps(root / entry["folder"]) for entry in experts)
      print(f"{number:>7}  {base:>6.1f}  {took - base:>9.1f}  {manifest.get('test_error', float('nan')):>10.4f}  "
            f"{gate['bytes']:>11,}  {gate['bytes'] * len(experts):>13,}  {written:>9,}  {ring:>17,}", flush=True)
  if any(manifest["experts"] != manifests[0]["experts"] for manifest in manifests):
    sys.exit("the experts of different numbers of workers differ")


def _steps(folder: pathlib.Path) -> int:
  """A lower bound of the training steps of a run: its examples in full batches."""
  config = run_files.read_json(folder / "config.json")
  line = run_files.read_lines(folder / run_files.METRICS)
  spent = sum(entry["fwd_macs"] - (entry["growth_macs"] or 0) for entry in line)
  return spent // line[-1]["predict_macs"] // config["train"]["batch_size"]


if __name__ == "__main__":
  main()
