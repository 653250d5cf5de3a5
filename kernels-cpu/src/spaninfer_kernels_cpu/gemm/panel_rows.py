"""Many rows of activations and the panel of codes that they are multiplied by."""

from __future__ import annotations

from typing import NamedTuple

from spaninfer_kernels_cpu.gemm.amx_tile import Sizes


class PanelRows(NamedTuple):
    """Rows x[N C] (an address, bytes from one to the next) and a panel of as many channels.

    `sizes`: records of a panel, bytes of one, bytes of its channels in a row. At `sums` is room for
    [N 64] float32 and a tile of vectors more.
    """

    x: int
    stride: int
    num_rows: int
    panel: int
    sizes: Sizes
    sums: int
