"""Sizes of a step -> the grids that derive its inputs. Pure."""

from __future__ import annotations

from spaninfer_kernel_launch import Launch

THREADS = 128
_WARP = 32
_PARTS = 3  # of what a token gets, each by a warp
_MAX_BLOCKS = 1024  # beyond, warps take several parts; a prefill of this many takes milliseconds


def blocks_of_step(tokens: int, logits: int) -> int:
    """Return blocks with a warp per part of a token and one per row of logits, rounded up so that
    few launches serve all sizes.
    """
    return blocks_of((_PARTS * tokens + logits) * _WARP)


def blocks_of(threads: int) -> int:
    """Return blocks with so many threads, rounded up likewise."""
    return min(_next_power_of_2(-(-threads // THREADS)), _MAX_BLOCKS)


def launch_of(blocks: int) -> Launch:
    """Return the launch of so many blocks."""
    return Launch((blocks, 1, 1), (THREADS, 1, 1))


def _next_power_of_2(number: int) -> int:
    """Return the smallest power of two that is at least `number`, and at least 1."""
    return 1 << max(number - 1, 0).bit_length()
