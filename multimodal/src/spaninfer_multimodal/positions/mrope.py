"""M-RoPE: positions in time, height and width, of text and media in any order.

Text counts on all three axes alike. A medium begins at the next position and extends along its own
axes; what follows continues at the largest position so far plus one, also where a long video's time
axis is larger than its frames (transformers 5.23 continues inside such a video; its 4.57 and the
published models do not).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class TextRun:
    """So many tokens of text."""

    num_tokens: int


@dataclass(frozen=True, slots=True)
class MediaRun:
    """The tokens of one image or video: a grid of patches in time, height and width.

    `step` is how far apart two rows of the time axis are: 1 for images and for Qwen2-VL;
    tokens_per_second * seconds_per_grid for videos of Qwen2.5-VL. Qwen3-VL's videos are one run of
    one row per timestamp, with the timestamp's text between.
    """

    grid_thw: tuple[int, int, int]
    merge: int = 2
    step: float = 1.0


@dataclass(frozen=True, eq=False)
class Positions:
    """ids[3 num_tokens] on the axes time, height and width, int64.

    A token generated at index n of the sequence has position n + `delta` on all axes.
    """

    ids: NDArray[np.int64]
    delta: int

    def __post_init__(self) -> None:
        self.ids.setflags(write=False)


def mrope_positions(runs: Sequence[TextRun | MediaRun]) -> Positions:
    """Return the positions of a sequence that consists of `runs`."""
    parts, start = [np.empty((3, 0), np.int64)], 0
    for run in runs:
        if isinstance(run, TextRun):
            ids = np.tile(np.arange(run.num_tokens), (3, 1))
        else:
            ids = _media_positions(run)
        parts.append(ids + start)
        start = int(parts[-1].max(initial=start - 1)) + 1
    ids = np.concatenate(parts, axis=1)
    return Positions(ids, start - ids.shape[1])


def _media_positions(run: MediaRun) -> NDArray[np.int64]:
    """Return positions[3 tokens] of one medium that begins at 0."""
    frames, height, width = run.grid_thw
    axes = np.indices((frames, height // run.merge, width // run.merge)).reshape(3, -1)
    # float32, in which the families multiply: a step of 24.999999 and one of 25 differ
    axes[0] = (axes[0].astype(np.float32) * np.float32(run.step)).astype(np.int64)
    return axes.astype(np.int64)


def patch_positions(grid_thw: tuple[int, int, int], merge: int) -> NDArray[np.int64]:
    """Return the row and column[rows 2] of each patch, in the order in which towers read them.

    A tower's two-dimensional rotary embedding is computed from them.
    """
    frames, height, width = grid_thw
    cells = np.indices((height, width)).reshape(2, height // merge, merge, width // merge, merge)
    frame = cells.transpose(1, 3, 2, 4, 0).reshape(math.prod((height, width)), 2)
    return np.tile(frame, (frames, 1)).astype(np.int64)
