"""The tiles of tall.cu, 192 weight rows by 144 to 256 tokens: choice and grid. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from spaninfer_kernel_launch import Launch

_CHUNK = 64  # elements of K
_LINE_BYTES = 2 * _CHUNK
_BARRIER_BYTES = 16  # of a stage
_TOKENS = (144, 160, 192, 208, 224, 256)  # sizes of Wgmma; fewer rows go to wide.cu
_SMS = 132
_FILLED = 0.95  # the least share of SM time that tiles use


@dataclass(frozen=True, slots=True)
class Tall:
    """A tile of tall.cu: its macros.

    `tokens` rows of x by 192 rows of the weight, 64 for each of three warpgroups; `stages` chunks
    are in flight or being multiplied.
    """

    tokens: int
    stages: int

    @property
    def rows(self) -> int:
        """Rows of the weight."""
        return 192

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return 384

    @property
    def shared_bytes(self) -> int:
        """Shared memory of a block."""
        return self.stages * ((self.rows + self.tokens) * _LINE_BYTES + _BARRIER_BYTES)


def choose_tall(rows: int, shared_bytes: int) -> Tall:
    """Return the tile for that many rows of x, 129 or more, with the least padding."""
    across = -(-rows // _TOKENS[-1])
    tokens = next(size for size in _TOKENS if size * across >= rows)
    return Tall(tokens, shared_bytes // Tall(tokens, 1).shared_bytes)


def every_tall(shared_bytes: int) -> Iterator[Tall]:
    """Yield all tiles that may be chosen."""
    for tokens in _TOKENS:
        yield choose_tall(tokens, shared_bytes)


def divides_evenly(rows: int, outputs: int, tile: Tall) -> bool:
    """Return True if tiles keep all SMs of an H200 busy to the end.

    Gates of Qwen2.5-7B do, two tiles or more across: 3 for each SM.
    """
    tiles = _tiles(rows, outputs, tile)
    return tiles >= _FILLED * _SMS * -(-tiles // _SMS)


def launch_tall(rows: int, outputs: int, tile: Tall, sm_count: int) -> Launch | None:
    """Return the grid, a block per SM at most; None without rows."""
    if not rows:
        return None
    return Launch(
        grid=(min(_tiles(rows, outputs, tile), sm_count), 1, 1),
        block=(tile.threads, 1, 1),
        shared_bytes=tile.shared_bytes,
        overlaps=True,
    )


def _tiles(rows: int, outputs: int, tile: Tall) -> int:
    return -(-outputs // tile.rows) * -(-rows // tile.tokens)
