"""Sizes of a batch of logits -> the blocks that share a row. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from spaninfer_kernel_launch import ShapeError


@dataclass(frozen=True, slots=True)
class Shape:
    """Threads of every block, one per multiprocessor; packs of 16 bytes that each has in flight."""

    threads: int
    stages: int


SHAPES = {
    "sm_75": Shape(1024, 0),
    "sm_80": Shape(640, 2),
    "sm_90a": Shape(1024, 4),
    "sm_100a": Shape(640, 4),
    "sm_120": Shape(512, 2),
}
"""By architecture. 512 threads take 1.2 times as long as 1024 (H200), whose 64 registers suffice
only where they stand. Elsewhere these are the most for which neither NVRTC 13.0 nor 13.5 spills.
Copies came with Ampere; the smaller chips of sm_80 and those of sm_120 have 99 KiB for a block."""
LIST_BYTES = 59_520  # struct Shared of shared.cuh without the packs; it asserts that it fits
_PACK_BYTES = 16
MAX_LENGTH = 2**23  # masses are sums of up to 2^40 units per token, in 64 bits
MAX_ROWS = 65535  # the second axis of a grid
MAX_TOP = 128  # top log-probabilities; each token is compared with each
MAX_BLOCKS = 8  # of a cluster, on every GPU that has clusters
_BLOCKS_OF_TYPICAL = (10, 12, 14, 16)  # of one of sample_typical, too, which has room for 16,
_WITH_16_BLOCKS = ("sm_90a", "sm_100a")  # on GPUs whose clusters may have so many


def blocks_of_row(rows: int, at_once: Mapping[int, int]) -> int:
    """Return the blocks that share a row: the most with which all rows run at the same time.

    `at_once` has the concurrent clusters by their number of blocks. More blocks take longer than
    fewer where some rows have to wait: 16 rows take 57 us with 8, 33 us with 6 (H200, all
    truncations).

    >>> h200 = {2: 66, 3: 39, 4: 30, 5: 22, 6: 17, 7: 15, 8: 15}
    >>> [blocks_of_row(rows, h200) for rows in (1, 16, 32, 64, 128)]
    [8, 6, 3, 2, 1]
    """
    return max((blocks for blocks, clusters in at_once.items() if clusters >= rows), default=1)


def cluster_sizes(arch: str, *, typical: bool) -> tuple[int, ...]:
    """Return the blocks that a cluster may have, more than one; those of sample_typical more.

    >>> cluster_sizes("sm_90a", typical=True), cluster_sizes("sm_120", typical=True)
    ((2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16), (2, 3, 4, 5, 6, 7, 8))
    """
    sizes = tuple(range(2, MAX_BLOCKS + 1))
    return (*sizes, *_BLOCKS_OF_TYPICAL) if typical and arch in _WITH_16_BLOCKS else sizes


def shared_bytes(shape: Shape, packs: int = 0) -> int:
    """Return the shared memory of a block whose threads hold that many packs, or as many as each
    has in flight.

    >>> [shared_bytes(SHAPES[arch]) for arch in ("sm_75", "sm_80", "sm_90a")]
    [59520, 80000, 125056]
    """
    return LIST_BYTES + max(shape.stages, packs) * shape.threads * _PACK_BYTES


def held_packs(row_bytes: int, blocks: int, threads: int) -> int:
    """Return the packs of a row that a thread reads where so many blocks share the row.

    >>> [held_packs(2 * 151_936, blocks, threads=1024) for blocks in (1, 2, 8)]
    [19, 10, 3]
    """
    return -(-row_bytes // (blocks * threads * _PACK_BYTES))


def changed_bytes(rows: int, length: int) -> int:
    """Return the bytes of a bit per logit: rows of whole words, all of it in units of 16 bytes.

    >>> changed_bytes(1, 33), changed_bytes(64, 151_936)
    (16, 1215488)
    """
    return -(-rows * -(-length // 32) * 4 // 16) * 16


def kept_bytes(rows: int, row_bytes: int) -> int:
    """Return the bytes of rows without the tokens that typical_p does not keep: whole packs each.

    >>> kept_bytes(1, 2 * 33), kept_bytes(64, 2 * 151_936)
    (80, 19447808)
    """
    return rows * -(-row_bytes // _PACK_BYTES) * _PACK_BYTES


def check(rows: int, length: int, top: int) -> None:
    """Raise ShapeError for unsupported sizes."""
    if not 1 <= length <= MAX_LENGTH:
        raise ShapeError(f"rows have {length} logits; at least 1, at most {MAX_LENGTH}")
    if not 0 <= rows <= MAX_ROWS:
        raise ShapeError(f"{rows} rows; at most {MAX_ROWS}, the second axis of a grid")
    if not 0 <= top <= MAX_TOP:
        raise ShapeError(f"{top} top log-probabilities; at most {MAX_TOP}")
