"""Reads an image file as an array of grey or RGB pixels.

Images have 8 bits a channel, or are grey with 16 bits. Transparent parts become white. An image that takes too much
memory when it is decoded is refused before.
"""
import io
import os
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from alma_jax.data import unpacking
from alma_jax.errors import BadInput

if TYPE_CHECKING:
  from PIL import Image

# Modes of Pillow, which reduces colours of 16 bits to their upper 8 bits.
_GREY, _COLOUR = ("1", "L"), ("P", "RGB", "RGBA", "LA", "CMYK", "YCbCr")
_GREY_16_BITS = ("I;16", "I;16B", "I;16L", "I;16N", "I")
_LARGEST = 2**16 - 1
# The contents of a file decide its format. Pillow knows others, of which one starts another program (EPS).
_FORMATS = ("PNG", "JPEG", "BMP", "DIB", "GIF", "WEBP", "TIFF", "PPM")
_BYTES = 16  # of a pixel, while an image with transparent parts is laid on white


class Decoded(NamedTuple):
  """The contents of an image file.

  Attributes:
    pixels: [H, W, 1] if the file is stored as grey, else [H, W, 3]; 0 to 255. The dtype is uint8, or float32 for grey
      with 16 bits, whose values are divided by 257.
    had_transparency: whether parts were transparent and are now white or mixed with white.
  """
  pixels: np.ndarray
  had_transparency: bool


def read(path: str | os.PathLike[str] | io.BytesIO, size: int = 0) -> Decoded:
  """Reads an image file.

  Args:
    path: the file, or its bytes.
    size: width and height in pixels to which the image is resized, by bicubic interpolation with antialiasing. The
      aspect ratio is not kept. 0: the image keeps its size.

  Raises:
    BadInput: the file cannot be read. The message is the reason alone, without the path.
  """
  from PIL import Image, UnidentifiedImageError

  try:
    with Image.open(path, formats=_FORMATS) as image:
      unpacking.check(_BYTES * max(image.width * image.height, size * size))
      if image.mode in _GREY_16_BITS:
        return _read_16_bits(image, size)
      if image.mode not in _GREY + _COLOUR:
        raise BadInput(f"pixels of the kind {image.mode!r}")
      mode = "L" if image.mode in _GREY else "RGB"
      opaque, had_transparency = _on_white(image)
      pixels = np.asarray(_resized(opaque.convert(mode), size))
  except BadInput:
    raise
  except UnidentifiedImageError as error:
    raise BadInput("no image") from error
  except Exception as error:  # decoders raise many kinds
    raise BadInput(unpacking.first_line(error)) from error
  return Decoded(pixels[..., None] if mode == "L" else pixels, had_transparency)


def _on_white(image: "Image.Image") -> tuple["Image.Image", bool]:
  """(the image on a white background, whether any part of it was transparent)."""
  from PIL import Image

  if not image.has_transparency_data:
    return image, False
  image = image.convert("RGBA")
  if image.getchannel("A").getextrema()[0] == 255:
    return image, False
  return Image.alpha_composite(Image.new("RGBA", image.size, "white"), image), True


def _read_16_bits(image: "Image.Image", size: int) -> Decoded:
  """Reads a grey image with 16 bits. One of its values may stand for transparent pixels."""
  from PIL import Image

  values_HW = np.asarray(image)
  if values_HW.min() < 0 or values_HW.max() > _LARGEST:
    raise BadInput("values beyond 16 bits")
  is_clear_HW = values_HW == image.info.get("transparency", -1)
  grey_HW = np.where(is_clear_HW, np.float32(255), values_HW.astype(np.float32) / np.float32(257))
  if size:  # bicubic interpolation exceeds the range of the values at edges
    grey_HW = np.clip(np.asarray(_resized(Image.fromarray(grey_HW), size)), 0, 255)
  return Decoded(grey_HW[..., None], bool(is_clear_HW.any()))


def _resized(image: "Image.Image", size: int) -> "Image.Image":
  from PIL import Image
  return image.resize((size, size), Image.Resampling.BICUBIC) if size else image
