"""Bytes -> pixels, for bytes that anybody may have sent.

Only formats that are named here are tried, sizes are checked after the header and before the
pixels, and whatever Pillow raises on damaged data becomes one of our errors.
"""

from __future__ import annotations

import struct
import zlib
from io import BytesIO
from typing import Final

import numpy as np
from numpy.typing import NDArray
from PIL import Image as Pillow
from PIL import ImageOps, UnidentifiedImageError

from spaninfer_multimodal.errors import TooLarge, Unreadable
from spaninfer_multimodal.media import Image, ImageLimits

FORMATS: Final = ("PNG", "JPEG", "WEBP", "GIF", "BMP")

Colour = tuple[int, int, int]

_DAMAGE = (OSError, SyntaxError, ValueError, EOFError, IndexError, struct.error, zlib.error)
"""What Pillow's readers of these formats raise on damaged data."""

_BOMB = (Pillow.DecompressionBombError, Pillow.DecompressionBombWarning)


def decode_image(
    data: bytes, limits: ImageLimits | None = None, *, background: Colour = (255, 255, 255)
) -> Image:
    """Return the picture in `data`, turned as its EXIF orientation says.

    Transparent parts show `background`; of an animation, the first frame is taken; 16-bit grey
    keeps its upper byte. Raises TooLarge beyond the limits, Unreadable for anything else.
    """
    limits = limits or ImageLimits()
    if len(data) > limits.max_bytes:
        raise TooLarge(f"the image has {len(data)} bytes; at most {limits.max_bytes} are taken")
    try:
        with Pillow.open(BytesIO(data), formats=FORMATS) as picture:
            _check_size(picture.size, limits)
            pixels = _opaque(ImageOps.exif_transpose(picture), background)
    except UnidentifiedImageError as error:
        raise Unreadable(f"the data is no image of the formats {', '.join(FORMATS)}") from error
    except _BOMB as error:
        raise TooLarge(f"the image unpacks to too many pixels: {error}") from error
    except TooLarge:
        raise
    except _DAMAGE as error:
        raise Unreadable(f"the image is damaged: {error}") from error
    pixels.setflags(write=False)
    return Image(pixels)


def _check_size(size: tuple[int, int], limits: ImageLimits) -> None:
    """Raise TooLarge for a picture of `size` (width, height) beyond the limits."""
    width, height = size
    if max(size) > limits.max_side:
        raise TooLarge(
            f"the image is {width} x {height}; no side may pass {limits.max_side} pixels"
        )
    if width * height > limits.max_pixels:
        raise TooLarge(
            f"the image is {width} x {height}, {width * height} pixels; "
            f"at most {limits.max_pixels} are taken"
        )


def _opaque(picture: Pillow.Image, background: Colour) -> NDArray[np.uint8]:
    """Return the pixels as red, green and blue, over `background` where transparent."""
    if picture.mode.startswith("I"):  # 16-bit grey; Pillow's own conversion cuts at 255
        grey = (np.asarray(picture) >> 8).astype(np.uint8)
        return np.repeat(grey[..., None], 3, axis=2)
    if picture.has_transparency_data:
        over = picture.convert("RGBA")
        picture = Pillow.alpha_composite(Pillow.new("RGBA", over.size, (*background, 255)), over)
    return np.array(picture.convert("RGB"))
