"""Windows of Qwen2.5-VL's tower: squares of a frame that attend among themselves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, eq=False)
class Windows:
    """The order of cells of merged patches in which those of a window are adjacent.

    `order`[cells] says which cell comes where; `lengths`[windows] are in patches, and at the right
    and lower edges smaller.
    """

    order: NDArray[np.int64]
    lengths: NDArray[np.int64]

    def __post_init__(self) -> None:
        self.order.setflags(write=False)
        self.lengths.setflags(write=False)


def attention_windows(
    grids: Sequence[tuple[int, int, int]], *, merge: int, window: int, patch: int
) -> Windows:
    """Return the windows of several images and videos, one after another.

    `window` and `patch` are pixels (`window_size` and `patch_size` of the configuration).
    """
    side = window // merge // patch
    orders, lengths, start = [], [], 0
    for frames, height, width in grids:
        rows, columns = height // merge, width // merge
        frame, row, column = np.indices((frames, rows, columns)).reshape(3, -1)
        across = -(-columns // side)
        key = (frame * -(-rows // side) + row // side) * across + column // side
        orders.append(np.argsort(key, kind="stable") + start)
        lengths.append(np.bincount(key) * merge**2)
        start += key.size
    return Windows(np.concatenate(orders), np.concatenate(lengths))
