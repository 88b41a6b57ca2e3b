"""Kills a run with SIGKILL at random moments, resumes it, and compares the ends.

    python benchmarks/kill.py --config=configs/digits.py:ens --kills=10
    python benchmarks/kill.py --config=configs/mnist.py:ens --kills=10 \\
        --config.train.epochs=20 --config.checkpoint.seconds=1

Runs the command once without interruption, then again in another folder,
killed after a random time and started again, --kills times. Exits 0 if every
field of metrics.jsonl, train.jsonl and summary.json but the seconds is equal.
"""
import argparse
import json
import pathlib
import random
import shutil
import subprocess
import sys
import tempfile
import time


def main():
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("--kills", type=int, default=10)
  parser.add_argument("--seed", type=int, default=0)
  args, rest = parser.parse_known_args()
  if not any(arg.startswith("--config.checkpoint.seconds") for arg in rest):
    rest.append("--config.checkpoint.seconds=0.3")
  with tempfile.TemporaryDirectory() as folder:
    sys.exit(compare(rest, pathlib.Path(folder), args.kills, random.Random(args.seed)))


def compare(flags, folder, kills, rng):
  """Returns 0 if the killed run ends as the uninterrupted one."""
  command = [sys.executable, "-m", "alma_jax.main", *flags, "--workdir"]
  whole, killed = folder / "whole", folder / "killed"
  subprocess.run([*command, whole], check=True, capture_output=True)  # also warms the compilation cache
  start = time.monotonic()
  subprocess.run([*command, whole, "--overwrite"], check=True, capture_output=True)
  length = time.monotonic() - start
  print(f"uninterrupted: {length:.1f} s", flush=True)
  done, different = 0, []
  while done < kills:
    process = subprocess.Popen([*command, killed], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    wait = length * rng.uniform(0.3, 0.95)
    try:
      process.wait(wait)
    except subprocess.TimeoutExpired:
      process.kill()
    message = [line for line in process.communicate()[1].splitlines() if line.startswith(("running", "resuming"))]
    if process.returncode == 0:
      print("came to its end before the kill: compared, and started anew", flush=True)
      different += differences(whole, killed)
      shutil.rmtree(killed)
      continue
    done += 1
    print(f"kill {done} after {wait:.1f} s: {message[0] if message else 'nothing said yet'}, then "
          f"{_count(killed / 'metrics.jsonl')} mega-batches, {_count(killed / 'train.jsonl')} epochs", flush=True)
  subprocess.run([*command, killed], check=True, capture_output=True)
  different += differences(whole, killed)
  print("\n".join(different) or f"equal after {kills} kills: metrics.jsonl, train.jsonl and summary.json")
  return bool(different)


def differences(first, second):
  """Sentences on what differs between two run folders, times aside."""
  found = []
  for name in ("metrics.jsonl", "train.jsonl", "summary.json"):
    texts = [(folder / name).read_text() for folder in (first, second)]
    entries = [[json.loads(text)] if name.endswith(".json") else [json.loads(line) for line in text.splitlines()]
               for text in texts]
    if len(entries[0]) != len(entries[1]):
      found.append(f"{name}: {len(entries[0])} lines, then {len(entries[1])}")
    for i, (a, b) in enumerate(zip(*entries)):
      keys = [key for key in a.keys() | b.keys() if not key.endswith("seconds") and a.get(key) != b.get(key)]
      if keys:
        found.append(f"{name}, line {i + 1}: {', '.join(f'{key} {a.get(key)} != {b.get(key)}' for key in keys)}"[:300])
        break
  return found


def _count(path):
  return len(path.read_bytes().splitlines()) if path.exists() else 0


if __name__ == "__main__":
  main()
