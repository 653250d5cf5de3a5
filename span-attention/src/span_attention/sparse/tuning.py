"""Sizes of a selection -> tiles, shared memory, pieces of a step. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

INDEX_SIZE: Final = 128  # channels of a head
HEADS: Final = (16, 32, 64)
TOKENS_TOGETHER: Final = 4
"""Tokens of one sequence that read a block of keys together."""

BLOCK: Final = 128  # keys
SCORE_THREADS: Final = 384
SELECT_THREADS: Final = 1024
KEEPS, LEAVES = 224, 56  # registers of a thread of a consumer, of the producer
MAX_TILES: Final = 2048  # of one launch: struct Shared of sparse/score.cu
_MAX_SCORES: Final = 2**25  # of one launch: 128 MiB, of which L2 holds a part
_ROW_BYTES: Final = 2 * INDEX_SIZE
_BINS: Final = 2048
SELECT_BYTES: Final = 4 * 4 * _BINS + (4 + 8) * 32 + 16
"""Struct Shared of sparse/select.cu."""

_OF_DRIVER: Final = 1024  # bytes of shared memory that a block may not use
_CLUSTERS: Final = (8, 4, 2)
_MIN_PIECE: Final = 4096  # scores that are worth a thread block


@dataclass(frozen=True, slots=True)
class ScoreTile:
    """A tile: `heads` of the indexer, and adjacent `tokens` of one sequence."""

    heads: int
    tokens: int

    @property
    def lines(self) -> int:
        """Queries of a tile."""
        return self.heads * self.tokens

    @property
    def stages(self) -> int:
        """Blocks of keys that are under way: as many as fit beside the queries."""
        return 6 if self.lines <= 64 else 5 if self.lines <= 128 else 4

    @property
    def shared_bytes(self) -> int:
        """Shared memory of a thread block: struct Shared of sparse/score.cu."""
        tiles = self.stages * BLOCK * _ROW_BYTES + self.lines * _ROW_BYTES
        rest = 8 * (2 * self.stages + 2) + 4 * MAX_TILES + 4 * SCORE_THREADS // 32
        return -(-(tiles + rest) // 1024) * 1024

    def rows_at_once(self, stride: int) -> int:
        """Return how many tokens one launch takes, whose scores are `stride` numbers apart."""
        rows = min(max(_MAX_SCORES // stride, 1), self.tokens * MAX_TILES)
        return max(rows // self.tokens, 1) * self.tokens


def score_stride(most: int) -> int:
    """Return the numbers from row to row of scores of at most `most` keys."""
    return -(-most // BLOCK) * BLOCK


def blocks_per_row(rows: int, most: int, sm_count: int, *, has_clusters: bool) -> int:
    """Return the thread blocks of a cluster, which selects in a row of at most `most` scores."""
    able = (
        blocks
        for blocks in _CLUSTERS
        if has_clusters and rows * blocks <= sm_count and most >= blocks * _MIN_PIECE
    )
    return next(able, 1)


def held_scores(most: int, blocks: int, shared_bytes: int) -> int:
    """Return how many scores a thread block of select holds, a multiple of 4."""
    return min(-(-most // (4 * blocks)) * 4, (shared_bytes - SELECT_BYTES - _OF_DRIVER) // 16 * 4)
