"""Texts."""
import dataclasses
from typing import ClassVar

from alma_jax.config.fields import field
from alma_jax.config.registry import register
from alma_jax.config.sections import DATA_DIR
from alma_jax.config.text_sections import Text


@register
@dataclasses.dataclass(frozen=True)
class Files(Text):
  """Your own texts: .txt and .jsonl files."""
  name: str = "text"

  form: ClassVar[str] = "text:DIR"


@register
@dataclasses.dataclass(frozen=True)
class TFDS(Text):
  """Any TFDS data set of texts."""
  name: str = "tfds"
  data_dir: str = field("", DATA_DIR)

  form: ClassVar[str] = "tfds:NAME"
