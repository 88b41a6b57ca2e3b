"""Files of text, and the document in a line of a .jsonl file. Imports no jax."""
from alma_jax.errors import BadInput
from alma_jax.files import parse_json

DOCUMENT = ".txt"  # suffix, in lower case, of a file that is one document
SUFFIXES = (DOCUMENT, ".jsonl")
_FIELD = "text"  # of the objects


def document(line: str | bytes) -> str:
  """The document of a line: the line is a string, or an object with a string `text`.

  Halves of characters, which JSON can hold and UTF-8 cannot, are replaced by "?".

  Raises:
    BadInput: it is neither. The message is the end of a sentence about the line.
  """
  try:
    entry = parse_json(line, halves=True)
  except ValueError as error:
    raise BadInput(f"is not JSON ({error}).") from error
  written = entry.get(_FIELD) if isinstance(entry, dict) else entry
  if not isinstance(written, str):
    raise BadInput(f"is neither a string nor an object with a string {_FIELD!r}.")
  return written.encode("utf-8", "replace").decode()
