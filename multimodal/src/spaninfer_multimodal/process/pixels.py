"""Resizing and normalising, to the last bit as transformers' Pillow processors do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray
from PIL import Image as Pillow

from spaninfer_multimodal.errors import ConfigError
from spaninfer_multimodal.process.config import Config, expect, number

CLIP_MEAN: Final = (0.48145466, 0.4578275, 0.40821073)
CLIP_STD: Final = (0.26862954, 0.26130258, 0.27577711)
HALF: Final = (0.5, 0.5, 0.5)

Size = tuple[int, int]
"""Height and width."""


@dataclass(frozen=True, slots=True)
class Normalisation:
    """Normalisation of uint8 to float32: (pixel * scale - mean) / std, for red, green and blue.

    `in_bfloat16`: every result is rounded to bfloat16.
    """

    mean: tuple[float, ...]
    std: tuple[float, ...]
    scale: float = 1 / 255
    in_bfloat16: bool = False

    def apply(self, pixels: NDArray[np.uint8]) -> NDArray[np.float32]:
        """Return pixels[... height width 3] normalised as [... 3 height width]."""
        return self.apply_to_planes(np.moveaxis(pixels, -1, -3))

    def apply_to_planes(self, planes: NDArray[np.uint8]) -> NDArray[np.float32]:
        """Return planes[... 3 height width] normalised.

        There are 256 values per channel, so they are looked up.
        """
        out = np.empty(planes.shape, np.float32)
        for channel, levels in enumerate(self.levels()):
            out[..., channel, :, :] = levels[planes[..., channel, :, :]]
        return out

    def levels(self) -> NDArray[np.float32]:
        """Return what each byte becomes: [3 256], for red, green and blue.

        Rounded as the processors round, after scaling in float64.
        """
        mean, std = (np.array(each, np.float32)[:, None] for each in (self.mean, self.std))
        if self.in_bfloat16:
            scaled = _rounded(np.arange(256, dtype=np.float32) * np.float32(self.scale))
            return _rounded(_rounded(scaled - _rounded(mean)) / _rounded(std))
        scaled = (np.arange(256, dtype=np.float64) * self.scale).astype(np.float32)
        levels: NDArray[np.float32] = (scaled - mean) / std
        return levels


def _rounded(numbers: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return finite numbers rounded to bfloat16, halves to even."""
    bits = numbers.view(np.uint32)
    bits = bits + np.uint32(0x7FFF) + (bits >> np.uint32(16) & np.uint32(1))
    return (bits & np.uint32(0xFFFF0000)).view(np.float32)


def normalisation_of(
    config: Config, mean: tuple[float, ...], std: tuple[float, ...]
) -> Normalisation:
    """Return the normalisation of a configuration; `mean` and `std` are defaults."""
    for key in ("do_rescale", "do_normalize", "do_resize"):
        expect(config, key, True, None)
    return Normalisation(
        _channels(config.get("image_mean"), mean, "image_mean"),
        _channels(config.get("image_std"), std, "image_std"),
        number(config, "rescale_factor", 1 / 255),
    )


def _channels(value: object, default: tuple[float, ...], key: str) -> tuple[float, ...]:
    """Return three numbers."""
    if value is None:
        return default
    if not isinstance(value, Sequence) or len(value) != 3:
        raise ConfigError(f"{key} is {value!r}; it must be a list of three numbers")
    return tuple(float(number) for number in value)


def filter_of(config: Config, default: Pillow.Resampling) -> Pillow.Resampling:
    """Return the filter that `resample` numbers as Pillow does."""
    value = config.get("resample")
    try:
        return default if value is None else Pillow.Resampling(value)
    except ValueError as error:
        raise ConfigError(f"resample is {value!r}; Pillow's filters are 0 to 5") from error


def resize(pixels: NDArray[np.uint8], size: Size, resample: Pillow.Resampling) -> NDArray[np.uint8]:
    """Return pixels[height width 3] scaled to `size`."""
    height, width = size
    return np.asarray(Pillow.fromarray(pixels).resize((width, height), resample))


def center_crop(pixels: NDArray[np.uint8], size: Size) -> NDArray[np.uint8]:
    """Return the middle of pixels[height width 3], with black around it where it is smaller."""
    for axis, wanted in enumerate(size):
        have = pixels.shape[axis]
        if have < wanted:
            before = -(-(wanted - have) // 2)
            padding = [(0, 0)] * 3
            padding[axis] = before, wanted - have - before
            pixels = np.pad(pixels, padding)
        start = (pixels.shape[axis] - wanted) // 2
        pixels = pixels.take(range(start, start + wanted), axis)
    return pixels


def cut(pixels: NDArray[np.uint8], tile: int) -> list[NDArray[np.uint8]]:
    """Return the tiles of pixels[height width 3], from left to right and top to bottom."""
    height, width, _ = pixels.shape
    return [
        pixels[top : top + tile, left : left + tile]
        for top in range(0, height, tile)
        for left in range(0, width, tile)
    ]
