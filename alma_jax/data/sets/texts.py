"""Texts."""
import dataclasses
import pathlib
from collections.abc import Iterator
from typing import Any, ClassVar

from alma_jax.config.fields import field
from alma_jax.config.registry import register
from alma_jax.config.sections import DATA_DIR
from alma_jax.config.text_sections import Text
from alma_jax.data import text_source


@dataclasses.dataclass(frozen=True)
class Stored(Text):
  """Base class of texts that are complete when a run starts."""

  def source(self) -> text_source.TextSource:
    """Where the text is read from; raises BadInput if it is not there."""
    raise NotImplementedError

  def arrived(self, config: Any, form: Any, entries: Any) -> Iterator[Any]:
    from alma_jax.data import documents  # it imports jax

    del form, entries
    splits = self.source().read()
    if "test" not in splits:  # it is a part of the documents' pieces
      splits = documents.prepare(splits, config.stream.num_megabatches, config.seed)
    return (text.strip() for text in splits["train"])


@register
@dataclasses.dataclass(frozen=True)
class Files(Stored):
  """Your own texts: .txt and .jsonl files."""
  name: str = "text"

  form: ClassVar[str] = "text:DIR"

  def source(self) -> text_source.TextSource:
    return text_source.of_files(pathlib.Path(self.path).expanduser())


@register
@dataclasses.dataclass(frozen=True)
class TFDS(Stored):
  """Any TFDS data set of texts."""
  name: str = "tfds"
  data_dir: str = field("", DATA_DIR)

  form: ClassVar[str] = "tfds:NAME"

  def source(self) -> text_source.TextSource:
    return text_source.of_tfds(self.path, self.data_dir)
