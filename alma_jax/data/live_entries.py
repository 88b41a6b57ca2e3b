"""The entries of a live stream: their checks, their classes or tokens, and the fixed test set beside them.

examples.py and text_files.py say what an entry and the test set can be. The classes of examples are the lines of
DIR/classes.txt. Labels that are numbers count its lines from 0; if a line is a number that is not its own place, they
are looked up in it. Without this file classes are found as they come: numbers and names of labels are names of classes,
and a class that occurs for the first time is the next one.

For text, the tokenizer is trained on the first mega-batch, unless the config names one. Validation text is DIR/valid,
or else a twentieth of the first mega-batch.
"""
import dataclasses
import hashlib
import pathlib
import types
import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from alma_jax import keys
from alma_jax.config import text_sections
from alma_jax.data import cache, examples, feed, text, text_files, tokens
from alma_jax.data import labels as class_labels
from alma_jax.data.form import Form
from alma_jax.data.labels import Classes, Labels
from alma_jax.errors import BadInput

if TYPE_CHECKING:
  from tokenizers import Tokenizer

CLASSES, TEST = "classes.txt", "test"
_LEAST = 2  # examples of a mega-batch: one to train on, and one for validation
UNKNOWN = -1  # label of a test example whose class has not been found yet


class TestSet(NamedTuple):
  """The fixed test set.

  Attributes:
    x: [N, ...].
    names: of the class of each example.
  """
  x: np.ndarray
  names: np.ndarray


class ImageReader:
  """Reads entries of images; see feed.Reader.

  Attributes:
    declared: the classes of DIR/classes.txt; None: classes are found as they come.
    test: TestSet, or None.
  """
  notes: Mapping[str, type[Any]] = types.MappingProxyType(
      dict(num=int, example_shape=list, dtype=str, new_classes=list))

  def __init__(self, folder: pathlib.Path, seed: int, image_size: int = 0, image_column: str = "",
               label_column: str = ""):
    """Reads DIR/classes.txt and DIR/test.

    Args:
      folder: DIR.
      seed: of the config.
      image_size, image_column, label_column: of the section `dataset`.

    Raises:
      BadInput: one of them is there and cannot be used.
    """
    self._seed = seed
    form = Form(image_size=image_size, owner="the stream has")
    self._reader = examples.Reader(form, image_column=image_column, label_column=label_column)
    self.declared = _read_classes(folder / CLASSES)
    self.test = self._read_test(folder)
    self._tested = frozenset(() if self.test is None else map(cache.hash_row, self.test.x))
    self._padded = False  # whether a label differed from its class in leading zeros

  def read(self, path: pathlib.Path, lines: list[feed.Line]) -> feed.Read:
    """The arrays x and y of an entry, permuted; its notes are num, example_shape, dtype and new_classes."""
    form = self._reader.form
    if lines:
      form = form._replace(shape=tuple(lines[0]["example_shape"]), dtype=np.dtype(lines[0]["dtype"]))
    elif self.test is not None:
      form = form._replace(shape=self.test.x.shape[1:], dtype=self.test.x.dtype)
    entry = dataclasses.replace(self._reader, form=form).whole(path)
    assert entry.labels is not None
    x, num = entry.x, len(entry.x)
    if num < _LEAST:
      raise BadInput(f"it has {num} example; a mega-batch needs {_LEAST}, one of them for validation.")
    remarks = (*entry.remarks, *self._overlap(x))
    classes = self.classes(lines)
    y, new = self._numbered(entry.labels, classes)
    remarks += self._resemblances(entry.labels, new, classes)
    order = keys.rng(self._seed, keys.STREAM, len(lines) + 1).permutation(num)
    notes = dict(num=num, example_shape=list(x.shape[1:]), dtype=str(x.dtype), new_classes=new)
    return feed.Read(dict(x=x[order], y=y[order]), notes, _digest(x, entry.labels.text()), remarks)

  def classes(self, lines: list[feed.Line], num: int | None = None) -> list[str]:
    """Names of the classes after the first `num` mega-batches of `lines`; None: after all."""
    if self.declared is not None:
      return [*self.declared.names]
    return [name for line in lines[:num] for name in line["new_classes"]]

  def test_labels(self, classes: list[str]) -> np.ndarray:
    """int32 [N], the class numbers of the test examples; UNKNOWN if a class is not known yet."""
    assert self.test is not None
    names, places = np.unique(self.test.names, return_inverse=True)
    found = map(class_labels.Index(classes).find, names.tolist())
    return np.array([UNKNOWN if place is None else place for place in found], np.int32)[places]

  def _numbered(self, labels: Labels, classes: list[str]) -> tuple[np.ndarray, list[str]]:
    """(int32 [N] class numbers, names of new classes)."""
    if self.declared is not None:
      return self.declared.number(labels), []
    numbers, stored = labels.by_name()
    names, known = [*map(class_labels.normal, stored)], class_labels.Index(classes)
    if classes:
      _refuse_other_kind(names, classes)
    new = [names[place] for place in dict.fromkeys(map(class_labels.Index(names).find, names))
           if place is not None and known.find(names[place]) is None]
    every = class_labels.Index([*classes, *new])
    return np.array([*map(every.find, names)], np.int32)[numbers], new

  def _resemblances(self, labels: Labels, new: list[str], classes: list[str]) -> tuple[str, ...]:
    """Sentences about labels with other leading zeros than their class, and about new classes that resemble others."""
    every = [*classes, *new]
    index, names = class_labels.Index(every), map(class_labels.normal, labels.by_name()[1])
    padded = [(label, every[place]) for label in names if (place := index.find(label)) is not None
              and every[place] != label]
    said = () if self._padded or not padded else (
        f"the label {padded[0][0]!r} means the class {padded[0][1]!r}; leading zeros do not count",)
    self._padded = self._padded or bool(padded)
    pairs = [(a, b) for a, b in class_labels.alike(every) if b in new]
    return said + tuple(
        f"the new class {b!r} resembles {a!r}; if they are one class, start a new run over entries that use one name "
        f"for it, or declare the classes in {CLASSES}" for a, b in pairs)

  def _overlap(self, x: np.ndarray) -> tuple[str, ...]:
    num = sum(cache.hash_row(row) in self._tested for row in x) if self._tested else 0
    if num == len(x):
      raise BadInput("all its examples are also in the test set.")
    return (f"{num} of {len(x)} examples {'is' if num == 1 else 'are'} also in the test set, so its error is too low",
            ) if num else ()

  def _read_test(self, folder: pathlib.Path) -> TestSet | None:
    path = _only(folder, TEST, (".npz", ".parquet"))
    if path is None:
      return None
    with examples.named(f"the test set {str(path)!r}"):
      read = dataclasses.replace(self._reader, part=TEST).whole(path)
      assert read.labels is not None
      for remark in read.remarks:
        warnings.warn(remark, stacklevel=3)
      if self.declared is not None:
        return TestSet(read.x, np.array(self.declared.names)[self.declared.number(read.labels)])
      numbers, names = read.labels.by_name()
      return TestSet(read.x, np.array([*map(class_labels.normal, names)])[numbers])


class TextReader:
  """Reads entries of text; see feed.Reader.

  Attributes:
    held_out: documents of the folders DIR/valid and DIR/test, by split, as far as they exist.
  """
  notes: Mapping[str, type[Any]] = types.MappingProxyType(dict(num=int))

  def __init__(self, folder: pathlib.Path, config: text_sections.Text):
    """Reads DIR/valid and DIR/test.

    Raises:
      BadInput: one of them or the tokenizer cannot be used.
    """
    self._config = config
    self._given = tokens.read(config.tokenizer, config.vocab_size) if config.tokenizer else None
    self._parsed: Tokenizer | None = None
    self.held_out: dict[str, list[bytes]] = {}
    for split in ("valid", "test"):
      if (path := _only(folder, split, text_files.SUFFIXES)) is not None:
        with examples.named(repr(str(path))):
          self.held_out[split] = [document.text for document in text_files.read(path)]
    self._tested = {cache.hash_row(document.strip()) for document in self.held_out.get("test", ())}

  def read(self, path: pathlib.Path, lines: list[feed.Line]) -> feed.Read:
    """The token ids of an entry; its notes are num (of windows), and tokenizer of the first mega-batch."""
    found = [document.text for document in text_files.read(path)]
    digest = cache.hash_arrays({f"{i:09d}": np.frombuffer(document, np.uint8) for i, document in enumerate(found)})
    num_seen = sum(cache.hash_row(document.strip()) in self._tested for document in found)
    if num_seen == len(found):
      raise BadInput("all its documents are also in the test text.")
    remarks = [f"{num_seen} of {len(found)} documents {'is' if num_seen == 1 else 'are'} also in the test text, so its "
               "perplexity is too low"]
    arrays, notes = {}, {}
    if lines:
      tokenizer = self.tokenizer(lines)
    else:
      splits = {"train": found}
      if "valid" not in self.held_out:
        splits = text.hold_out(found, ["valid"])
      tokenizer = self._given or tokens.train(splits["train"], self._config.vocab_size)
      notes["tokenizer"] = tokenizer.to_str()
      found = splits["train"]
      if "valid" in splits:
        arrays["valid"], arrays["valid_starts"] = self.encode(tokenizer, splits["valid"])
    arrays["ids"], arrays["starts"] = self.encode(tokenizer, found)
    num = len(self.windows(tokens.Encoded(arrays["ids"], arrays["starts"])).start)
    return feed.Read(arrays, dict(num=num, **notes), digest, tuple(remarks) if num_seen else ())

  def tokenizer(self, lines: list[feed.Line]) -> "Tokenizer":
    """The tokenizer of the stream."""
    if self._parsed is None:
      self._parsed = self._given or tokens.parse(str(lines[0].get("tokenizer")))
    return self._parsed

  def encode(self, tokenizer: "Tokenizer", found: list[bytes]) -> tokens.Encoded:
    """Token ids of documents; raises BadInput if the tokenizer has no units for them."""
    return tokens.encode(tokenizer, found, in_sections=self._given is None)

  def windows(self, encoded: tokens.Encoded) -> text.Windows:
    """The windows of an entry; raises BadInput if it is too short for one."""
    c = self._config
    return text.windows(encoded, c.sequence_length, c.cross_documents, "the entry")


def _only(folder: pathlib.Path, name: str, suffixes: Sequence[str]) -> pathlib.Path | None:
  """The folder, or the file with one of the suffixes, that holds the test set or the validation text; None: neither."""
  paths = [path for path in (folder / f"{name}{suffix}" for suffix in ("", *suffixes)) if path.exists()]
  if len(paths) > 1:
    raise BadInput(f"there are both {str(paths[0])!r} and {str(paths[1])!r}; keep one of them.")
  return paths[0] if paths else None


def _digest(x: np.ndarray, labels: np.ndarray) -> str:
  """SHA-256 of examples and their classes, the same whatever the format of the file and the order of the examples."""
  of_rows = sorted(hashlib.sha256(np.ascontiguousarray(row).data.tobytes() + label.encode()).digest()
                   for row, label in zip(x, labels.tolist()))
  return hashlib.sha256(f"{x.dtype} {x.shape}".encode() + b"".join(of_rows)).hexdigest()


def _refuse_other_kind(names: list[str], known: list[str]) -> None:
  """Raises BadInput if one of two lists holds only numbers, and the other one none: all classes would be new."""
  numbers, others = ([name.isdecimal() for name in group] for group in (names, known))
  if all(numbers) != all(others) and not (any(numbers) and any(others)):
    what = ("numbers", "names") if all(numbers) else ("names", "numbers")
    raise BadInput(f"its labels are {what[0]}, such as {names[0]!r}, but those of the stream so far are {what[1]}, "
                   f"such as {known[0]!r}: each would be a new class. Label it as the stream is.")


def _read_classes(path: pathlib.Path) -> Classes | None:
  if not path.exists():
    return None
  try:
    lines = path.read_text(encoding="utf-8-sig").splitlines()  # Windows begins a text file with a byte order mark
    names = [name for line in lines if (name := class_labels.normal(line))]
  except (OSError, UnicodeDecodeError) as error:
    raise BadInput(f"{str(path)!r} cannot be read ({error}); each of its lines should name a class.") from error
  index = class_labels.Index(names)
  twins = [(names[first], name) for place, name in enumerate(names) if (first := index.find(name) or 0) != place]
  if len(names) < 2 or twins:
    what = f"names a class twice, {twins[0][0]!r} and {twins[0][1]!r}" if twins else f"names {len(names)} class"
    raise BadInput(f"{str(path)!r} {what}; it should hold the names of at least two classes, one in every line.")
  return Classes(CLASSES, tuple(names), len(names))
