"""CLIP, SigLIP, Gemma 3 and Qwen-VL: images of one size, and Gemma 3's crops of long ones.

Source: the Pillow image processors of transformers 5.23; visual.py of Qwen-VL-Chat.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import Image as Pillow

from spaninfer_multimodal.errors import ConfigError
from spaninfer_multimodal.media import Image
from spaninfer_multimodal.process.config import (
    ProcessorConfig,
    expect,
    integer,
    number,
    required,
    size_of,
)
from spaninfer_multimodal.process.features import Tiles, digest_with
from spaninfer_multimodal.process.pixels import (
    CLIP_MEAN,
    CLIP_STD,
    HALF,
    Normalisation,
    Size,
    center_crop,
    filter_of,
    normalisation_of,
    resize,
)


@dataclass(frozen=True, slots=True)
class PanAndScan:
    """Gemma 3's pan and scan: crops of an image that is far from square."""

    min_crop: int
    max_crops: int
    min_ratio: float


@dataclass(frozen=True, slots=True)
class FixedProcessor:
    """Prepares images of one size.

    `size` is scaled to without keeping proportions; `shortest_edge` keeps them, and `crop` then
    takes the middle. `tokens_per_tile` is the number of tokens of a view in the text.
    """

    normalisation: Normalisation
    resample: Pillow.Resampling
    tokens_per_tile: int
    size: Size | None = None
    shortest_edge: int | None = None
    crop: Size | None = None
    pan_and_scan: PanAndScan | None = None

    def image(self, image: Image) -> Tiles:
        """Return the image, and its crops where pan and scan makes any."""
        views = [image.pixels]
        if self.pan_and_scan is not None:
            views += crops(image.pixels, self.pan_and_scan)
        pixels = self.normalisation.apply(np.stack([self._fitted(view) for view in views]))
        tokens = self.tokens_per_tile * len(views)
        digest = digest_with(self, image.digest)
        return Tiles(pixels, (image.height, image.width), tokens, digest)

    def _fitted(self, pixels: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """Return pixels[height width 3] in the one size."""
        size = self.size or shortest(pixels.shape[:2], self.shortest_edge or 0)
        pixels = resize(pixels, size, self.resample)
        return pixels if self.crop is None else center_crop(pixels, self.crop)


def shortest(size: tuple[int, ...], edge: int) -> Size:
    """Return `size` in proportion, with its shorter side at `edge`."""
    height, width = size
    if width <= height:
        return int(edge * height / width), edge
    return edge, int(edge * width / height)


def crops(pixels: NDArray[np.uint8], rule: PanAndScan) -> list[NDArray[np.uint8]]:
    """Return the crops of pixels[height width 3], side by side along its longer side."""
    axis = 1 if pixels.shape[1] >= pixels.shape[0] else 0
    long, short = pixels.shape[axis], pixels.shape[1 - axis]
    if long / short < rule.min_ratio:
        return []
    wanted = min(long // rule.min_crop, math.floor(long / short + 0.5))
    count = min(rule.max_crops, max(2, wanted))
    step = math.ceil(long / count)
    if min(step, short) < rule.min_crop:
        return []
    parts = (range(start, min(start + step, long)) for start in range(0, step * count, step))
    return [pixels.take(part, axis) for part in parts]


def gemma3_of(config: ProcessorConfig) -> FixedProcessor:
    """Return the processor of a Gemma 3 folder; 256 tokens stand for each view."""
    image = config.image
    rule = None
    if image.get("do_pan_and_scan"):
        rule = PanAndScan(
            integer(image, "pan_and_scan_min_crop_size", 256),
            integer(image, "pan_and_scan_max_num_crops", 4),
            number(image, "pan_and_scan_min_ratio_to_activate", 1.2),
        )
    return FixedProcessor(
        normalisation_of(image, HALF, HALF),
        filter_of(image, Pillow.Resampling.BILINEAR),
        integer(config.shared, "image_seq_length", 256),
        size=_square(size_of(image, {"height": 224, "width": 224})),
        pan_and_scan=rule,
    )


def first_qwen_vl_of(config: ProcessorConfig) -> FixedProcessor:
    """Return the processor of a Qwen-VL folder (2023): torchvision's, on pictures of Pillow."""
    side = required(config.image, "image_size", "`visual` of config.json")
    return FixedProcessor(
        normalisation_of({}, CLIP_MEAN, CLIP_STD),
        Pillow.Resampling.BICUBIC,
        integer(config.image, "n_queries", 256),
        size=(side, side),
    )


def siglip_of(config: ProcessorConfig) -> FixedProcessor:
    """Return the processor of a SigLIP folder."""
    size = _square(size_of(config.image, {"height": 224, "width": 224}))
    patch = required(config.shared, "patch_size", "the tower's config.json")
    return FixedProcessor(
        normalisation_of(config.image, HALF, HALF),
        filter_of(config.image, Pillow.Resampling.BICUBIC),
        (size[0] // patch) * (size[1] // patch),
        size=size,
    )


def clip_of(config: ProcessorConfig) -> FixedProcessor:
    """Return the processor of a CLIP folder: a token for the class, unless the model (LLaVA) drops
    it, and one for each patch.
    """
    image = config.image
    size = size_of(image, {"shortest_edge": 224})
    crop = size_of({"size": image.get("crop_size")}, {"height": 224, "width": 224})
    crop_size = _square(crop) if image.get("do_center_crop", True) else None
    fixed = None if "shortest_edge" in size else _square(size)
    if crop_size is None and fixed is None:
        raise ConfigError("do_center_crop is false and size has shortest_edge: sizes would differ")
    final = crop_size or fixed or (0, 0)
    patch = required(config.shared, "patch_size", "the tower's config.json")
    expect(image, "do_pad", False, None)
    has_class = config.shared.get("vision_feature_select_strategy") != "default"
    return FixedProcessor(
        normalisation_of(image, CLIP_MEAN, CLIP_STD),
        filter_of(image, Pillow.Resampling.BICUBIC),
        (final[0] // patch) * (final[1] // patch) + has_class,
        size=fixed,
        shortest_edge=size.get("shortest_edge"),
        crop=crop_size,
    )


def _square(size: object) -> Size:
    """Return height and width."""
    if isinstance(size, dict) and size.get("height") and size.get("width"):
        return size["height"], size["width"]
    raise ConfigError(f"size is {size!r}; only height and width are implemented here")
