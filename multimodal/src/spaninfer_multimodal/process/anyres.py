"""LLaVA-NeXT and LLaVA-OneVision: an image as a whole, and cut into tiles at the best of many
resolutions.

Source: the Pillow image processors of transformers 5.23, and their counts of placeholder tokens.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray
from PIL import Image as Pillow

from spaninfer_multimodal.errors import ConfigError, TooLarge
from spaninfer_multimodal.media import Image, Video
from spaninfer_multimodal.process.config import (
    Config,
    ProcessorConfig,
    expect,
    integer,
    required,
    size_of,
    square_of,
)
from spaninfer_multimodal.process.features import Tiles, digest_with
from spaninfer_multimodal.process.mixture import Mixture, joined, plain, scaled, with_line_ends
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
from spaninfer_multimodal.sampling import FrameSampling, Spacing

NUM_FRAMES: Final = 32
"""Frames of a video unless others are requested, evenly from the first to the last (Li et al.,
2024, section 3)."""

_STEPS: Final = tuple(384 * step for step in range(1, 7))
_PINPOINTS: Final = tuple((height, width) for height in _STEPS for width in _STEPS)
_FEW_PINPOINTS: Final = (336, 672), (672, 336), (672, 672), (1008, 336), (336, 1008)


@dataclass(frozen=True, slots=True)
class FrameSettings:
    """The preparation of a video's frames."""

    normalisation: Normalisation
    resample: Pillow.Resampling


@dataclass(frozen=True, slots=True)
class AnyResProcessor:
    """Prepares images at the resolution among `pinpoints` that keeps most of them.

    `tokens_per_tile` is the number of patches of one tile of `tile` pixels a side; an image has at
    most `max_tiles` tiles' worth of features, if that is said, which are scaled down behind the
    tower. With `squares_several`, one of several images is a single tile.
    """

    normalisation: Normalisation
    resample: Pillow.Resampling
    tile: int
    pinpoints: tuple[Size, ...]
    tokens_per_tile: int
    max_tiles: int | None = None
    squares_several: bool = False
    videos: FrameSettings | None = None
    sampling: FrameSampling = field(default_factory=FrameSampling)

    def image(self, image: Image) -> Tiles:
        """Return the whole image, then its tiles from left to right and top to bottom."""
        size = image.height, image.width
        best = best_resolution(size, self.pinpoints)
        whole = resize(image.pixels, (self.tile, self.tile), self.resample)
        padded = _padded(resize(image.pixels, fitted_size(size, best), self.resample), best)
        pixels = self.normalisation.apply(np.stack([whole, *cut(padded, self.tile)]))
        mixture = self._mixture(size, best)
        digest = digest_with(self, image.digest)
        return Tiles(pixels, size, len(mixture.rows), digest, mixture)

    def image_of_several(self, image: Image) -> Tiles:
        """Return an image that is not the only one of its request: padded to a square, one tile."""
        pixels = resize(self._square(image.pixels), (self.tile, self.tile), self.resample)
        mixture = plain(np.arange(self.tokens_per_tile + 1, dtype=np.int32))
        return Tiles(
            self.normalisation.apply(pixels[None]),
            (image.height, image.width),
            len(mixture.rows),
            digest_with(("square", self), image.digest),
            mixture,
        )

    def video(self, video: Video) -> Tiles:
        """Return the frames of a video, whose features are scaled to half of each side."""
        assert self.videos is not None, "the model sees none"
        size, resample = (self.tile, self.tile), self.videos.resample
        frames = np.stack([resize(frame, size, resample) for frame in video.frames])
        side, count = math.isqrt(self.tokens_per_tile), self.tokens_per_tile
        grids = np.arange(len(frames) * count, dtype=np.int32).reshape(-1, side, side)
        end = plain(np.array([grids.size], np.int32))
        half = -(-side // 2)
        mixture = joined(*(scaled(grid, half, half) for grid in grids), end)
        return Tiles(
            self.videos.normalisation.apply(frames),
            (video.height, video.width),
            len(mixture.rows),
            digest_with(("video", self), video.digest),
            mixture,
        )

    def _square(self, pixels: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """Return pixels[side side 3], with the mean colour around the image."""
        height, width, _ = pixels.shape
        side = max(height, width)
        square = np.empty((side, side, 3), np.uint8)
        square[:] = [int(mean * 255) for mean in self.normalisation.mean]
        top, left = (side - height) // 2, (side - width) // 2
        square[top : top + height, left : left + width] = pixels
        return square

    def _mixture(self, size: Size, best: Size) -> Mixture:
        """Return the tokens of an image: the whole, then its parts line by line, without the
        features of padding, scaled down where they are those of more than `max_tiles`.
        """
        side, count = math.isqrt(self.tokens_per_tile), self.tokens_per_tile
        grid = best[0] // self.tile, best[1] // self.tile
        numbers = count + np.arange(math.prod(grid) * count, dtype=np.int32)
        mosaic = numbers.reshape(*grid, side, side).swapaxes(1, 2)
        seen = _unpadded(mosaic.reshape(grid[0] * side, grid[1] * side), size)
        rows, columns = seen.shape
        if not seen.size:
            raise TooLarge(
                f"the picture is {size[1]} x {size[0]}: scaled to a tile, its short side is less "
                "than a pixel: crop it"
            )
        parts = plain(seen.reshape(-1))
        most = self.max_tiles
        ratio = 0.0 if most is None else math.sqrt(rows * columns / (most * side**2))
        if ratio > 1.1:
            rows, columns = int(rows // ratio), int(columns // ratio)
            parts = scaled(seen, rows, columns)
        end = count + len(numbers)
        return joined(plain(np.arange(count, dtype=np.int32)), with_line_ends(parts, columns, end))


def best_resolution(size: Size, pinpoints: tuple[Size, ...]) -> Size:
    """Return the resolution that keeps most pixels of `size`, and of those the one that wastes
    fewest.
    """
    height, width = size

    def value(resolution: Size) -> tuple[int, int]:
        scale = min(resolution[1] / width, resolution[0] / height)
        kept = min(int(width * scale) * int(height * scale), width * height)
        return kept, kept - resolution[0] * resolution[1]

    return max(pinpoints, key=value)


def fitted_size(size: Size, resolution: Size) -> Size:
    """Return `size` scaled in proportion to fit into `resolution`."""
    scale_height, scale_width = resolution[0] / size[0], resolution[1] / size[1]
    if scale_width < scale_height:
        return min(math.ceil(size[0] * scale_width), resolution[0]), resolution[1]
    return resolution[0], min(math.ceil(size[1] * scale_height), resolution[1])


def _padded(pixels: NDArray[np.uint8], size: Size) -> NDArray[np.uint8]:
    """Return pixels[height width 3] in the middle of black; the larger half is below and right."""
    missing = [wanted - have for wanted, have in zip(size, pixels.shape[:2], strict=True)]
    return np.pad(pixels, [*((gap // 2, gap - gap // 2) for gap in missing), (0, 0)])


def _unpadded(grid: NDArray[np.int32], size: Size) -> NDArray[np.int32]:
    """Return the part of grid[rows columns] that shows an image of `size`, which fills it along
    one side.
    """
    (height, width), (rows, columns) = size, grid.shape
    if width / height > columns / rows:
        gap = (rows - int(round(height * (columns / width), 7))) // 2
        return grid[gap : rows - gap]
    gap = (columns - int(round(width * (rows / height), 7))) // 2
    return grid[:, gap : columns - gap]


def llava_onevision_of(config: ProcessorConfig) -> AnyResProcessor:
    """Return the processor of a LLaVA-OneVision folder."""
    tile = square_of(config.image, 384)
    expect(config.image, "crop_size", None)
    expect(config.shared, "vision_feature_select_strategy", "full", None)
    return AnyResProcessor(
        normalisation_of(config.image, CLIP_MEAN, CLIP_STD),
        filter_of(config.image, Pillow.Resampling.BICUBIC),
        tile,
        _pinpoints(config.image.get("image_grid_pinpoints"), _PINPOINTS, tile),
        integer(config.shared, "num_image_tokens", 729),
        _max_tiles(config.shared.get("vision_aspect_ratio", "anyres_max_9")),
        squares_several=True,
        videos=_frames(config.video or config.image, tile),
        sampling=FrameSampling(num_frames=NUM_FRAMES, spacing=Spacing.ENDS),
    )


def llava_next_of(config: ProcessorConfig) -> AnyResProcessor:
    """Return the processor of a LLaVA-NeXT folder, whose tiles are as large as the whole image."""
    size = size_of(config.image, {"shortest_edge": 336})
    tile = size["shortest_edge"] if "shortest_edge" in size else square_of(config.image, 336)
    expect(config.image, "crop_size", {"height": tile, "width": tile}, tile, None)
    expect(config.image, "do_pad", True, None)
    patch = required(config.shared, "patch_size", "the tower's config.json")
    return AnyResProcessor(
        normalisation_of(config.image, CLIP_MEAN, CLIP_STD),
        filter_of(config.image, Pillow.Resampling.BICUBIC),
        tile,
        _pinpoints(config.image.get("image_grid_pinpoints"), _FEW_PINPOINTS, tile),
        (tile // patch) ** 2,
    )


def _frames(video: Config, tile: int) -> FrameSettings:
    """Return the settings of videos, whose frames are as large as tiles."""
    size = size_of(video, {"height": tile, "width": tile})
    if dict(size) != {"height": tile, "width": tile}:
        raise ConfigError(f"size of videos is {dict(size)}; only tiles of {tile} are implemented")
    return FrameSettings(
        normalisation_of(video, CLIP_MEAN, CLIP_STD), filter_of(video, Pillow.Resampling.BICUBIC)
    )


def _pinpoints(value: object, default: tuple[Size, ...], tile: int) -> tuple[Size, ...]:
    """Return resolutions as (height, width), which must be whole tiles."""
    if value is not None and (not isinstance(value, list) or not value):
        raise ConfigError(f"image_grid_pinpoints is {value!r}; it must be a list of sizes")
    sizes = tuple((int(height), int(width)) for height, width in value or default)
    if any(side % tile for size in sizes for side in size):
        raise ConfigError(f"image_grid_pinpoints has sizes that are no multiples of {tile}")
    return sizes


def _max_tiles(value: object) -> int:
    """Return the number at the end of anyres_max_9."""
    name, _, number = str(value).rpartition("_")
    if name != "anyres_max" or not number.isdecimal() or number == "0":
        raise ConfigError(f"vision_aspect_ratio is {value!r}; only anyres_max_N is implemented")
    return int(number)
