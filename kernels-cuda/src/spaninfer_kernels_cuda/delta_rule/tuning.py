"""Sizes of layers of linear attention -> variants, grids and blocks. Pure."""

from __future__ import annotations

from math import gcd
from typing import Final, NamedTuple

from spaninfer_kernel_launch import Launch

CHUNK: Final = 32  # tokens of a prompt that are computed together
TILE: Final = 16  # columns of a state that a warp of a prompt keeps
WARPS: Final = 4  # of a block of a prompt, which share what all columns of a head need
CONVOLVED: Final = 32  # tokens of a block of the convolution
CHANNELS: Final = 4  # that a thread of it takes
THREADS: Final = 128
_WARP: Final = 32
_LOAD: Final = 16  # bytes


class DecodeTile(NamedTuple):
    """The part of a state that a block of a decode takes: its columns, by that many threads."""

    columns: int
    vector: int
    threads: int


def vector(*sizes: int, most: int = 8) -> int:
    """Return the widest load of at most `most` elements that divides all of these sizes."""
    return gcd(most, *sizes)


def decode_tile(value_size: int) -> DecodeTile:
    """Return 64 columns for 128 threads: of Qwen3-Next's heads 80 and 287 us for 64 and 256
    requests, where 32 take 86 and 306, and 128 by 256 threads 108 and 401 (H200, 2026-11-23).
    """
    width = vector(value_size, most=4)
    return DecodeTile(16 * width, width, THREADS)


def launch_convolution(rows: int, channels: int, width: int, slices: int, decodes: int) -> Launch:
    """Return a block per decode, and per part of a longer slice, which may be all in one."""
    parts = decodes
    if slices > decodes:
        parts += -(-(rows - decodes) // CONVOLVED) + slices - decodes
    return Launch((-(-channels // (THREADS * width)), parts, 1), (THREADS, 1, 1), overlaps=True)


def launch_decodes(heads: int, value_size: int, decodes: int, tile: DecodeTile) -> Launch:
    """Return a block per column tile, head and decode."""
    parts = heads * -(-value_size // tile.columns)
    return Launch((parts, decodes, 1), (tile.threads, 1, 1), overlaps=True)


def launch_prompts(heads: int, key_size: int, value_size: int, prompts: int) -> Launch:
    """Return a block per column tile, head and prompt."""
    parts = heads * -(-value_size // (TILE * WARPS))
    threads = _WARP * WARPS
    return Launch((parts, prompts, 1), (threads, 1, 1), shared_bytes(key_size), overlaps=True)


def shared_bytes(key_size: int) -> int:
    """Return the bytes of prompt.cu's struct Shared."""
    row = -(-key_size // TILE) * TILE + 8
    halves = 2 * row + (TILE * WARPS + 8) + 4 * (CHUNK + 8) + 2 * (TILE + 8)
    return -(-CHUNK * (2 * halves + 4 * (TILE + 1) + 4 * 4) // _LOAD) * _LOAD


class NormTile(NamedTuple):
    """The division of a head of a norm among lanes: elements per load, lanes, loads of each."""

    vector: int
    lanes: int
    packs: int


def norm_tile(value_size: int) -> NormTile:
    """Return the fewest lanes, a power of two, that need one load each; at most a warp."""
    width = vector(value_size)
    loads = value_size // width
    lanes = min(_WARP, 1 << (loads - 1).bit_length())
    return NormTile(width, lanes, -(-loads // lanes))


def launch_norm(rows: int, heads: int, tile: NormTile) -> Launch | None:
    """Return the launch for all heads of all rows; None without rows."""
    if not rows:
        return None
    blocks = -(-rows * heads * tile.lanes // THREADS)
    return Launch((blocks, 1, 1), (THREADS, 1, 1), overlaps=True)
