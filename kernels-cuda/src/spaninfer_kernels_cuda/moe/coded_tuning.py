"""Sizes of few tokens' experts in codes -> tiles and grids. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from spaninfer_kernel_launch import Launch

from spaninfer_kernels_cuda.moe.tuning import MoeShape
from spaninfer_kernels_cuda.quantized_gemm.format import BLOCK_ROWS, CHUNK, QuantizedFormat

STRIP_ROWS: Final = 16  # of a weight, that a warp multiplies

_WARP = 32
_MAX_CHUNKS = 4  # under way in a warp
_MAX_WARPS = 8
_WARPS_OF_SM = 24
_SHARED_BYTES = 60 << 10  # of a block: any GPU has them
_X_BYTES, _UNUSED_BYTES = 2 * CHUNK, 64  # of a slot; the latter where there are no scales or shifts


@dataclass(frozen=True, slots=True)
class CodedTile:
    """The work of a block of a GEMV over codes: a strip of 16 rows.

    Each of its `warps` has `chunks` chunks of columns under way; in the second GEMM an expert's
    columns are cut into `splits` pieces. `blocks` of them shall find registers on a multiprocessor.
    """

    chunks: int
    warps: int
    splits: int = 1
    blocks: int = 1

    def shared_bytes(self, format: QuantizedFormat) -> int:
        """Return the shared memory of a block: the slots of its warps."""
        return self.warps * self.chunks * _slot_bytes(format)


def coded_up_tile(channels: int, format: QuantizedFormat) -> CodedTile:
    """Return the tile of moe_coded_up for rows of `channels`.

    With half of a warp's chunks under way more blocks run: 7.8 in place of 8.8 µs for a token of
    Qwen3-30B-A3B's, 37.7 in place of 46.9 of Mixtral's (H200, 2026-11-23).
    """
    chunks, warps = -(-channels // CHUNK), 4
    return _tile(-(-chunks // (2 * warps)), warps, 1, format)


def coded_down_tile(inner: int, top_k: int, format: QuantizedFormat) -> CodedTile:
    """Return the tile of moe_coded_down for `top_k` rows of `inner` channels.

    Its blocks begin before those of moe_coded_up have ended, and should leave them room.
    """
    chunks = -(-inner // CHUNK)
    splits = min(chunks, max(1, _MAX_WARPS // top_k))
    return _tile(-(-chunks // splits), min(_MAX_WARPS, top_k * splits), splits, format)


def _tile(chunks: int, warps: int, splits: int, format: QuantizedFormat) -> CodedTile:
    fit = _SHARED_BYTES // (warps * _slot_bytes(format))
    return CodedTile(min(chunks, _MAX_CHUNKS, fit), warps, splits, _WARPS_OF_SM // warps)


def _slot_bytes(format: QuantizedFormat) -> int:
    """Return the bytes of strip.cuh's Slot, or some more."""
    numbers = format.record_bytes // (BLOCK_ROWS // STRIP_ROWS)
    return numbers + _X_BYTES + _UNUSED_BYTES


def launch_coded_up(shape: MoeShape, tile: CodedTile, format: QuantizedFormat) -> Launch | None:
    """Return the grid of moe_coded_up: a block per pair and strip; None without pairs."""
    return _launch(shape.tokens * shape.top_k, 2 * shape.inner, tile, format)


def launch_coded_down(shape: MoeShape, tile: CodedTile, format: QuantizedFormat) -> Launch | None:
    """Return the grid of moe_coded_down: a block per token and strip; None without tokens."""
    return _launch(shape.tokens, shape.channels, tile, format)


def _launch(rows: int, outputs: int, tile: CodedTile, format: QuantizedFormat) -> Launch | None:
    if not rows:
        return None
    return Launch(
        grid=(rows * -(-outputs // STRIP_ROWS), 1, 1),
        block=(_WARP * tile.warps, 1, 1),
        shared_bytes=tile.shared_bytes(format),
        overlaps=True,
    )
