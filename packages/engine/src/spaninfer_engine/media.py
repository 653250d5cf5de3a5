"""Media as a model reads them: the numbers that a tower takes of one image, video or clip."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

MediaKind: TypeAlias = Literal["image", "video", "audio"]


@dataclass(frozen=True, eq=False, slots=True)
class TowerInput:
    """The numbers that a tower reads of one image, video or audio clip.

    Attributes:
        kind: What was prepared.
        features: float32. Images and videos of the Qwen-VL families: patches
            [num_patches, channels * frames * patch * patch], the patches of one merged row next to
            each other. SigLIP families: tiles [num_tiles, 3, height, width]. Audio: a log-mel
            spectrogram [num_mels, num_frames].
        num_tokens: Rows of the tower's output, which replace as many placeholder tokens.
        digest: SHA-256 of the media's bytes and of everything else that decides the features.
        grid_thw: Patches along time, height and width; None where the tower needs no grid.
        num_valid: Audio: frames that hold sound, the others are padding; None if all do.
    """

    kind: MediaKind
    features: NDArray[np.float32]
    num_tokens: int
    digest: bytes
    grid_thw: tuple[int, int, int] | None = None
    num_valid: int | None = None
