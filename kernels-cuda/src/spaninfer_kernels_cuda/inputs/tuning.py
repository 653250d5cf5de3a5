"""Sizes of a step -> the grids that derive its inputs. Pure."""

from __future__ import annotations

from spaninfer_kernel_launch import Launch

THREADS = 128
_WARP = 32
_MAX_BLOCKS = 1024  # beyond, warps take several tokens; a prefill of this many takes milliseconds


def token_blocks(tokens: int) -> int:
    """Return blocks with a warp per token, rounded up so that few launches serve all sizes."""
    return min(_next_power_of_2(-(-tokens * _WARP // THREADS)), _MAX_BLOCKS)


def launch_of(blocks: int) -> Launch:
    """Return the launch of so many blocks."""
    return Launch((blocks, 1, 1), (THREADS, 1, 1))


def _next_power_of_2(number: int) -> int:
    """Return the smallest power of two that is at least `number`, and at least 1."""
    return 1 << max(number - 1, 0).bit_length()
