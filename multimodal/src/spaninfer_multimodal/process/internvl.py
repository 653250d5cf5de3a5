"""InternVL and Aya Vision: an image stretched to the grid of tiles that is most like it, and as a
whole behind.

Source: the Pillow image processor of transformers 5.23, which they share with GOT-OCR 2, and the
texts of their own processors.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from PIL import Image as Pillow

from spaninfer_multimodal.errors import ConfigError
from spaninfer_multimodal.media import Image
from spaninfer_multimodal.process.config import ProcessorConfig, integer, required, square_of
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

    `tokens_per_tile` tokens stand for each, one behind the other, or each behind its number
    (`is_numbered`: Aya Vision).
    """

    normalisation: Normalisation
    resample: Pillow.Resampling
    tile: int
    grids: tuple[Size, ...]
    tokens_per_tile: int
    is_numbered: bool = False

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
            around=_numbered(len(tiles)) if self.is_numbered else ("<img>", "</img>"),
        )


def _numbered(count: int) -> tuple[str, ...]:
    """Return the texts in front of, between and behind the tokens of Aya Vision's tiles."""
    first, *others = [f"TILE_{number}" for number in range(1, count)] + ["TILE_GLOBAL"]
    return f"<|START_OF_IMG|>{first}", *others, "<|END_OF_IMG|>"


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
    """Return the processor of an InternVL or Aya Vision folder; both always cut images."""
    tile = square_of(config.image, 448)
    least, most = (
        integer(config.image, f"{end}_patches", default)
        for end, default in (("min", 1), ("max", 12))
    )
    if not least <= most <= MAX_TILES:
        raise ConfigError(
            f"min_patches is {least} and max_patches {most}; implemented are up to {MAX_TILES}"
        )
    is_aya = config.shared.get("processor_class") == "AyaVisionProcessor"
    return InternVLProcessor(
        normalisation_of(config.image, CLIP_MEAN, CLIP_STD),
        filter_of(config.image, Pillow.Resampling.BICUBIC),
        tile,
        _grids(least, most),
        _aya_tokens(config) if is_aya else integer(config.shared, "image_seq_length", 256),
        is_numbered=is_aya,
    )


def _aya_tokens(config: ProcessorConfig) -> int:
    """Return the tokens of an Aya Vision tile."""
    pixels = required(config.shared, "patch_size", "processor_config.json")
    token = pixels * integer(config.shared, "downsample_factor", 1)
    return (integer(config.shared, "img_size", 364) // token) ** 2


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
