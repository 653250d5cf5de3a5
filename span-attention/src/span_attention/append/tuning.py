"""Sizes of an append -> grid and block. Pure."""

from __future__ import annotations

from typing import Final

from spaninfer_kernel_launch import Launch

THREADS: Final = 128  # of a block: a row of a small model still fills several SMs
_BLOCKS_PER_SM: Final = 16  # blocks of 128 threads that fill an SM of 2048


def launch(rows: int, tasks: int, lanes: int, sm_count: int) -> Launch | None:
    """Return the launch for `tasks` heads of each row; None without rows.

    Few rows have one task per group of lanes; many rows a block each, whose groups go from head to
    head and find the row's angles in the L1 cache: 40 µs for 8192 rows of 36 heads against 44 µs
    with a group per task. Overlapping with the kernel before saves 0.3 µs (H200, 2026-11-21).
    """
    if not rows:
        return None
    blocks = -(-tasks * lanes // THREADS)
    fill = -(-sm_count * _BLOCKS_PER_SM // rows)
    return Launch(grid=(rows, min(blocks, fill), 1), block=(THREADS, 1, 1), overlaps=True)
