"""Kills a run with SIGKILL after random numbers of mega-batches, resumes it, and compares it with an uninterrupted run.

    python tests/slow/kill.py --config=configs/digits.py:ens --kills=10
    python tests/slow/kill.py --config=configs/mnist.py:ens --kills=10 \\
        --config.train.epochs=20 --config.checkpoint.seconds=1

Runs the command once without interruption. Then runs it in another folder, kills it and starts it again, --kills times.
Exits with 0 if all fields of metrics.jsonl, train.jsonl and summary.json are equal, except times.
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
from collections.abc import Sequence


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("--kills", type=int, default=10)
  parser.add_argument("--seed", type=int, default=0)
  args, rest = parser.parse_known_args()
  if not any(arg.startswith("--config.checkpoint.seconds") for arg in rest):
    rest.append("--config.checkpoint.seconds=0.3")
  with tempfile.TemporaryDirectory() as folder:
    sys.exit(compare(rest, pathlib.Path(folder), args.kills, random.Random(args.seed)))


def compare(flags: Sequence[str], folder: pathlib.Path, kills: int, rng: random.Random) -> int:
  """Returns 0 if the killed run ends like the uninterrupted one, else 1."""
  command = [sys.executable, "-m", "alma_jax.main", *flags, "--workdir"]
  whole, killed = folder / "whole", folder / "killed"
  finished([*command, whole])  # fills the compilation cache
  start = time.monotonic()
  finished([*command, whole, "--overwrite"])
  total = _count_lines(whole / "metrics.jsonl")
  print(f"uninterrupted: {time.monotonic() - start:.1f} s, {total} mega-batches", flush=True)
  done, different = 0, []
  while done < kills:
    done_before = _count_lines(killed / "metrics.jsonl")
    after = rng.randint(done_before, done_before + (total - done_before) // 2)
    process = subprocess.Popen([*command, killed], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    while process.poll() is None and _count_lines(killed / "metrics.jsonl") <= after:
      time.sleep(0.005)
    time.sleep(rng.uniform(0, 0.05))
    process.kill()
    message = [line for line in process.communicate()[1].splitlines() if line.startswith(("running", "resuming"))]
    if process.returncode == 0:
      print("finished before the kill; compared, and started again", flush=True)
      different += differences(whole, killed)
      shutil.rmtree(killed)
      continue
    done += 1
    print(f"kill {done}: {message[0] if message else 'no message yet'}, then "
          f"{_count_lines(killed / 'metrics.jsonl')} mega-batches, {_count_lines(killed / 'train.jsonl')} epochs",
          flush=True)
  finished([*command, killed])
  different += differences(whole, killed)
  print("\n".join(different) or f"equal after {kills} kills: metrics.jsonl, train.jsonl and summary.json")
  return int(bool(different))


def finished(arguments: Sequence[str | pathlib.Path]) -> None:
  """Runs a command. If it fails, its last line is printed, and this process ends with its exit code."""
  done = subprocess.run(arguments, capture_output=True, text=True)
  if done.returncode:
    print(done.stderr.rstrip().rpartition("\n")[2], file=sys.stderr)
    sys.exit(done.returncode)


def differences(first: pathlib.Path, second: pathlib.Path) -> list[str]:
  """Sentences about what differs between two run folders, except times."""
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


def _count_lines(path: pathlib.Path) -> int:
  return len(path.read_bytes().splitlines()) if path.exists() else 0


if __name__ == "__main__":
  main()
