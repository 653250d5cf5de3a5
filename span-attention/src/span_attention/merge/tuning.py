"""Sizes of a merge -> loads, grid and block. Pure."""

from __future__ import annotations

from typing import Final

from spaninfer_kernel_launch import Launch

WARPS: Final = 4  # heads of a block: a handful of heads still fills several multiprocessors
_LOAD_BYTES: Final = 16


def vector(size: int, itemsize: int) -> int:
    """Return the elements of a head that a lane loads at once: the most that divide it.

    >>> vector(128, 2), vector(96, 4), vector(20, 2)
    (8, 4, 4)
    """
    count = _LOAD_BYTES // itemsize
    while size % count:
        count //= 2
    return count


def launch(heads: int) -> Launch | None:
    """Return a warp per head of a row; None without any."""
    return Launch((-(-heads // WARPS), 1, 1), (32, WARPS, 1), overlaps=True) if heads else None
