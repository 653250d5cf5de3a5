"""Sizes of a rotary embedding -> grid and block. Pure."""

from __future__ import annotations

from typing import Final

from spaninfer_kernel_launch import Launch

THREADS: Final = 128
_BLOCKS_PER_SM: Final = 16  # blocks of 128 threads that fill an SM of 2048


def launch(rows: int, heads: int, lanes: int, sm_count: int) -> Launch | None:
    """Return the launch for `heads` heads of each row; None without rows.

    Few rows have a group of lanes per head; many rows a block each, whose groups go from head to
    head and find the row's angles in the L1 cache.
    """
    if not rows:
        return None
    blocks = -(-heads * lanes // THREADS)
    fill = -(-sm_count * _BLOCKS_PER_SM // rows)
    return Launch(grid=(rows, min(blocks, fill), 1), block=(THREADS, 1, 1), overlaps=True)
