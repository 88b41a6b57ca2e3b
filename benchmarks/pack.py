"""Packs what a sweep and a report need of finished runs, to go on with a study on another machine.

    python benchmarks/pack.py runs/cifar docs/results/cifar/runs.tar.xz

The archive has a folder of the name of the first argument; to unpack it: tar -xJf runs.tar.xz -C runs. Of each finished
run it has config.json, metrics.jsonl and summary.json. The folder of the data, a path of the machine, is left out.
"""
import io
import json
import pathlib
import sys
import tarfile

from alma_jax import commands
from alma_jax.errors import BadInput

FILES = ("config.json", "metrics.jsonl", "summary.json")


def main() -> None:
  parser = commands.Parser("benchmarks/pack.py", __doc__)
  parser.add_argument("runs", type=pathlib.Path, help="folder of the run folders")
  parser.add_argument("archive", type=pathlib.Path, help="file to write, .tar.xz")
  args = parser.parse_args()
  print(f"{pack(args.runs, args.archive)} finished runs")


def pack(runs: pathlib.Path, archive: pathlib.Path) -> int:
  """Writes the archive; returns the number of runs in it.

  Raises:
    BadInput: no run in the folder has finished.
  """
  folders = sorted(path.parent for path in runs.glob("*/summary.json"))
  if not folders:
    raise BadInput(f"there is no finished run in {runs}.")
  with tarfile.open(archive, "w:xz") as tar:
    for path in (folder / name for folder in folders for name in FILES):
      text = path.read_bytes()
      if path.name == "config.json":
        tree = json.loads(text)
        tree["dataset"].pop("data_dir", None)
        text = json.dumps(tree, indent=2).encode()
      entry = tarfile.TarInfo(f"{runs.resolve().name}/{path.parent.name}/{path.name}")
      entry.size, entry.mtime = len(text), int(path.stat().st_mtime)
      tar.addfile(entry, io.BytesIO(text))
  return len(folders)


if __name__ == "__main__":
  sys.exit(commands.exit_code(main))
