"""Bytes of an image -> pixels, for bytes that anybody may have sent.

Only the reader that the signature names is tried, sizes are checked after the header and before the
pixels, and Pillow's errors on damaged data become MediaErrors.
"""

from __future__ import annotations

import re
import struct
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from typing import Final

import numpy as np
from numpy.typing import NDArray
from PIL import Image as Pillow
from PIL import ImageOps, UnidentifiedImageError

from spaninfer_multimodal.errors import MediaError, TooLarge, Unreadable
from spaninfer_multimodal.limits import ImageLimits, VideoLimits, check_bytes, check_size
from spaninfer_multimodal.media import Image
from spaninfer_multimodal.sniff import Format, Kind, sniff

Colour = tuple[int, int, int]
WHITE: Final[Colour] = (255, 255, 255)

_DAMAGE = (
    OSError,
    SyntaxError,
    ValueError,
    EOFError,
    IndexError,
    KeyError,
    TypeError,
    RuntimeError,
    OverflowError,
    ZeroDivisionError,
    struct.error,
    zlib.error,
)
"""The errors that Pillow's readers of these formats raise on damaged data."""

_BOMB = (Pillow.DecompressionBombError, Pillow.DecompressionBombWarning)


def decode_image(
    data: bytes, limits: ImageLimits | None = None, *, background: Colour = WHITE
) -> Image:
    """Return the picture in `data`, rotated upright by its EXIF orientation.

    Transparent parts show `background`; of an animation the first frame is taken; 16-bit grey keeps
    its upper byte. Raises TooLarge beyond the limits, Unreadable for anything else.
    """
    limits = limits or ImageLimits()
    check_bytes("image", len(data), limits.max_bytes)
    with open_picture(data, sniff(data, Kind.IMAGE), limits) as picture:
        return Image(opaque(ImageOps.exif_transpose(picture), background))


@contextmanager
def open_picture(
    data: bytes, format: Format, limits: ImageLimits | VideoLimits
) -> Iterator[Pillow.Image]:
    """Open a picture whose size is within the limits; damage found inside becomes Unreadable."""
    try:
        with Pillow.open(BytesIO(data), formats=[format.reader]) as picture:
            check_size("image", picture.size, limits)
            yield picture
    except MediaError:
        raise
    except UnidentifiedImageError as error:
        raise Unreadable(
            f"the {format.name} image has a damaged header, or is of a variant that is not decoded"
        ) from error
    except _BOMB as error:
        raise TooLarge(f"the image unpacks to too many pixels: {error}") from error
    except _DAMAGE as error:
        raise Unreadable(f"the {format.name} image is damaged: {_public(error)}") from error


def opaque(picture: Pillow.Image, background: Colour) -> NDArray[np.uint8]:
    """Return pixels[height width 3], over `background` where the picture is transparent."""
    if picture.mode.startswith("I;16"):
        return _grey_of_16_bits(picture, background)
    if picture.mode in ("I", "F", "LAB"):
        raise Unreadable(
            f"the image has {_PIXELS[picture.mode]}, which have no agreed colours on a screen: "
            "convert it to 8-bit RGB"
        )
    if picture.has_transparency_data:
        over = picture.convert("RGBA")
        picture = Pillow.alpha_composite(Pillow.new("RGBA", over.size, (*background, 255)), over)
    return np.array(picture.convert("RGB"))


_PIXELS: Final = {"I": "32-bit integers", "F": "floating-point numbers", "LAB": "Lab colours"}


def _grey_of_16_bits(picture: Pillow.Image, background: Colour) -> NDArray[np.uint8]:
    """Keep the upper byte of each grey value; Pillow's own conversion would cut at 255."""
    grey = np.asarray(picture)
    pixels = np.repeat((grey >> 8).astype(np.uint8)[..., None], 3, axis=2)
    transparent = picture.info.get("transparency")
    if isinstance(transparent, int):
        pixels[grey == transparent] = background
    return pixels


def _public(error: Exception) -> str:
    """Return an error's text without addresses of memory, which help an attacker."""
    return re.sub(r"<[^>]*0x[^>]*>|0x[0-9a-fA-F]+", "…", str(error))
