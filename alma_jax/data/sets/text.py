"""Texts."""
import dataclasses
from typing import ClassVar

from alma_jax.config import sections
from alma_jax.config.fields import field
from alma_jax.config.registry import TEXT, register
from alma_jax.config.sections import DATA_DIR
from alma_jax.config.text_sections import Text


@register
@dataclasses.dataclass(frozen=True)
class Files(Text):
  """Your own texts, .txt files."""
  name: str = "text"

  form: ClassVar[str] = "text:DIR"


@register
@dataclasses.dataclass(frozen=True)
class TFDS(Text):
  """Any TFDS data set of texts."""
  name: str = "tfds"
  data_dir: str = field("", DATA_DIR)

  form: ClassVar[str] = "tfds:NAME"


@register
@dataclasses.dataclass(frozen=True)
class Live(Text, sections.Live):
  """Mega-batches of texts that appear in DIR/stream while the run goes on."""
  name: str = "live"

  problems: ClassVar[tuple[str, ...]] = (TEXT,)
