"""Idefics3 and SmolVLM: an image scaled to whole tiles, cut into them, and as a whole behind them.

Source: the Pillow image processors of transformers 5.23, and their processors' texts.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np
from PIL import Image as Pillow

from spaninfer_multimodal.errors import ConfigError
from spaninfer_multimodal.media import Image
from spaninfer_multimodal.process.config import Config, ProcessorConfig, expect, integer, size_of
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

LONGEST_SIDE: Final = 4096
"""Pixels of an image's side before it is scaled to tiles, whatever the model's files say."""

_AROUND: Final = "<fake_token_around_image>"
_WHOLE: Final = "<global-img>"


@dataclass(frozen=True, slots=True)
class Idefics3Processor:
    """Prepares images whose longest side is `longest` pixels, in tiles of `tile` pixels a side.

    `tokens_per_tile` tokens stand for each. Unless `splits`, the only tile is the whole image.
    """

    normalisation: Normalisation
    resample: Pillow.Resampling
    longest: int
    tile: int
    splits: bool
    tokens_per_tile: int

    def image(self, image: Image) -> Tiles:
        """Return the tiles from left to right and top to bottom; behind several the whole image."""
        size = image.height, image.width
        scaled = _longest_side_at(size, self.longest)
        pixels = resize(image.pixels, scaled, self.resample)
        whole = self.tile, self.tile
        fitted = _whole_tiles(scaled, self.tile) if self.splits else whole
        pixels = resize(pixels, fitted, self.resample)
        tiles = cut(pixels, self.tile)
        if len(tiles) > 1:
            tiles.append(resize(pixels, whole, self.resample))
        return Tiles(
            self.normalisation.apply(np.stack(tiles)),
            size,
            self.tokens_per_tile * len(tiles),
            digest_with(self, image.digest),
            around=_around(fitted[0] // self.tile, fitted[1] // self.tile),
        )


def _longest_side_at(size: Size, side: int) -> Size:
    """Return `size` in proportion with this longest side, the other one even, within the limit."""
    height, width = size
    ratio = width / height
    if width >= height:
        width, height = side, _even(int(side / ratio))
    else:
        height, width = side, _even(int(side * ratio))
    height, width = max(height, 1), max(width, 1)
    ratio = width / height
    if max(height, width) <= LONGEST_SIDE:
        return height, width
    if width >= height:
        return max(int(LONGEST_SIDE / ratio), 1), LONGEST_SIDE
    return LONGEST_SIDE, max(int(LONGEST_SIDE * ratio), 1)


def _even(side: int) -> int:
    return side + side % 2


def _whole_tiles(size: Size, tile: int) -> Size:
    """Return `size` with its longer side rounded up to whole tiles, and then the other one."""
    height, width = size
    ratio = width / height
    if width >= height:
        width = -(-width // tile) * tile
        return math.ceil(int(width / ratio) / tile) * tile, width
    height = -(-height // tile) * tile
    return height, math.ceil(int(height * ratio) / tile) * tile


def _around(rows: int, columns: int) -> tuple[str, ...]:
    """Return the texts in front of, between and behind the tokens of tiles."""
    if rows * columns == 1:
        return _AROUND + _WHOLE, _AROUND
    tiles = [
        ("\n" if row and not column else "") + f"{_AROUND}<row_{row + 1}_col_{column + 1}>"
        for row in range(rows)
        for column in range(columns)
    ]
    return *tiles, f"\n\n{_AROUND}{_WHOLE}", _AROUND


def idefics3_of(config: ProcessorConfig) -> Idefics3Processor:
    """Return the processor of an Idefics3 or SmolVLM folder."""
    for key in ("do_pad", "do_convert_rgb"):
        expect(config.image, key, True, None)
    splits = config.image.get("do_image_splitting", True)
    if not isinstance(splits, bool):
        raise ConfigError(f"do_image_splitting is {splits!r}; it must be true or false")
    return Idefics3Processor(
        normalisation_of(config.image, HALF, HALF),
        filter_of(config.image, Pillow.Resampling.LANCZOS),
        _longest(config.image, "size", 4 * 364),
        _longest(config.image, "max_image_size", 364),
        splits,
        integer(config.shared, "image_seq_len", 169),
    )


def _longest(config: Config, key: str, default: int) -> int:
    """Return a size's longest side, the only one that is said."""
    size = size_of({"size": config.get(key)}, {"longest_edge": default})
    if set(size) != {"longest_edge"}:
        raise ConfigError(f"{key} is {dict(size)}; only longest_edge is implemented")
    return size["longest_edge"]
