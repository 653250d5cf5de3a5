"""Tiles of a quantised GEMM, and the shared memory they take. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace

from spaninfer_kernels_cuda.gemm.tuning import split_k_bytes
from spaninfer_kernels_cuda.quantized_gemm.format import BLOCK_ROWS, CHUNK, QuantizedFormat

_GROUP_THREADS = 128
_PRODUCER_THREADS = 32
_BARRIER_BYTES = 16  # of a stage
_VECTOR_BYTES = 2048  # of a warpgroup
_SCALE_BYTES = 1024  # of tokens, where x is in codes


@dataclass(frozen=True, slots=True)
class Tile:
    """A tile of hopper.cu or general.cu: their macros.

    `tokens` rows of x by 64 rows of the weight for each of `groups`; `stages` chunks are in flight
    or being multiplied. With `splits` > 1 a cluster of as many blocks works on a tile, each on its
    part of K; else all blocks share all tiles. `wgmma` selects wgmma instead of mma.sync, `fold`
    scales on sums instead of weights. `hopper` selects hopper.cu instead of general.cu. Of tiles
    that all blocks share, `per_sm` blocks run on an SM; None: every block has a tile of its own.
    With wgmma a warpgroup has `blocks` of the `groups`, and issues `batch` steps of 32 bytes of x
    together; where warpgroups take turns (turns.cuh), all of a group of columns.
    """

    tokens: int
    groups: int
    stages: int
    splits: int = 1
    wgmma: bool = False
    fold: bool = True
    hopper: bool = True
    per_sm: int | None = 1
    blocks: int = 1
    batch: int = 4

    @property
    def rows(self) -> int:
        """Rows of the weight."""
        return self.groups * BLOCK_ROWS

    @property
    def threads(self) -> int:
        """Threads of a block."""
        producers = _GROUP_THREADS if self.wgmma else _PRODUCER_THREADS * self.hopper
        return self.groups // self.blocks * _GROUP_THREADS + producers

    def shared_bytes(self, format: QuantizedFormat) -> int:
        """Shared memory of a block."""
        return self.stages * self.stage_bytes(format) + self.other_bytes(format)

    def other_bytes(self, format: QuantizedFormat) -> int:
        """Shared memory of a block beside its stages."""
        scales = _SCALE_BYTES if self.hopper and format.activations == "e4m3" else 0
        return self.split_k_bytes + self.vector_bytes + scales

    def stage_bytes(self, format: QuantizedFormat) -> int:
        """Shared memory of a stage."""
        used = self.tokens * CHUNK * format.activation_bytes + self.groups * format.record_bytes
        return -(-used // 1024) * 1024 + _BARRIER_BYTES

    @property
    def split_k_bytes(self) -> int:
        """Shared memory for partials from the blocks of a cluster (split_k.cuh)."""
        return split_k_bytes(self.tokens * self.blocks, self.groups // self.blocks, self.splits)

    @property
    def vector_bytes(self) -> int:
        """Shared memory through which results go (results.cuh)."""
        return self.groups // self.blocks * _VECTOR_BYTES if self.wgmma else 0


def fill(tile: Tile, format: QuantizedFormat, shared_bytes: int) -> Tile:
    """Return the tile with as many stages as fit."""
    room = shared_bytes - tile.other_bytes(format)
    return replace(tile, stages=max(room // tile.stage_bytes(format), 2))
