"""Llama 4: an image cut into tiles at the best of many resolutions, and as a whole behind them.

Source: the image processor of transformers 5.23, which resizes with torchvision where we use
Pillow, and its processor's text.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Final, TypeAlias

import numpy as np
from PIL import Image as Pillow

from spaninfer_multimodal.errors import ConfigError
from spaninfer_multimodal.media import Image
from spaninfer_multimodal.process.config import (
    Config,
    ProcessorConfig,
    expect,
    integer,
    number,
    square_of,
)
from spaninfer_multimodal.process.features import Tiles, digest_with
from spaninfer_multimodal.process.pixels import (
    HALF,
    Normalisation,
    Size,
    cut,
    filter_of,
    normalisation_of,
    resize,
)

MAX_TILES: Final = 256
"""Tiles of an image at the most: published files say 16."""

_Side: TypeAlias = "int | np.float32"


@dataclass(frozen=True, slots=True)
class Llama4Processor:
    """Prepares images at the one of `resolutions` that shows most of them.

    An image is not scaled up beyond a tile of `tile` pixels a side, unless `fills_canvas`.
    `tokens_per_tile` tokens stand for each tile.
    """

    normalisation: Normalisation
    resample: Pillow.Resampling
    tile: int
    resolutions: tuple[Size, ...]
    fills_canvas: bool
    tokens_per_tile: int

    def image(self, image: Image) -> Tiles:
        """Return the tiles from left to right and top to bottom; behind several the whole image."""
        size = image.height, image.width
        best = best_resolution(size, self.resolutions, largest=self.fills_canvas)
        fitted = _fitted(size, self._limits(size, best))
        canvas = np.zeros((*best, 3), np.uint8)
        canvas[: fitted[0], : fitted[1]] = resize(image.pixels, fitted, self.resample)
        rows, columns = best[0] // self.tile, best[1] // self.tile
        tiles = cut(canvas, self.tile)
        if len(tiles) > 1:
            tiles.append(resize(image.pixels, (self.tile, self.tile), self.resample))
        return Tiles(
            self.normalisation.apply(np.stack(tiles)),
            size,
            self.tokens_per_tile * len(tiles),
            digest_with(self, image.digest),
            around=_around(rows, columns),
        )

    def _limits(self, size: Size, best: Size) -> tuple[_Side, _Side]:
        """Return the sides to scale to within; those of the canvas are its tensor's float32."""
        height, width = np.float32(best[0]), np.float32(best[1])
        if self.fills_canvas:
            return height, width
        return _least(max(size[0], self.tile), height), _least(max(size[1], self.tile), width)


def _least(side: int, most: np.float32) -> _Side:
    return most if most < side else side


def best_resolution(size: Size, resolutions: tuple[Size, ...], *, largest: bool) -> Size:
    """Return the resolution whose scale is the least from 1 on, or the largest where all are
    below; of those with the same scale, the smallest. `largest`: the largest scale in any case.
    """
    sides = np.array(resolutions, np.float32) / np.array(size, np.float32)
    scales = sides.min(axis=1)
    up = scales[scales >= 1]
    scale = up.min() if len(up) and not largest else scales.max()
    chosen = [each for each, its in zip(resolutions, scales, strict=True) if its == scale]
    return min(chosen, key=math.prod)


def _fitted(size: Size, limits: tuple[_Side, _Side]) -> Size:
    """Return `size` scaled in proportion to fit within the limits, at least a pixel."""
    scale_height, scale_width = (most / have for most, have in zip(limits, size, strict=True))
    if scale_width < scale_height:
        fitted = min(math.floor(size[0] * scale_width), int(limits[0])), int(limits[1])
    else:
        fitted = int(limits[0]), min(math.floor(size[1] * scale_height), int(limits[1]))
    return max(fitted[0], 1), max(fitted[1], 1)


def _around(rows: int, columns: int) -> tuple[str, ...]:
    """Return the texts in front of, between and behind the tokens of tiles."""
    if rows * columns == 1:
        return "<|image_start|><|image|>", "<|image_end|>"
    line = ("<|tile_x_separator|>",) * (columns - 1) + ("<|tile_y_separator|>",)
    *between, last = line * rows
    return "<|image_start|>", *between, f"{last}<|image|>", "<|image_end|>"


def llama4_of(config: ProcessorConfig) -> Llama4Processor:
    """Return the processor of a Llama 4 folder."""
    tile = square_of(config.image, 336)
    normalisation = normalisation_of(config.image, HALF, HALF)
    expect(config.shared, "pixel_shuffle_ratio", 0.5, 1, None)
    merged = round(1 / number(config.shared, "pixel_shuffle_ratio", 0.5)) ** 2
    patches = (tile // integer(config.shared, "patch_size", 14)) ** 2
    return Llama4Processor(
        replace(normalisation, in_bfloat16=True),
        filter_of(config.image, Pillow.Resampling.BILINEAR),
        tile,
        _resolutions(_max_tiles(config.image), tile),
        _flag(config.image, "resize_to_max_canvas"),
        patches // merged,
    )


def _resolutions(max_tiles: int, tile: int) -> tuple[Size, ...]:
    """Return the sizes of every rectangle of at most that many tiles, by aspect as they come."""
    by_aspect: dict[float, list[Size]] = {}
    for count in range(max_tiles, 0, -1):
        for rows in range(1, count + 1):
            if count % rows == 0:
                columns = count // rows
                size = rows * tile, columns * tile
                by_aspect.setdefault(rows / columns, []).append(size)
    return tuple(size for sizes in by_aspect.values() for size in sizes)


def _max_tiles(config: Config) -> int:
    count = integer(config, "max_patches", 16)
    if count > MAX_TILES:
        raise ConfigError(f"max_patches is {count}; at most {MAX_TILES} are implemented")
    return count


def _flag(config: Config, key: str) -> bool:
    value = config.get(key)
    if value not in (None, True, False):
        raise ConfigError(f"{key} is {value!r}; it must be true or false")
    return bool(value)
