"""Qwen2-VL, Qwen2.5-VL and Qwen3-VL: images and videos of any size, as patches.

Source: the Pillow image processor and the video processors of transformers 5.23. Videos are
resized with Pillow as images are, where transformers uses torchvision: at most 2.5 grey levels
apart.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from PIL import Image as Pillow

from spaninfer_multimodal.errors import TooLarge
from spaninfer_multimodal.media import Image, Video
from spaninfer_multimodal.process.config import Config, ProcessorConfig, integer, number, size_of
from spaninfer_multimodal.process.features import Patches, digest_with
from spaninfer_multimodal.process.patchify import patchify
from spaninfer_multimodal.process.pixels import (
    CLIP_MEAN,
    CLIP_STD,
    HALF,
    Normalisation,
    Size,
    filter_of,
    normalisation_of,
    resize,
)
from spaninfer_multimodal.sampling import FrameSampling, Spacing

MAX_ASPECT: Final = 200
"""The largest ratio of the sides of an image that the families accept."""


@dataclass(frozen=True, slots=True)
class PatchSettings:
    """The patching of one kind of media. `min_pixels` and `max_pixels` are of one frame, or of
    all frames of a video if `budget_is_total`.
    """

    patch: int
    merge: int
    temporal: int
    min_pixels: int
    max_pixels: int
    normalisation: Normalisation
    resample: Pillow.Resampling
    budget_is_total: bool = False


@dataclass(frozen=True, slots=True)
class QwenVLProcessor:
    """Prepares images and videos. Other budgets per request: `dataclasses.replace`."""

    images: PatchSettings
    videos: PatchSettings
    sampling: FrameSampling

    def image(self, image: Image) -> Patches:
        """Return the patches of an image; raises TooLarge for sides of more than 200 to 1."""
        settings = self.images
        size = smart_resize((image.height, image.width), settings)
        pixels = resize(image.pixels, size, settings.resample)
        digest = digest_with(settings, image.digest)
        return patchify(pixels[None], settings, digest)

    def video(self, video: Video) -> Patches:
        """Return the patches of a video's frames; raises TooLarge as `image` does."""
        settings = self.videos
        num_frames = len(video.frames)
        size = smart_resize((video.height, video.width), settings, num_frames)
        frames = np.stack([resize(frame, size, settings.resample) for frame in video.frames])
        sampled_fps = num_frames / video.num_source_frames * video.fps
        return replace(
            patchify(frames, settings, digest_with(settings, video.digest)),
            seconds_per_grid=settings.temporal / sampled_fps,
            times_s=grid_times(video.times_s, settings.temporal),
        )


def smart_resize(size: Size, settings: PatchSettings, num_frames: int = 1) -> Size:
    """Return the size to scale to: multiples of patch * merge, within the budget of pixels."""
    height, width = size
    factor = settings.patch * settings.merge
    if settings.budget_is_total and min(size) < factor:
        scale = max(factor / height, factor / width)
        height, width = int(height * scale), int(width * scale)
    if max(height, width) / min(height, width) > MAX_ASPECT:
        raise TooLarge(
            f"the picture is {size[1]} x {size[0]}; no side may be more than {MAX_ASPECT} times "
            "the other: crop it"
        )
    frames, padded = (num_frames, _rounded(num_frames, settings.temporal))
    if not settings.budget_is_total:
        frames = padded = 1
    fitted = _rounded(height, factor), _rounded(width, factor)
    if padded * fitted[0] * fitted[1] > settings.max_pixels:
        ratio = math.sqrt(frames * height * width / settings.max_pixels)
        return (
            max(factor, math.floor(height / ratio / factor) * factor),
            max(factor, math.floor(width / ratio / factor) * factor),
        )
    if padded * fitted[0] * fitted[1] < settings.min_pixels:
        ratio = math.sqrt(settings.min_pixels / (frames * height * width))
        return (
            math.ceil(height * ratio / factor) * factor,
            math.ceil(width * ratio / factor) * factor,
        )
    return fitted


def _rounded(number: int, multiple: int) -> int:
    """Round to a multiple, halves to the even one, as Python and the families do."""
    return round(number / multiple) * multiple


def grid_times(times_s: tuple[float, ...], temporal: int) -> tuple[float, ...]:
    """Return the time of each temporal patch: between its first and its last frame."""
    padded = times_s + times_s[-1:] * (-len(times_s) % temporal)
    pairs = zip(padded[::temporal], padded[temporal - 1 :: temporal], strict=True)
    return tuple((first + last) / 2 for first, last in pairs)


def qwen_vl_of(config: ProcessorConfig) -> QwenVLProcessor:
    """Return the processor that a model folder describes."""
    image, video = config.image, config.video or config.image
    is_third = "Qwen3VL" in str(
        video.get("video_processor_type", config.shared.get("processor_class"))
    )
    images = _settings(image, 14, (CLIP_MEAN, CLIP_STD), (56 * 56, 28 * 28 * 1280))
    if is_third:
        budget = 128 * 32 * 32, 768 * 32 * 32
        videos = _settings(video, 16, (HALF, HALF), budget, budget_is_total=True)
    else:
        budget = 128 * 28 * 28, 768 * 28 * 28
        videos = _settings(video, 14, (CLIP_MEAN, CLIP_STD), budget)
    sampling = FrameSampling(
        fps=number(video, "fps", 2.0),
        min_frames=integer(video, "min_frames", 4),
        max_frames=integer(video, "max_frames", 768),
        multiple=videos.temporal,
        spacing=Spacing.ENDS if is_third else Spacing.FLOOR,
    )
    return QwenVLProcessor(images, videos, sampling)


def _settings(
    config: Config,
    patch: int,
    colours: tuple[tuple[float, ...], tuple[float, ...]],
    budget: tuple[int, int],
    *,
    budget_is_total: bool = False,
) -> PatchSettings:
    """Read the settings of one kind of media; old files spell the budget min_pixels, max_pixels."""
    size = size_of(config, {})
    return PatchSettings(
        integer(config, "patch_size", patch),
        integer(config, "merge_size", 2),
        integer(config, "temporal_patch_size", 2),
        integer(config, "min_pixels", size.get("shortest_edge", budget[0])),
        integer(config, "max_pixels", size.get("longest_edge", budget[1])),
        normalisation_of(config, *colours),
        filter_of(config, Pillow.Resampling.BICUBIC),
        budget_is_total,
    )
