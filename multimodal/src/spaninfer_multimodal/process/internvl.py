"""InternVL: an image stretched to the grid of tiles that is most like it, and as a whole behind.

Source: the Pillow image processor of transformers 5.23, which it shares with GOT-OCR 2, and
InternVL's own processor's text.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from PIL import Image as Pillow

from spaninfer_multimodal.errors import ConfigError
from spaninfer_multimodal.media import Image
from spaninfer_multimodal.process.config import ProcessorConfig, integer, square_of
from spaninfer_multimodal.process.features import Tiles, digest_with
from spaninfer_multimodal.process.pixels import (
    CLIP_MEAN,
    CLIP_STD,
    Normalisation,
    Size,
    cut,
    filter_of,
    normalisation_of,
    resize,
)

MAX_TILES: Final = 256
"""Tiles of an image at the most: published files say 12."""


@dataclass(frozen=True, slots=True)
class InternVLProcessor:
    """Prepares images in one of `grids` of tiles, (rows, columns), of `tile` pixels a side.

    `tokens_per_tile` tokens stand for each, one behind the other.
    """

    normalisation: Normalisation
    resample: Pillow.Resampling
    tile: int
    grids: tuple[Size, ...]
    tokens_per_tile: int

    def image(self, image: Image) -> Tiles:
        """Return the tiles from left to right and top to bottom; behind several the whole image."""
        size = image.height, image.width
        rows, columns = best_grid(size, self.grids, self.tile)
        fitted = rows * self.tile, columns * self.tile
        tiles = cut(resize(image.pixels, fitted, self.resample), self.tile)
        if len(tiles) > 1:
            tiles.append(resize(image.pixels, (self.tile, self.tile), self.resample))
        return Tiles(
            self.normalisation.apply(np.stack(tiles)),
            size,
            self.tokens_per_tile * len(tiles),
            digest_with(self, image.digest),
            around=("<img>", "</img>"),
        )


def best_grid(size: Size, grids: tuple[Size, ...], tile: int) -> Size:
    """Return the grid whose aspect is nearest to that of `size`; of equals, the last that does not
    have twice its pixels, or the first.
    """
    height, width = size
    distances = [abs(width / height - columns / rows) for rows, columns in grids]
    least = min(distances)
    first, *others = (
        each for each, distance in zip(grids, distances, strict=True) if distance == least
    )
    small = [each for each in others if height * width > 0.5 * tile * tile * each[0] * each[1]]
    return small[-1] if small else first


def internvl_of(config: ProcessorConfig) -> InternVLProcessor:
    """Return the processor of an InternVL folder, which always cuts images into tiles."""
    tile = square_of(config.image, 448)
    least, most = (
        integer(config.image, f"{end}_patches", default)
        for end, default in (("min", 1), ("max", 12))
    )
    if not least <= most <= MAX_TILES:
        raise ConfigError(
            f"min_patches is {least} and max_patches {most}; implemented are up to {MAX_TILES}"
        )
    return InternVLProcessor(
        normalisation_of(config.image, CLIP_MEAN, CLIP_STD),
        filter_of(config.image, Pillow.Resampling.BICUBIC),
        tile,
        _grids(least, most),
        integer(config.shared, "image_seq_length", 256),
    )


def _grids(least: int, most: int) -> tuple[Size, ...]:
    """Return every grid of so many tiles, smaller ones first, and of those narrower ones."""
    if most == 1:
        return ((1, 1),)
    grids = [
        (rows, columns)
        for columns in range(1, most + 1)
        for rows in range(1, most // columns + 1)
        if rows * columns >= least
    ]
    return tuple(sorted(grids, key=lambda grid: grid[0] * grid[1]))
