"""Pictures cut into patches, those of a token next to each other."""

from __future__ import annotations

import math
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from spaninfer_multimodal.process.features import Patches
from spaninfer_multimodal.process.pixels import Normalisation


class PatchForm(Protocol):
    """Sizes of patches in pixels, of a token's side in patches, and frames of a patch."""

    @property
    def patch(self) -> int:
        """Pixels of a patch's side."""
        ...

    @property
    def merge(self) -> int:
        """Patches of a token's side."""
        ...

    @property
    def temporal(self) -> int:
        """Frames of a patch."""
        ...

    @property
    def normalisation(self) -> Normalisation:
        """The numbers that bytes stand for."""
        ...


def patchify(pixels: NDArray[np.uint8], form: PatchForm, digest: bytes) -> Patches:
    """Cut pixels[frames height width 3] into rows.

    Rows go by time, then by merged cell, then inside the cell; columns are channel, frame, row and
    column of the patch. The last frame is repeated to fill the last temporal patch; a single one
    stands for all of a patch.
    """
    patch, merge, temporal = form.patch, form.merge, form.temporal
    if len(pixels) == 1:
        temporal = 1
    elif missing := -len(pixels) % temporal:
        pixels = np.concatenate([pixels, np.repeat(pixels[-1:], missing, axis=0)])
    frames, height, width, channels = pixels.shape
    grid = frames // temporal, height // patch, width // patch
    rows, columns = grid[1] // merge, grid[2] // merge
    cells = pixels.reshape(grid[0], temporal, rows, merge, patch, columns, merge, patch, channels)
    moved = cells.transpose(0, 2, 5, 3, 6, 8, 1, 4, 7)
    return Patches(
        moved.reshape(math.prod(grid), -1),
        form.normalisation,
        form.temporal // temporal,
        grid,
        math.prod(grid) // merge**2,
        digest,
    )
