"""Sizes of a step of latent attention -> lines of a tile, division of thread blocks. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

WIDEST: Final = 64  # lines of a tile: those of one wgmma
TILES: Final = (16, 32, WIDEST)
WIDEST_OF_CODES: Final = 32
BLOCK: Final = 64  # tokens of keys that are multiplied together
MERGE_THREADS: Final = 128
PLAN_THREADS: Final = 1024
KEEPS, LEAVES = 224, 56  # registers of a thread of a consumer, of a producer
WIDE_REGISTERS: Final = (136, 160, 56)
"""The same in tiles of 64 lines: of scores, of a side of the values, of a producer."""
CODES_REGISTERS: Final = {16: (152, 200), 32: (200, 104)}
"""The same where producers hold a block of codes in flight, by lines of a tile."""
_LANES: Final = (1, 2, 4)  # 132 multiprocessors are a multiple
_ROW_BYTES: Final = 128
_KEY_TILES: Final = 9
_WORD_BYTES: Final = 16


@dataclass(frozen=True, slots=True)
class Division:
    """The division of a step: lines of a tile, tiles of a group, parts of all groups' keys.

    A line is a query and head. `lanes` thread blocks compute a group together, so that they find
    its keys in L2. Groups whose keys are `few`, such as those that were selected, are cut into
    smaller pieces.
    """

    tile: int
    lanes: int
    parts: int
    few: bool = False

    @property
    def blocks(self) -> int:
        """Thread blocks of a launch."""
        return self.lanes * self.parts

    @property
    def threads(self) -> int:
        """Threads of a thread block."""
        return 512 if self.tile == WIDEST else 384

    @property
    def overhead(self) -> int:
        """The cost of a tile beside its blocks of keys, counted in these."""
        if self.few:
            return 1
        return 4 if self.tile == WIDEST else 2

    @property
    def shared_bytes(self) -> int:
        """Shared memory of a thread block: struct Shared of mla/wide.cuh or mla/narrow.cuh."""
        keys, query = _KEY_TILES * BLOCK * _ROW_BYTES, self.tile * _ROW_BYTES
        if self.tile == WIDEST:
            halves, lasts = 5 * 4 * query, (3 + 5) * query
            size = halves + lasts + 2 * 3 * 4 * self.tile + 3 * 16 + 24 * 8
        else:
            weights, given = 2 * self.tile * _ROW_BYTES, 16 * 16 * MERGE_THREADS
            rest = weights + given + 4 * (2 * 4 + 2) * self.tile + 4 * 2 * BLOCK
            size = 2 * keys + _KEY_TILES * query + 12 * 8 + rest
        return -(-size // 1024) * 1024

    def words_bytes(self, lines: int, slices: int) -> int:
        """Return the bytes of a plan of that many lines and slices (mla/plan.cuh)."""
        groups = lines // (self.tile * self.lanes) + slices
        return _WORD_BYTES * (1 + 2 * self.parts + 2 * groups)

    def workspace_bytes(self, value_size: int) -> int:
        """Return the bytes of the results of parts: two per thread block, and their exponents."""
        return 4 * 2 * self.blocks * self.tile * (value_size + 1)


def divide(
    lines: int, slices: int, sm_count: int, *, splits: bool, widest: int = WIDEST
) -> Division:
    """Return the division of `lines` lines of that many slices among that many multiprocessors.

    Without `splits`, tiles are of one size, so that bits do not depend on the step.
    """
    lines_of_slice = -(-lines // max(slices, 1))
    narrow = (tile for tile in TILES if splits and lines_of_slice <= tile < widest)
    tile = next(narrow, widest)
    lanes = _lanes(-(-lines_of_slice // tile))
    return Division(tile, lanes, max(sm_count // lanes, 1))


def divide_selected(tokens: int, heads: int, sm_count: int, *, splits: bool) -> Division:
    """Return the division of tokens that read as many keys each: with `splits`, where thread
    blocks are more than groups, into as many parts of each group.
    """
    tiles = -(-heads // WIDEST)
    lanes = _lanes(tiles)
    parts, groups = max(sm_count // lanes, 1), max(tokens, 1) * -(-tiles // lanes)
    if splits and groups < parts:
        parts = parts // groups * groups
    return Division(WIDEST, lanes, parts, few=splits)


def _lanes(tiles: int) -> int:
    return next((lanes for lanes in _LANES if tiles <= lanes), _LANES[-1])
