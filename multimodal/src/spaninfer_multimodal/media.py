"""Images, videos and audio clips as a request holds them: arrays, independent of their encoding."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

SAMPLE_RATE = 16_000
"""Samples per second of every Audio: the training rate of all families' audio encoders."""


@dataclass(frozen=True, eq=False)
class Image:
    """An upright, opaque picture: pixels[height width 3], red green blue, uint8, read-only."""

    pixels: NDArray[np.uint8]

    def __post_init__(self) -> None:
        self.pixels.setflags(write=False)

    @property
    def height(self) -> int:
        """Rows of pixels."""
        return int(self.pixels.shape[0])

    @property
    def width(self) -> int:
        """Pixels of a row."""
        return int(self.pixels.shape[1])

    @property
    def num_bytes(self) -> int:
        """Size in memory."""
        return self.pixels.nbytes

    @cached_property
    def digest(self) -> bytes:
        """SHA-256 of size and pixels: equal for equal pictures, however they were encoded."""
        return digest_of("image", self.pixels)


@dataclass(frozen=True, eq=False)
class Video:
    """Frames sampled from a video: frames[num_frames height width 3], uint8, read-only.

    The source is described as if its frame rate were constant: frame number n of
    `num_source_frames` is shown at n / fps seconds, and `indices` are the numbers of the sampled
    frames. For a variable frame rate, `fps` is the average, and a sampled frame is the one that was
    on the screen at that time.
    """

    frames: NDArray[np.uint8]
    indices: tuple[int, ...]
    fps: float
    num_source_frames: int

    def __post_init__(self) -> None:
        self.frames.setflags(write=False)

    @property
    def height(self) -> int:
        """Rows of pixels of a frame."""
        return int(self.frames.shape[1])

    @property
    def width(self) -> int:
        """Pixels of a row of a frame."""
        return int(self.frames.shape[2])

    @property
    def num_bytes(self) -> int:
        """Size in memory."""
        return self.frames.nbytes

    @property
    def times_s(self) -> tuple[float, ...]:
        """Seconds from the start at which each sampled frame is shown."""
        return tuple(index / self.fps for index in self.indices)

    @cached_property
    def digest(self) -> bytes:
        """SHA-256 of sizes, frames and their times."""
        return digest_of(f"video {self.fps!r} {self.indices}", self.frames)


@dataclass(frozen=True, eq=False)
class Audio:
    """A mono clip: samples[num_samples], float32 in [-1, 1], 16 000 per second, read-only."""

    samples: NDArray[np.float32]

    def __post_init__(self) -> None:
        self.samples.setflags(write=False)

    @property
    def duration_s(self) -> float:
        """Length in seconds."""
        return float(len(self.samples) / SAMPLE_RATE)

    @property
    def num_bytes(self) -> int:
        """Size in memory."""
        return self.samples.nbytes

    @cached_property
    def digest(self) -> bytes:
        """SHA-256 of the samples."""
        return digest_of("audio", self.samples)


def digest_of(kind: str, array: NDArray[np.uint8] | NDArray[np.float32]) -> bytes:
    """Return SHA-256 of kind, shape and content, so that no two media of unequal shape share it."""
    digest = hashlib.sha256(f"{kind} {array.shape} ".encode())
    digest.update(np.ascontiguousarray(array).data)
    return digest.digest()
