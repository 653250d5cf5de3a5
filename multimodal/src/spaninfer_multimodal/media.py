"""Pictures as requests hold them, and how large they may be."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class ImageLimits:
    """What is decoded at most. Checked before the memory is taken.

    The defaults let every camera's pictures in and keep one picture below 200 MB of pixels.
    """

    max_bytes: int = 32 * 2**20
    max_pixels: int = 64 * 10**6
    max_side: int = 16_384


@dataclass(frozen=True, eq=False)
class Image:
    """A picture: pixels[height width 3], red green blue, uint8, read-only; upright and opaque."""

    pixels: NDArray[np.uint8]

    @property
    def height(self) -> int:
        """Rows of pixels."""
        height: int = self.pixels.shape[0]
        return height

    @property
    def width(self) -> int:
        """Pixels of a row."""
        width: int = self.pixels.shape[1]
        return width

    @cached_property
    def digest(self) -> bytes:
        """SHA-256 of size and pixels: equal for equal pictures, however they were encoded."""
        size = f"{self.height} {self.width} ".encode()
        return hashlib.sha256(size + self.pixels.tobytes()).digest()
