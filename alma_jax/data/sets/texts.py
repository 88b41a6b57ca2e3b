"""Texts that are complete when a run starts: files, and TFDS data sets."""
import dataclasses
import pathlib
from collections.abc import Iterator
from typing import Any, ClassVar

from alma_jax.config.fields import field
from alma_jax.config.registry import register
from alma_jax.config.sections import DATA_DIR
from alma_jax.config.text_sections import Text
from alma_jax.data import folders, text_files, tfds_folder
from alma_jax.data.examples import named
from alma_jax.errors import BadInput


@dataclasses.dataclass(frozen=True)
class Stored(Text):
  """Base class of texts that are complete when a run starts."""

  def source(self) -> text_files.TextSource:
    """Finds the text; raises BadInput if there is none."""
    raise NotImplementedError

  def arrived(self, config: Any, form: Any, entries: Any) -> Iterator[Any]:
    from alma_jax.data import text  # it imports jax

    del form, entries
    splits = self.source().read()
    if "test" not in splits:  # it is a part of the documents' pieces
      splits = text.prepare(text.complete(splits), config.stream.num_megabatches, config.seed)
    return (document.strip() for document in splits["train"])

  def tested(self, config: Any, task: int | None) -> tuple[list[bytes], str]:
    from alma_jax.data import text

    known = text.load(self, config.stream.num_megabatches, config.seed).fingerprint
    return text.complete(self.source().read())["test"], known


@register
@dataclasses.dataclass(frozen=True)
class Files(Stored):
  """Your own texts: .txt and .jsonl files."""
  name: str = "text"

  form: ClassVar[str] = "text:DIR"

  def source(self) -> text_files.TextSource:
    return text_files.source(pathlib.Path(self.path).expanduser())


@register
@dataclasses.dataclass(frozen=True)
class TFDS(Stored):
  """Any TFDS data set of texts."""
  name: str = "tfds"
  data_dir: str = field("", DATA_DIR)

  form: ClassVar[str] = "tfds:NAME"

  def source(self) -> text_files.TextSource:
    folder = tfds_folder.prepared(self.path, self.data_dir)
    return text_files.TextSource([str(folder.resolve()), tfds_folder.fingerprint(folder)],
                                 lambda: _read(folder, self.path))


def _read(folder: pathlib.Path, name: str) -> text_files.Documents:
  tfds = tfds_folder.import_tfds()
  builder = tfds.builder_from_directory(folder)
  features = builder.info.features
  texts = [key for key, feature in features.items() if isinstance(feature, tfds.features.Text)]
  if "text" not in texts and len(texts) != 1:
    raise BadInput(f"the TFDS data set {name!r} is not plain text: it has "
                   f"{'no' if not texts else 'several'} text features among {', '.join(sorted(features))}.")
  key = "text" if "text" in texts else texts[0]
  stored = {split: next((name for name in builder.info.splits if folders.split_of(name) == split), None)
            for split in text_files.SPLITS}
  if stored["train"] is None:
    raise BadInput(f"the TFDS data set {name!r} has no split train; it has {', '.join(builder.info.splits)}.")
  documents: text_files.Documents = {}
  for split, of_tfds in stored.items():
    if of_tfds is None:
      continue
    of_split = documents[split] = []
    for i, example in enumerate(tfds_folder.examples(builder, of_tfds)):
      with named(f"example {i} of the split {of_tfds} of {name!r}"):
        text = text_files.decoded(example[key].encode() if isinstance(example[key], str) else bytes(example[key]))
      if text.strip():
        of_split.append(text.encode())
  text_files.check_not_blank(f"the TFDS data set {name!r}", documents)
  return documents
