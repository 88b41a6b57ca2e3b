"""Reads an image file as an array of grey or RGB pixels.

Images have 8 bits a channel, or are grey with 16 bits. Transparent parts become white. Images are rotated as their
metadata say, and only the first frame is read. An image that would take too much memory is refused before it is
decoded.
"""
import functools
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
# Formats of Pillow that start another program (EPS), are drawn by the operating system (WMF), or hold no pixels that
# Pillow itself can read.
_NOT_READ = ("EPS", "WMF", "BUFR", "GRIB", "HDF5", "IPTC", "MPEG")
SERVED = ("PNG", "JPEG", "GIF", "WEBP", "BMP", "TIFF", "AVIF", "PPM")  # formats that strangers may send
_LAYERED = ("PSD",)  # their frames are layers, which Pillow has already merged
_BYTES = 16  # of a pixel, while an image with transparent parts is laid on white


class Decoded(NamedTuple):
  """The contents of an image file.

  Attributes:
    pixels: [H, W, 1] if the file is stored as grey, else [H, W, 3]; 0 to 255. The dtype is uint8, or float32 for grey
      with 16 bits, whose values are divided by 257.
    had_transparency: whether parts were transparent and are now white or mixed with white.
    has_frames: whether there are frames or pages after the one that was read.
  """
  pixels: np.ndarray
  had_transparency: bool
  has_frames: bool


@functools.cache
def readable(among: tuple[str, ...] | None = None) -> tuple[str, ...]:
  """Pillow's names of the formats that are read; the contents of a file decide its format.

  These are all formats with a suffix that the installed Pillow reads, except _NOT_READ, or those that are also `among`
  given names.
  """
  from PIL import Image
  Image.init()
  found = {name for name in Image.registered_extensions().values() if name in Image.OPEN and name not in _NOT_READ
           and (among is None or name in among)}
  # Formats without a signature are tried after all others.
  return tuple(sorted(found, key=lambda name: (Image.OPEN[name][1] is None, Image.ID.index(name))))


@functools.cache
def suffixes() -> frozenset[str]:
  """The suffixes of files that are read, in lower case."""
  from PIL import Image
  return frozenset(suffix for suffix, name in Image.registered_extensions().items() if name in readable())


def read(path: str | os.PathLike[str] | io.BytesIO, size: int = 0, formats: tuple[str, ...] | None = None) -> Decoded:
  """Reads an image file.

  Args:
    path: the file, or its bytes.
    size: width and height in pixels to which the image is resized, by bicubic interpolation with antialiasing. The
      aspect ratio is not kept. 0: the image keeps its size.
    formats: Pillow's names of the formats that are read; None: all that can be.

  Raises:
    BadInput: the file cannot be read. The message is the reason alone, without the path.
  """
  from PIL import Image, UnidentifiedImageError

  try:
    with Image.open(path, formats=readable(formats)) as image:
      unpacking.check(_BYTES * max(image.width * image.height, size * size))
      has_frames = image.format not in _LAYERED and getattr(image, "is_animated", False)
      upright = _upright(image)
      if image.mode in _GREY_16_BITS:
        pixels, had_transparency = _read_16_bits(upright, size)
      elif image.mode in _GREY + _COLOUR:
        opaque, had_transparency = _on_white(upright)
        pixels = np.asarray(_resized(opaque.convert("L" if image.mode in _GREY else "RGB"), size))
      else:
        raise BadInput(f"pixels of the kind {image.mode!r}")
  except BadInput:
    raise
  except UnidentifiedImageError as error:
    raise BadInput(f"no image of the formats {', '.join(formats)}" if formats else "no image") from error
  except Exception as error:  # decoders raise many kinds
    raise BadInput(unpacking.first_line(error)) from error
  return Decoded(pixels if pixels.ndim == 3 else pixels[..., None], had_transparency, has_frames)


def _upright(image: "Image.Image") -> "Image.Image":
  """The image, rotated or flipped as its EXIF or XMP says. Damaged metadata are ignored."""
  from PIL import ImageOps
  image.load()  # some metadata come after the pixels, and Pillow turns TIFF files itself
  try:
    return ImageOps.exif_transpose(image)
  except Exception:  # parsers of metadata raise many kinds
    return image


def _on_white(image: "Image.Image") -> tuple["Image.Image", bool]:
  """(the image on a white background, whether any part of it was transparent)."""
  from PIL import Image

  if not image.has_transparency_data:
    return image, False
  image = image.convert("RGBA")
  if image.getchannel("A").getextrema()[0] == 255:
    return image, False
  return Image.alpha_composite(Image.new("RGBA", image.size, "white"), image), True


def _read_16_bits(image: "Image.Image", size: int) -> tuple[np.ndarray, bool]:
  """(float32 [H, W], whether parts were transparent) of a grey image with 16 bits.

  One of its values may stand for transparent pixels.
  """
  from PIL import Image

  values_HW = np.asarray(image)
  if values_HW.min() < 0 or values_HW.max() > _LARGEST:
    raise BadInput("values beyond 16 bits")
  is_clear_HW = values_HW == image.info.get("transparency", -1)
  grey_HW = np.where(is_clear_HW, np.float32(255), values_HW.astype(np.float32) / np.float32(257))
  if size:  # bicubic interpolation exceeds the range of the values at edges
    grey_HW = np.clip(np.asarray(_resized(Image.fromarray(grey_HW), size)), 0, 255)
  return grey_HW, bool(is_clear_HW.any())


def _resized(image: "Image.Image", size: int) -> "Image.Image":
  from PIL import Image
  return image.resize((size, size), Image.Resampling.BICUBIC) if size else image
