"""Sizes of an activation -> loads, grid and block. Pure."""

from __future__ import annotations

from math import gcd
from typing import Final

from spaninfer_kernel_launch import Launch, ShapeError

_LOAD_BYTES: Final = 16
_MAX_LOADS: Final = 2**31 - 1

THREADS: Final = 128


def vector(channels: int, itemsize: int) -> int:
    """Return the elements of a load: as many as 16 bytes hold and divide a row."""
    if channels < 1:
        raise ShapeError(f"an activation of {channels} channels; at least 1")
    return gcd(_LOAD_BYTES // itemsize, channels)


def launch(loads: int, *, gated: bool) -> Launch | None:
    """Return a thread per load of a gated result, or per two of a plain one; None for no load.

    128 threads are a microsecond faster for few rows than 512 are, and as fast for many; with 64,
    an SM holds too few. Overlapping with the kernel before saves 0.3 µs (H200, 2026-11-21).
    """
    if loads > _MAX_LOADS:
        raise ShapeError(f"an activation of {loads} loads; at most {_MAX_LOADS}")
    if not loads:
        return None
    blocks = -(-loads // (THREADS if gated else 2 * THREADS))
    return Launch(grid=(blocks, 1, 1), block=(THREADS, 1, 1), overlaps=True)
