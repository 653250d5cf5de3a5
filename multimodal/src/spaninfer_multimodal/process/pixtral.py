"""Pixtral and Mistral 3: images of any size up to a longest side, as patches, line by line.

Source: the Pillow image processor of transformers 5.23, and its processor's text.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from PIL import Image as Pillow

from spaninfer_multimodal.errors import ConfigError, TooLarge
from spaninfer_multimodal.media import Image
from spaninfer_multimodal.process.config import Config, ProcessorConfig, expect, integer, size_of
from spaninfer_multimodal.process.features import Patches, digest_with
from spaninfer_multimodal.process.patchify import patchify
from spaninfer_multimodal.process.pixels import (
    CLIP_MEAN,
    CLIP_STD,
    Normalisation,
    Size,
    filter_of,
    normalisation_of,
    resize,
)


@dataclass(frozen=True, slots=True)
class PixtralProcessor:
    """Prepares images that keep their proportions, and are at most `largest` (height, width).

    `line_end` and `image_end` are the texts behind the tokens of a line, and behind those of the
    last one.
    """

    normalisation: Normalisation
    resample: Pillow.Resampling
    patch: int
    merge: int
    largest: Size
    line_end: str
    image_end: str

    @property
    def temporal(self) -> int:
        """One frame in a patch."""
        return 1

    def image(self, image: Image) -> Patches:
        """Return the patches of an image; TooLarge where its short side would be no pixel."""
        size = self._fitted((image.height, image.width))
        pixels = resize(image.pixels, size, self.resample)
        patches = patchify(pixels[None], self, digest_with(self, image.digest))
        num_lines = patches.grid_thw[1] // self.merge
        ends = (self.line_end,) * (num_lines - 1)
        return replace(patches, around=("", *ends, self.image_end))

    def _fitted(self, size: Size) -> Size:
        """Return a size in proportion, with both sides rounded up to whole tokens."""
        ratio = max(have / most for have, most in zip(size, self.largest, strict=True))
        height, width = (math.floor(side / ratio) for side in size) if ratio > 1 else size
        if not height or not width:
            raise TooLarge(
                f"the picture is {size[1]} x {size[0]}: scaled to {self.largest[1]} x "
                f"{self.largest[0]}, its short side is less than a pixel: crop it"
            )
        token = self.patch * self.merge
        return -(-height // token) * token, -(-width // token) * token


def pixtral_of(config: ProcessorConfig) -> PixtralProcessor:
    """Return the processor of a Pixtral folder; sizes of patches are those of the whole one."""
    expect(config.image, "do_center_crop", False, None)
    size = size_of(config.image, {"longest_edge": 1024})
    edge = size.get("longest_edge")
    largest = (edge, edge) if edge else (size.get("height"), size.get("width"))
    if largest[0] is None or largest[1] is None:
        raise ConfigError(f"size is {dict(size)}; it must have longest_edge, or height and width")
    return PixtralProcessor(
        normalisation_of(config.image, CLIP_MEAN, CLIP_STD),
        filter_of(config.image, Pillow.Resampling.BICUBIC),
        _patch(config.shared),
        integer(config.shared, "spatial_merge_size", 1),
        (largest[0], largest[1]),
        _text(config.shared, "image_break_token", "[IMG_BREAK]"),
        _text(config.shared, "image_end_token", "[IMG_END]"),
    )


def _patch(shared: Config) -> int:
    """Return the pixels of a patch's side; some files say height and width."""
    value = shared.get("patch_size")
    if not isinstance(value, Mapping):
        return integer(shared, "patch_size", 16)
    height, width = (integer(value, key, 16) for key in ("height", "width"))
    if height != width:
        raise ConfigError(f"patch_size is {dict(value)}; only squares are implemented")
    return height


def _text(shared: Config, key: str, default: str) -> str:
    value = shared.get(key, default)
    if not isinstance(value, str):
        raise ConfigError(f"{key} is {value!r}; it must be a text")
    return value
