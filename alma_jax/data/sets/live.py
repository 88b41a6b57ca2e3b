"""Live streams of images and of texts."""
import dataclasses
import pathlib
from collections.abc import Iterator
from typing import Any, ClassVar

import numpy as np

from alma_jax.config import sections
from alma_jax.config.fields import field
from alma_jax.config.registry import TEXT, register
from alma_jax.config.text_sections import Text
from alma_jax.data import examples, text_files
from alma_jax.data.labels import Labels
from alma_jax.errors import BadInput

_NO_TEST = "a live stream has a test set only if there is one beside its folder stream."


@register
@dataclasses.dataclass(frozen=True)
class Images(sections.Live, sections.Columns):
  """Mega-batches of images that appear in DIR/stream while the run goes on."""
  takes_arrays: ClassVar[bool] = True
  protocol: ClassVar[Any] = "alma_jax.protocols.live:Images"

  image_size: int = field(
      0, "resize images to this width and height in pixels; 0: keep them, all must have one size", at_least=0)
  max_examples: int = field(1_000_000, "set aside entries with more examples; 0: no limit", at_least=0)

  def arrived(self, config: Any, form: Any, entries: Any) -> Iterator[Any]:
    del config
    reader = examples.Reader(form, image_column=self.image_column, label_column=self.label_column)
    for entry in entries(reader.whole):
      yield from entry.x

  def tested(self, config: Any, task: int | None) -> tuple[examples.Examples, None]:
    from alma_jax.data import live_entries  # it imports jax

    folder = pathlib.Path(self.path).expanduser()
    test = live_entries.ImageReader(folder, config.seed, self.image_size, self.image_column, self.label_column).test
    if test is None:
      raise BadInput(_NO_TEST)
    names, places = np.unique(test.names, return_inverse=True)
    return examples.of_arrays("test", test.x, Labels(places.astype(np.int32), tuple(names.tolist()))), None


@register
@dataclasses.dataclass(frozen=True)
class Texts(Text, sections.Live):
  """Mega-batches of texts that appear in DIR/stream while the run goes on."""
  name: str = "live"

  problems: ClassVar[tuple[str, ...]] = (TEXT,)
  protocol: ClassVar[Any] = "alma_jax.protocols.live:Texts"
  keeps_documents: ClassVar[bool] = False

  def arrived(self, config: Any, form: Any, entries: Any) -> Iterator[Any]:
    del config, form
    for entry in entries(lambda path: list(text_files.read(path))):
      yield from (document.text.strip() for document in entry)

  def tested(self, config: Any, task: int | None) -> tuple[list[bytes], None]:
    from alma_jax.data import live_entries

    held_out = live_entries.TextReader(pathlib.Path(self.path).expanduser(), self).held_out
    if "test" not in held_out:
      raise BadInput(_NO_TEST)
    return held_out["test"], None
