"""Sizes of a batch of logits -> how many blocks share a row. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from spaninfer_kernel_launch import ShapeError


@dataclass(frozen=True, slots=True)
class Shape:
    """Threads of every block, one on a multiprocessor; packs of 16 bytes each has under way."""

    threads: int
    stages: int


SHAPES = {
    "sm_75": Shape(1024, 0),
    "sm_80": Shape(1024, 2),
    "sm_90a": Shape(1024, 4),
    "sm_100a": Shape(768, 4),
    "sm_120": Shape(1024, 2),
}
"""By architecture. 512 threads take 1.2 times as long as 1024 (H200), whose 64 registers do not
suffice for 16-bit logits on sm_100a. Copies came with Ampere; the smaller chips of sm_80 and those
of sm_120 have 99 KiB for a block."""
LIST_BYTES = 58_368  # struct Shared of kernel.cu without the packs; it asserts that it fits
MOST_LENGTH = 2**23  # masses are sums of up to 2^40 units per token, in 64 bits
MOST_ROWS = 65535  # the second axis of a grid
MOST_TOP = 128  # likeliest tokens reported, each compared with each
_MOST_BLOCKS = 8  # of a cluster, on every GPU that has clusters


def blocks_of_row(rows: int, sm_count: int, *, has_clusters: bool) -> int:
    """Return how many blocks share a row: as many as can run at once, at most 8.

    >>> [blocks_of_row(rows, 132, has_clusters=True) for rows in (1, 16, 64, 128, 256)]
    [8, 8, 2, 1, 1]
    """
    if not has_clusters:
        return 1
    blocks = 1
    while blocks < _MOST_BLOCKS and 2 * blocks * rows <= sm_count:
        blocks *= 2
    return blocks


def shared_bytes(shape: Shape) -> int:
    """Return the shared memory of a block.

    >>> [shared_bytes(SHAPES[arch]) for arch in ("sm_75", "sm_80", "sm_90a")]
    [58368, 91136, 123904]
    """
    return LIST_BYTES + shape.stages * shape.threads * 16


def check(rows: int, length: int, top: int) -> None:
    """Raise ShapeError for what no kernel takes."""
    if not 1 <= length <= MOST_LENGTH:
        raise ShapeError(f"rows have {length} logits; at least 1, at most {MOST_LENGTH}")
    if not 0 <= rows <= MOST_ROWS:
        raise ShapeError(f"{rows} rows; at most {MOST_ROWS}, the second axis of a grid")
    if not 0 <= top <= MOST_TOP:
        raise ShapeError(f"a report of the {top} likeliest tokens; at most {MOST_TOP}")
