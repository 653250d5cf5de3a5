"""Inputs of a tower: frozen arrays, their number of tokens, and a digest of their origin."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from spaninfer_multimodal.process.mixture import Mixture
from spaninfer_multimodal.process.pixels import Normalisation


@dataclass(frozen=True, eq=False)
class Patches:
    """Patches of one image or video of any size: the Qwen-VL families, Pixtral.

    They are kept as bytes, an eighth of the numbers that a tower reads of an image:
    `codes`[rows, 3 * frames * patch * patch] in the order of the merged grid. `normalisation` says
    what they stand for, and each frame of a patch stands for `repeats`.

    `grid_thw` counts patches in time, height and width. `seconds_per_grid` is the time between two
    rows of a video's time axis, and `times_s` the time shown for each (Qwen3-VL writes it into the
    text); None and empty for images.

    `around` are the texts in front of, between and behind as many runs of tokens, all of one
    length; empty where tokens stand together, as the chat template writes them.
    """

    codes: NDArray[np.uint8]
    normalisation: Normalisation
    repeats: int
    grid_thw: tuple[int, int, int]
    num_tokens: int
    digest: bytes
    seconds_per_grid: float | None = None
    times_s: tuple[float, ...] = ()
    around: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        self.codes.setflags(write=False)

    @property
    def pixels(self) -> NDArray[np.float32]:
        """The numbers [rows, 3 * temporal * patch * patch] that a tower reads, made now."""
        planes = self.codes.reshape(len(self.codes), 3, 1, -1)
        colours = self.normalisation.apply_to_planes(planes)
        rows = np.repeat(colours, self.repeats, axis=2).reshape(len(self.codes), -1)
        rows.setflags(write=False)
        return rows


@dataclass(frozen=True, eq=False)
class Tiles:
    """Views of one image, all of one size: pixels[num_tiles 3 height width], float32.

    The first is the whole image; the others are parts of it. A video's are its frames. `size` is
    the picture's own (height, width). `mixture` says how tokens are made of the tower's rows; None
    where they are its rows. `around` is that of `Patches`.
    """

    pixels: NDArray[np.float32]
    size: tuple[int, int]
    num_tokens: int
    digest: bytes
    mixture: Mixture | None = None
    around: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        self.pixels.setflags(write=False)


@dataclass(frozen=True, eq=False)
class Mel:
    """Log-mel features of one clip: features[num_mels num_frames], float32.

    The first `num_valid` frames are sound, the rest padding.
    """

    features: NDArray[np.float32]
    num_valid: int
    num_tokens: int
    digest: bytes

    def __post_init__(self) -> None:
        self.features.setflags(write=False)


def digest_with(settings: object, media_digest: bytes) -> bytes:
    """Return SHA-256 of media and of everything that their preprocessing depends on."""
    return hashlib.sha256(repr(settings).encode() + media_digest).digest()
