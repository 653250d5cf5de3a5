"""Sizes of an append -> grid and block. Pure."""

from __future__ import annotations

from typing import Final

from spaninfer_kernel_launch import Launch

WARPS: Final = 4  # heads of a block: one row of a small model still fills several SMs


def launch(rows: int, heads: int, kv_heads: int, *, with_values: bool) -> Launch | None:
    """Return a warp per row and head, queries, keys and values in turn; None without rows.

    Not measured yet: what a GPU says will change the numbers, not the signature.
    """
    if not rows:
        return None
    tasks = heads + kv_heads * (2 if with_values else 1)
    return Launch(grid=(rows, -(-tasks // WARPS), 1), block=(32, WARPS, 1))
