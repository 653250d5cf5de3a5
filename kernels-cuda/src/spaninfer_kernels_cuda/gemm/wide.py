"""The tiles of wide.cu, 128 to 256 tokens by 64 to 256 weight rows: choice and grid. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import inf

from spaninfer_kernel_launch import Launch

_CHUNK = 64  # elements of K
_LINE_BYTES = 2 * _CHUNK
_GROUP_THREADS = 128
_BLOCK_ROWS = 64  # of x
_BARRIER_BYTES = 16  # of a stage
_OF_WEIGHT_ROW, _OF_TOKEN = 6, 4  # bytes of a group: a scale and a bias, a scale

# Groups and blocks of 64 rows of x: 128, 192, 256 rows, or several times as many.
_BLOCKINGS = ((2, 1), (3, 1), (2, 2))
_ROWS = (144, 128, 112, 96, 64)  # of the weight: sizes of Wgmma
# Clusters that run at a time, by splits: SMs come in groups of up to 18, and a cluster lies in one.
_CLUSTERS = {1: 132, 2: 66, 4: 28}

# Rates of an H200 per nanosecond: multiply-adds of one SM, bytes of the L2 cache and of memory.
_MACS_PER_NS = 2048 * 1.5
_CACHE_BYTES_PER_NS, _MEMORY_BYTES_PER_NS = 10_500, 4_200
_BAND_BYTES = 20 << 20  # of x, of 50 MB in the L2 cache
_FINISH_NS = 0.03  # of an element of a tile's results
_SPLIT_NS = 2500  # for the reduction over a cluster


@dataclass(frozen=True, slots=True)
class Wide:
    """A tile of wide.cu: its macros.

    Each of `groups` warpgroups has `blocks` times 64 rows of x, all of them the same `rows` of the
    weight; `stages` chunks are in flight or being multiplied. With `splits` > 1 a cluster of as
    many blocks works on a tile, each on its part of K. Groups that `alternate` have a tile each:
    one writes its results while the other multiplies. `many` tiles of x read the weight.
    """

    groups: int
    blocks: int
    rows: int
    stages: int
    splits: int = 1
    alternate: bool = False
    many: bool = False

    @property
    def tokens(self) -> int:
        """Rows of x."""
        return (1 if self.alternate else self.groups) * self.blocks * _BLOCK_ROWS

    @property
    def threads(self) -> int:
        """Threads of a block, the producer group included."""
        return (1 + self.groups) * _GROUP_THREADS

    @property
    def shared_bytes(self) -> int:
        """Shared memory of a block."""
        own = self.groups * (self.rows * _OF_WEIGHT_ROW + self.blocks * _BLOCK_ROWS * _OF_TOKEN)
        return own + self.stages * ((self.rows + self.tokens) * _LINE_BYTES + _BARRIER_BYTES)


def choose_wide(rows: int, outputs: int, inner: int, shared_bytes: int) -> Wide:
    """Return the tile that takes least time by an estimate.

    For 19 of 21 GEMMs of two models, of 128 to 512 rows, that was the quickest of all tried; it was
    5 % behind for two (H200, docs/decisions/0020).
    """
    tiles = (fill_wide(tile, shared_bytes) for tile in _tiles(rows, -(-inner // _CHUNK)))
    return min(tiles, key=lambda tile: _estimate_ns(rows, outputs, inner, tile))


_MANY = ((2, 2, 128), (2, 1, 256))  # groups, blocks, rows of the weight: for any number of tokens


def every_many(shared_bytes: int) -> tuple[Wide, ...]:
    """Return the tiles for any number of rows. All of them add along K in the same order."""
    return tuple(fill_wide(Wide(*sizes, 0, many=True), shared_bytes) for sizes in _MANY)


def choose_many(rows: int, outputs: int, shared_bytes: int) -> Wide:
    """Return that of `every_many` which leaves least of the last round's SMs idle."""
    tiles = every_many(shared_bytes)
    return min(
        tiles, key=lambda tile: _rounds(units_of(rows, outputs, tile)) * tile.rows * tile.tokens
    )


def _rounds(units: int) -> int:
    return -(-units // _CLUSTERS[1])


def every_wide(shared_bytes: int) -> Iterator[Wide]:
    """Yield all tiles that may be chosen."""
    for groups, blocks in _BLOCKINGS:
        for tile in _tiles(groups * blocks * _BLOCK_ROWS, max(_CLUSTERS)):
            yield fill_wide(tile, shared_bytes)
    yield from every_many(shared_bytes)


def fill_wide(tile: Wide, shared_bytes: int) -> Wide:
    """Return `tile` with as many stages as fit."""
    room = shared_bytes - replace(tile, stages=0).shared_bytes
    stage_bytes = replace(tile, stages=1).shared_bytes - replace(tile, stages=0).shared_bytes
    return replace(tile, stages=room // stage_bytes)


def launch_wide(rows: int, outputs: int, tile: Wide, sm_count: int) -> Launch | None:
    """Return the grid: a cluster for every tile where it splits K; None without rows."""
    if not rows:
        return None
    units = units_of(rows, outputs, tile)
    clusters = units if tile.splits > 1 else min(units, sm_count)
    return Launch(
        grid=(clusters * tile.splits, 1, 1),
        block=(tile.threads, 1, 1),
        shared_bytes=tile.shared_bytes,
        cluster=(tile.splits, 1, 1),
        overlaps=True,
    )


def band_of(rows: int, row_bytes: int, tile: Wide) -> int:
    """Return how many tiles of x one tile of the weight after the other is multiplied by.

    As many as stay in the L2 cache meanwhile, so that memory is not read for them again.

    >>> band_of(8192, 18_944, Wide(2, 2, 128, 4)), band_of(8192, 3584, Wide(2, 2, 128, 4))
    (4, 22)
    """
    tiles = -(-rows // tile.tokens)
    return 1 if tile.many else max(1, min(tiles, _BAND_BYTES // (tile.tokens * row_bytes)))


def _tiles(rows: int, chunks: int) -> Iterator[Wide]:
    """Yield all tiles for that many rows, without stages."""
    # Minimise padding rows; among equals, take the largest tile.
    held = {blocking: blocking[0] * blocking[1] * _BLOCK_ROWS for blocking in _BLOCKINGS}
    groups, blocks = min(_BLOCKINGS, key=lambda blocking: (-rows % held[blocking], -held[blocking]))
    for size in _ROWS:
        for splits in _CLUSTERS:
            if splits <= chunks:
                yield Wide(groups, blocks, size, 0, splits)


def units_of(rows: int, outputs: int, tile: Wide) -> int:
    """Return how many tiles of results there are."""
    return -(-outputs // tile.rows) * -(-rows // tile.tokens)


def _estimate_ns(rows: int, outputs: int, inner: int, tile: Wide) -> float:
    """Return an estimate of the GEMM's time."""
    units, clusters = units_of(rows, outputs, tile), _CLUSTERS[tile.splits]
    if tile.splits > 1 and units > clusters:
        return inf
    waves, chunks = -(-units // clusters), -(-inner // (_CHUNK * tile.splits))
    tensor_ns = tile.tokens * tile.rows * _CHUNK / _MACS_PER_NS
    blocks = min(units, clusters) * tile.splits
    cache_ns = (tile.tokens + tile.rows) * _LINE_BYTES * blocks / _CACHE_BYTES_PER_NS
    memory_ns = 2 * outputs * inner / _MEMORY_BYTES_PER_NS
    finish_ns = waves * tile.tokens * tile.rows * _FINISH_NS
    split_ns = _SPLIT_NS if tile.splits > 1 else 0
    return max(memory_ns, waves * chunks * max(tensor_ns, cache_ns)) + finish_ns + split_ns
