"""Bytes of an animated image -> sampled frames: GIF, WebP, PNG and AVIF read as a video."""

from __future__ import annotations

from typing import Final

import numpy as np
from PIL import Image as Pillow

from spaninfer_multimodal.decode.image import WHITE, opaque, open_picture
from spaninfer_multimodal.limits import VideoLimits, check_frames, check_size, check_source
from spaninfer_multimodal.media import Video
from spaninfer_multimodal.sampling import FrameSampling, Timeline, sample_frames
from spaninfer_multimodal.sniff import Format

DEFAULT_FRAME_MS: Final = 100.0
"""The duration of a frame that has none; browsers do the same with GIFs."""


def decode_animation(
    data: bytes, format: Format, sampling: FrameSampling, limits: VideoLimits
) -> Video:
    """Return sampled frames of an animated image on white; a still image is one frame."""
    with open_picture(data, format, limits) as picture:
        timeline = _timeline(picture, limits)
        indices = sample_frames(sampling, timeline.num_frames, timeline.fps)
        check_frames(len(indices), picture.size, limits)
        frames = np.empty((len(indices), picture.height, picture.width, 3), np.uint8)
        for place, index in enumerate(indices):
            picture.seek(timeline.shown_at(index))
            frames[place] = opaque(picture, WHITE)
    return Video(frames, indices, timeline.fps, timeline.num_frames)


def _timeline(picture: Pillow.Image, limits: VideoLimits) -> Timeline:
    """Return the time of each frame, and the average rate over the whole duration."""
    num_frames: int = getattr(picture, "n_frames", 1)
    check_source(num_frames, 0.0, limits)
    starts_s, now_s = [], 0.0
    for number in range(num_frames):
        picture.seek(number)
        check_size("image", picture.size, limits)  # a GIF grows where a frame exceeds its canvas
        picture.load()  # WebP and AVIF know a frame's duration only once it is decoded
        starts_s.append(now_s)
        now_s += float(picture.info.get("duration") or DEFAULT_FRAME_MS) / 1000
        check_source(number, now_s, limits)
    return Timeline(tuple(starts_s), num_frames / now_s)
