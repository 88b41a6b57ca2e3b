"""Runs every command of the tutorial, page by page in one folder, and keeps the pictures that they make.

    python benchmarks/tutorial.py --out docs/images/tutorial

The commands of a page are its indented blocks, one bash script. tests/slow/test_long_docs.py runs them in the same way.
"""
import argparse
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

DOCS = pathlib.Path(__file__).parents[1] / "docs"
PAGES = ("first-run", "reading-the-curve", "your-own-data", "when-to-train", "data-that-keeps-arriving",
         "predicting-and-serving")
# What the commands write: {picture of the site: file in the folder}.
PICTURES = {"first.png": "runs/first/curve.png", "curves.png": "curves.png", "own.png": "runs/own/curve.png",
            "stream.png": "report/stream.png", "waiting.png": "report/waiting.png", "live.png": "runs/live/curve.png"}


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("--out", type=pathlib.Path, required=True, help="folder for the pictures")
  parser.add_argument("--workdir", type=pathlib.Path, help="an empty folder to run in; default: a temporary one")
  args = parser.parse_args()
  with tempfile.TemporaryDirectory() as temporary:
    folder = args.workdir or pathlib.Path(temporary)
    folder.mkdir(parents=True, exist_ok=True)
    for page in PAGES:
      done = run(page, folder)
      print(f"## {page}\n{done.stdout}{done.stderr}", flush=True)
      if done.returncode:
        sys.exit(f"{page}: exit code {done.returncode}")
    args.out.mkdir(parents=True, exist_ok=True)
    for name, source in PICTURES.items():
      shutil.copyfile(folder / source, args.out / name)


def script(page: str) -> str:
  """The commands of a page, a bash script."""
  text = re.sub(r"^```.*?^```$", "", (DOCS / f"tutorial/{page}.md").read_text(), flags=re.MULTILINE | re.DOTALL)
  blocks = re.findall(r"(?:(?<=\n\n)|\A)((?:    .*\n)+)", text)
  return "\n".join(re.sub("^    ", "", block, flags=re.MULTILINE) for block in blocks)


def run(page: str, folder: pathlib.Path, **environment: str) -> subprocess.CompletedProcess[str]:
  """Runs the commands of a page in a folder, with the programs of this Python's environment and this checkout."""
  paths = {"PATH": f"{pathlib.Path(sys.executable).parent}:{os.environ['PATH']}",
           "PYTHONPATH": f"{DOCS.parent}:{os.environ.get('PYTHONPATH', '')}"}
  return subprocess.run(["bash", "-eum", "-c", script(page)], cwd=folder, capture_output=True, text=True,
                        env=os.environ | paths | environment, stdin=subprocess.DEVNULL, check=False)


if __name__ == "__main__":
  main()
