"""Sizes of an attention -> tiles, macros of the variant, grid. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from spaninfer_kernel_launch import Launch, ShapeError

_WARP: Final = 32
_FRAGMENT: Final = 16  # lines, keys and elements that one matrix instruction takes
_WIDEST_VALUES: Final = 256  # elements whose sums fit the registers of a warp: 128 of each lane
_PADDING_BYTES: Final = 16  # of each row in shared memory
_SYSTEM_BYTES: Final = 1024  # of shared memory that each block takes besides its own
_PLAN_HEADER: Final = 4  # numbers before counters and ends of slices
_PLAN_TILE: Final = 4  # numbers of a tile
_REGISTERS: Final = 65_536  # of a multiprocessor
_FEWER: Final = 0.9  # of the tiles of one head, where tiles of several heads pay

# Fragments of lines per warp, warps, keys of a block: the first that fits is taken. Two fragments
# halve the reads of shared memory per multiplication, which bound this kernel.
_CHOICES: Final = (
    *((2, 4, 64), (2, 4, 32), (1, 8, 64), (1, 4, 64), (1, 8, 32), (1, 4, 32)),
    *((1, 2, 32), (1, 2, 16), (1, 1, 16)),
)
_MAX_HELD: Final = 176  # registers of a lane for sums of values and scores, without spilling
_MAX_HELD_ELSE: Final = 160  # the same for codes, and for keys wider than values


@dataclass(frozen=True, slots=True)
class Tiles:
    """Tiles of general.cu: lines and keys of a tile, value elements of a task."""

    m_tiles: int
    warps: int
    block: int
    value_tile: int
    shared_bytes: int

    @property
    def lines(self) -> int:
        """Rows times heads of a tile."""
        return _FRAGMENT * self.m_tiles * self.warps


def tiles(key_size: int, value_size: int, *, in_keys: bool, bits: int, shared_bytes: int) -> Tiles:
    """Return the first choice that fits `shared_bytes` of shared memory per block.

    Raises ShapeError for sizes that fit none, or that are no multiples of 16 elements.
    """
    grain = max(_FRAGMENT, 128 // bits)
    for name, size in (("key_size", key_size), ("value_size", value_size)):
        if size % grain:
            raise ShapeError(f"{name} is {size}; prefill takes multiples of {grain}")
    value_tile = max(
        size
        for size in range(grain, min(value_size, _WIDEST_VALUES) + 1, grain)
        if value_size % size == 0
    )
    for m_tiles, warps, block in _CHOICES:
        if bits < 16 and warps == 2 and block > _FRAGMENT:
            continue  # so few threads turn so many codes into floats that they spill
        # Of 16 lines, a lane holds every other number; rounded scores take half a register each.
        held = m_tiles * (2 * value_tile + 3 * block) // 4
        if held > (_MAX_HELD if key_size == value_tile and bits == 16 else _MAX_HELD_ELSE):
            continue
        key_pitch = 2 * key_size + _PADDING_BYTES
        value_pitch = 0 if in_keys else 2 * value_tile + _PADDING_BYTES
        lines = _FRAGMENT * m_tiles * warps
        needed = (lines + block) * key_pitch + block * value_pitch
        if needed <= shared_bytes:
            return Tiles(m_tiles, warps, block, value_tile, needed)
    raise ShapeError(
        f"key_size {key_size} and value_size {value_size} do not fit into "
        f"{shared_bytes} bytes of shared memory"
    )


def plan_bytes(rows: int, slices: int, lines: int, ratio: int, most_sharers: int) -> int:
    """Return the bytes of the largest plan of that many rows and slices (prefill/plan.cu)."""
    num_tiles = rows // (lines // min(ratio, lines)) + slices
    before = -(-(_PLAN_HEADER + most_sharers + slices) // _PLAN_TILE)
    return 4 * _PLAN_TILE * (before + num_tiles)


@lru_cache(maxsize=1024)
def heads_of_tile(
    ratio: int, lines: int, *, rows: int, slices: int, kv_heads: int, sm_count: int
) -> int:
    """Return the number of the `ratio` query heads of a KV head that share a tile of so many lines.

    One head, whose rows then begin where blocks of keys do, or as many as fit and leave no rest:
    whichever needs fewer rounds of all multiprocessors for slices of equal length; one where both
    need the same (592 against 590 TFLOP/s at 4 x 4096 rows, 411 against 388 at 16 x 1024, 142
    against 128 at 512; H200, 2026-11-21).
    """

    def rounds(heads: int) -> int:
        tasks = _num_tiles(lines // heads, rows, slices) * kv_heads * (ratio // heads)
        return -(-tasks // sm_count)

    return min((1, _most_heads(ratio, lines)), key=rounds)


@lru_cache(maxsize=1024)
def heads_of_shared_tile(ratio: int, lines: int, *, rows: int, slices: int) -> int:
    """Return the same where few tasks are shared by all multiprocessors, so that rounds need not be
    whole: all heads that fit where that saves a tenth of the tiles, else one.
    """
    most = _most_heads(ratio, lines)
    together = _num_tiles(lines // most, rows, slices) * (ratio // most)
    return most if together < _FEWER * _num_tiles(lines, rows, slices) * ratio else 1


def _most_heads(ratio: int, lines: int) -> int:
    """Return how many heads fit into a tile and leave no rest."""
    return max(n for n in range(1, min(ratio, lines) + 1) if ratio % n == 0)


def _num_tiles(tile_rows: int, rows: int, slices: int) -> int:
    """Return the tiles of so many rows each, in slices of equal length."""
    return slices * -(-rows // (slices * tile_rows))


def launch(tiles: Tiles, *, registers: int, sm_count: int, shared_bytes: int) -> Launch:
    """Return a grid of as many blocks as run at once; each takes tasks until none is left."""
    threads = _WARP * tiles.warps
    by_memory = (shared_bytes + _SYSTEM_BYTES) // (tiles.shared_bytes + _SYSTEM_BYTES)
    by_registers = _REGISTERS // (threads * -(-registers // 8) * 8)
    blocks = sm_count * max(1, min(by_memory, by_registers))
    return Launch((blocks, 1, 1), (threads, 1, 1), tiles.shared_bytes)


_GROUP: Final = 4 * _WARP  # threads whose warps multiply together
_LINES_OF_GROUP: Final = 64
_BARRIER_BYTES: Final = 8
_WORK_BYTES: Final = 64  # a consumer's description of its task


@dataclass(frozen=True, slots=True)
class HopperTiles:
    """Tiles of hopper.cu: bytes of a row in shared memory, keys of a block, warpgroups.

    A head lies in as many rows side by side as hold it.

    `stages` are the buffers of keys, and of values; `keeps` the registers of a consumer's thread.
    """

    key_size: int
    value_size: int
    row_bytes: int
    block: int
    consumers: int
    stages: int
    query_stages: int

    @property
    def lines(self) -> int:
        """Rows times heads of a tile."""
        return _LINES_OF_GROUP * self.consumers

    @property
    def threads(self) -> int:
        """Threads of a block: consumer warpgroups, and one with the producer warps."""
        return _GROUP * (self.consumers + 1)

    @property
    def keeps(self) -> int:
        """Registers per consumer thread, in multiples of 8."""
        return 232 if self.consumers == 2 else 160

    @property
    def leaves(self) -> int:
        """Registers that remain of a producer thread."""
        return 40 if self.consumers == 2 else 32

    @property
    def shared_bytes(self) -> int:
        """Shared memory of a block."""
        columns = self.row_bytes // 2
        key, value = (-(-size // columns) * columns for size in (self.key_size, self.value_size))
        query = self.query_stages * self.lines * key
        keys_and_values = self.stages * self.block * (key + value)
        barriers = 3 * self.query_stages + 4 * self.stages
        small = _BARRIER_BYTES * barriers + _WORK_BYTES * self.query_stages
        unaligned = 2 * (query + keys_and_values) + small
        return -(-unaligned // _SYSTEM_BYTES) * _SYSTEM_BYTES


# By key and value size: bytes of a row, keys of a block, consumers, buffers, buffers of queries.
_HOPPER: Final = {
    (64, 64): (128, 128, 2, 2, 2),
    (96, 96): (64, 128, 2, 2, 2),
    (128, 128): (128, 128, 2, 2, 2),
    (192, 128): (128, 128, 2, 2, 1),
    (256, 256): (128, 64, 2, 2, 1),
}


# The same for packed sequences without spans, by the size that heads are padded to.
_RAGGED: Final = {
    64: (64, 64, 128, 128, 2, 2, 2),
    80: (80, 80, 64, 128, 2, 2, 2),
    96: (96, 96, 64, 128, 2, 2, 2),
    128: (128, 128, 128, 128, 2, 2, 2),
}


def ragged_tiles(head_size: int) -> HopperTiles | None:
    """Return the tiles for packed heads of `head_size` elements; None for those too wide."""
    found = next((sizes for most, sizes in _RAGGED.items() if head_size <= most), None)
    return None if found is None else HopperTiles(*found)


def hopper_tiles(key_size: int, value_size: int) -> HopperTiles | None:
    """Return the tiles for these sizes; None for sizes that hopper.cu is not for."""
    found = _HOPPER.get((key_size, value_size))
    return None if found is None else HopperTiles(key_size, value_size, *found)
