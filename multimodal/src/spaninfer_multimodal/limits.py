"""The most that is decoded of one image, video or audio clip.

Sizes are checked after the header and before memory is taken; durations while decoding, because
headers lie.
"""

from __future__ import annotations

from dataclasses import dataclass

from spaninfer_multimodal.errors import TooLarge


@dataclass(frozen=True, slots=True)
class ImageLimits:
    """Limits of one image. The defaults accept every camera's pictures, 192 MB of pixels each."""

    max_bytes: int = 32 * 2**20
    max_pixels: int = 64 * 10**6
    max_side: int = 16_384


@dataclass(frozen=True, slots=True)
class VideoLimits:
    """Limits of one video, or of one animated image that is read as a video.

    `max_pixels` and `max_side` are of one frame; `max_frames` and `max_total_pixels` of the frames
    that sampling keeps; `max_source_frames` and `max_duration_s` of the whole file.
    """

    max_bytes: int = 256 * 2**20
    max_pixels: int = 16 * 10**6
    max_side: int = 8192
    max_frames: int = 768
    max_total_pixels: int = 256 * 10**6
    max_source_frames: int = 200_000
    max_duration_s: float = 3600.0


@dataclass(frozen=True, slots=True)
class AudioLimits:
    """Limits of one audio clip."""

    max_bytes: int = 64 * 2**20
    max_duration_s: float = 1800.0


def check_bytes(what: str, num_bytes: int, max_bytes: int) -> None:
    """Raise TooLarge for more than `max_bytes` of the `what`."""
    if num_bytes > max_bytes:
        raise TooLarge(f"the {what} has {num_bytes} bytes; at most {max_bytes} are accepted")


def check_size(what: str, size: tuple[int, int], limits: ImageLimits | VideoLimits) -> None:
    """Raise TooLarge for a picture of `size` (width, height) beyond the limits."""
    width, height = size
    if max(size) > limits.max_side:
        raise TooLarge(
            f"the {what} is {width} x {height}; no side may exceed {limits.max_side} pixels"
        )
    if width * height > limits.max_pixels:
        raise TooLarge(
            f"the {what} is {width} x {height}, {width * height} pixels; "
            f"at most {limits.max_pixels} are accepted"
        )


def check_frames(num_frames: int, size: tuple[int, int], limits: VideoLimits) -> None:
    """Raise TooLarge if `num_frames` sampled frames of `size` (width, height) are too many."""
    if num_frames > limits.max_frames:
        raise TooLarge(
            f"{num_frames} frames would be sampled; at most {limits.max_frames} are accepted: "
            "lower fps or num_frames"
        )
    pixels = num_frames * size[0] * size[1]
    if pixels > limits.max_total_pixels:
        raise TooLarge(
            f"{num_frames} frames of {size[0]} x {size[1]} are {pixels} pixels; at most "
            f"{limits.max_total_pixels} are accepted: lower fps, num_frames or the resolution"
        )


def check_source(num_frames: int, duration_s: float, limits: VideoLimits) -> None:
    """Raise TooLarge for a file of more frames or seconds than are searched for samples."""
    if num_frames > limits.max_source_frames:
        raise TooLarge(
            f"the video has more than {limits.max_source_frames} frames, which is the limit"
        )
    if duration_s > limits.max_duration_s:
        raise TooLarge(
            f"the video lasts {duration_s:.1f} s; at most {limits.max_duration_s:g} s are accepted"
        )
