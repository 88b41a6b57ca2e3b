"""The examples in the body of a request. Imports no jax."""
import io
import json
from typing import Any

import numpy as np

from alma_jax.data import examples, image_file
from alma_jax.data.form import Form
from alma_jax.data.task_names import is_meant
from alma_jax.errors import BadInput
from alma_jax.files import parse_json
from alma_jax.messages import brief
from alma_jax.predictors.description import Description

JSON = "application/json"
_MOST_PIXELS = 2**24  # of an image file; decoding more would take too much memory


class Refused(Exception):
  """A request that is answered with an HTTP status and a sentence."""

  def __init__(self, status: int, sentence: str):
    super().__init__(sentence)
    self.status = status


def images(body: bytes, kind: str, known: Description) -> np.ndarray:
  """The examples [N, ...] of a request to a predictor of images.

  Args:
    body: of the request.
    kind: its content type.
    known: of the predictor.

  Raises:
    Refused: the body holds something else.
  """
  form, shape, dtype = known.form, known.shape, known.dtype
  what = "`inputs`" if kind == JSON else "the image" if kind.startswith("image/") else "the body"
  try:
    with examples.named(what):
      if kind == JSON:
        return form.fit(_array(_entry(body, kind, "inputs", known)))
      if kind == "application/octet-stream":
        size = int(np.prod(shape)) * dtype.itemsize
        if not body or len(body) % size:
          raise Refused(400, f"the body has {len(body)} bytes, but an example has {size}; send whole examples.")
        return form.fit(np.frombuffer(body, dtype).reshape(-1, *shape))
      if kind.startswith("image/"):
        return _of_image(body, form)
  except BadInput as error:
    raise Refused(400, str(error)) from error
  raise Refused(415, f"the content type is {kind or 'missing'}; send {JSON}, application/octet-stream or image/....")


def texts(body: bytes, kind: str, known: Description) -> list[str]:
  """The texts of a request to a language model; for the arguments see `images`."""
  given = _entry(body, kind, "texts", known)
  if not isinstance(given, list) or not all(isinstance(text, str) and text for text in given) or not given:
    raise Refused(400, "`texts` should be a list of strings that are not empty.")
  return [text.encode("utf-8", "replace").decode() for text in given]  # JSON can hold halves of characters


def _entry(body: bytes, kind: str, name: str, known: Description) -> Any:
  """The entry `name` of a JSON body; besides it a body may only say which task it belongs to."""
  if kind != JSON:
    raise Refused(415, f"the content type is {kind or 'missing'}; send {JSON}.")
  try:
    tree = parse_json(body, halves=True)
  except ValueError as error:
    raise Refused(400, f"the body is not JSON ({str(error)[:100]}).") from error
  if not isinstance(tree, dict) or name not in tree:
    raise Refused(400, f'the body should be {{"{name}": [...]}}.')
  task = known.task
  unknown = [key for key in tree if key not in ((name, "task") if task else (name,))]
  if unknown:
    raise Refused(400, f'the body has the unknown field {brief(unknown[0])}; it should be {{"{name}": [...]}}'
                        f"{', perhaps with `task`' if task else ''}.")
  if task and "task" in tree and not is_meant(tree["task"], *task):
    raise Refused(400, f"the body is for task {json.dumps(tree['task'])[:100]}, but this service answers for task "
                        f"{task.number} ({task.name!r}); ask the service of that task.")
  return tree[name]


def _array(given: Any) -> np.ndarray:
  """Nested lists of numbers as an array."""
  if not isinstance(given, list) or not given:
    raise Refused(400, "`inputs` should be a list of examples that is not empty.")
  try:
    return np.array(given)
  except (ValueError, OverflowError) as error:
    raise Refused(400, "`inputs` should hold numbers, in examples of equal shapes.") from error


def _of_image(body: bytes, form: Form) -> np.ndarray:
  """The example [1, ...] of an image file; its size is checked before it is decoded."""
  from PIL import Image
  try:
    with Image.open(io.BytesIO(body), formats=image_file.readable(image_file.SERVED)) as image:
      size = image.size
  except Image.DecompressionBombError as error:  # Pillow itself refuses to open it
    raise Refused(413, f"the image has more than {_MOST_PIXELS} pixels; send a smaller one.") from error
  except Exception as error:  # decoders raise many kinds
    raise Refused(400, "the body is no image that can be read; send a file of the formats "
                   f"{', '.join(image_file.SERVED)}.") from error
  if size[0] * size[1] > _MOST_PIXELS:
    raise Refused(413, f"the image has {size[0]}x{size[1]} pixels, more than {_MOST_PIXELS}; send a smaller one.")
  return examples.Reader(form, labelled=False).image(body, image_file.SERVED)
