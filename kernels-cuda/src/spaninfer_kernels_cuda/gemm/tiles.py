"""All tiles that `choose` may return, for compiling every variant ahead."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Final, TypeAlias

from spaninfer_kernels_cuda.gemm.tall import Tall, every_tall
from spaninfer_kernels_cuda.gemm.tuning import GROUP_ROWS, Shape, Tile, choose
from spaninfer_kernels_cuda.gemm.wide import Wide, every_wide

AnyTile: TypeAlias = Tile | Wide | Tall

_HOPPER_BYTES: Final = 232_448  # of a block's shared memory
# Turing; small and large GPUs of the Ampere and Ada generations, and those after Hopper.
_OTHERS: Final = {"sm_75": 65_536, "sm_120": 101_376, "sm_80": 166_912}
_FEW: Final = (8, 16, 32, 48, 64)  # rows of x
_INNER: Final = 4096
# Tiles of one group for clusters of 2 to 8 blocks, then of two groups for clusters of 2, then so
# many that blocks share all of them.
_TILES: Final = (132, 74, 66, 52, 44, 37, 27, 200, 1000)
_NO_EIGHTS: Final = 4  # outputs more than a multiple of 8: many rows then have tiles of few


def every_tile() -> Iterator[AnyTile]:
    """Yield each tile once."""
    chosen = [
        choose(Shape(rows, GROUP_ROWS * tiles, _INNER), "sm_90a", _HOPPER_BYTES, gated=gated)
        for rows, tiles, gated in product(_FEW, _TILES, (False, True))
    ]
    chosen += [
        choose(
            Shape(_FEW[-1] + 1, GROUP_ROWS * (tiles - 1) + _NO_EIGHTS, _INNER),
            "sm_90a",
            _HOPPER_BYTES,
            gated=False,
        )
        for tiles in _TILES
    ]
    chosen += [
        choose(Shape(rows, GROUP_ROWS, _INNER), arch, shared_bytes, gated=False)
        for (arch, shared_bytes), rows in product(_OTHERS.items(), _FEW)
    ]
    yield from dict.fromkeys(chosen)
    yield from every_wide(_HOPPER_BYTES)
    yield from every_tall(_HOPPER_BYTES)
