"""Writes a part of a text: the beginning of every training document, and all of the other documents.

    python benchmarks/part.py --text=books --kilobytes=30 --out=part

`--text` is a folder with train/, valid/ and test/, see dataset.name=text:DIR. A document is cut after its last whole
paragraph that fits. So the part has as many documents as the text, and its mega-batches differ as little.
"""
import pathlib
import shutil
import sys

from alma_jax import commands
from alma_jax.errors import BadInput


def main() -> None:
  parser = commands.Parser("benchmarks/part.py", __doc__)
  parser.add_argument("--text", required=True, help="folder with train/, valid/ and test/")
  parser.add_argument("--kilobytes", type=int, default=30, help="of each training document, at most")
  parser.add_argument("--out", default="part", help="folder of the part; it must not exist")
  args = parser.parse_args()
  text, out, size = pathlib.Path(args.text), pathlib.Path(args.out), 0
  if not text.is_dir():
    raise BadInput(f"there is no folder {args.text!r}.")
  files = sorted((text / "train").glob("*.txt"))
  if not files or not all((text / split).is_dir() for split in ("valid", "test")):
    raise BadInput(f"{text} should hold the folders train, valid and test, with .txt files; see dataset.name=text:DIR.")
  if out.exists():
    raise BadInput(f"{out} exists; write --out=FOLDER with the name of a new folder.")
  (out / "train").mkdir(parents=True)
  for file in files:
    size += (out / "train" / file.name).write_bytes(_beginning(file.read_bytes(), 1000 * args.kilobytes))
  for split in ("valid", "test"):
    shutil.copytree(text / split, out / split)
  print(f"{out}: {len(files)} training documents, {size / 1e6:.2f} MB")


def _beginning(text: bytes, most: int) -> bytes:
  """The paragraphs of `text` that fit in `most` bytes; its lines that do, if the first paragraph is longer."""
  if len(text) <= most:
    return text
  ends = (text.rfind(b"\n\n", 0, most), text.rfind(b"\n", 0, most), most - 1)
  return text[:next(end for end in ends if end > 0) + 1]


if __name__ == "__main__":
  sys.exit(commands.exit_code(main))
