"""Shape and format of a quantised GEMM -> tile and grid. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace

from spaninfer_kernel_launch import Launch, ShapeError

from spaninfer_kernels_cuda.gemm.tuning import FLAGS, Shape, split_k_bytes
from spaninfer_kernels_cuda.quantized_gemm.format import BLOCK_ROWS, CHUNK, QuantizedFormat

MOST_ROWS = 1 << 16
MOST_RESULTS = 1 << 31

_GROUP_THREADS = 128
_PRODUCER_THREADS = 32
_BARRIER_BYTES = 16  # of a stage
_HALF_SM_BYTES = 110 * 1024  # so that the next kernel's first chunks fit beside this one's
_MOST_SPLITS = 8  # blocks of a cluster on any GPU
_SMS, _NEARLY_ALL_SMS = 132, 120  # of an H200
# Blocks that clusters are made of at most, by `wgmma`: two of mma.sync have room on an SM.
_BLOCKS_IN_CLUSTERS = {False: 264, True: 132}
_LONG = 4  # K, in outputs: down projections
_MANY_OUTPUTS = 16_384
_TOKENS = (8, 16, 32, 64, 96, 128)
# Beyond, tiles of these. Rows beyond the last cost more than others: 384 in tiles of 256 take 1.85
# times as long as in tiles of 192 (H200).
_MANY_TOKENS = (256, 192, 160)
_COST_OF_ROW = {256: 1.0, 192: 1.05, 160: 1.15}
_COST_OF_EMPTY_ROW = 2.7
_GENERAL_TOKENS = (8, 16, 32, 64)
_FEW = 16  # tokens that mma.sync multiplies
_MOST_FOLDED = 128  # tokens whose sums have room beside those of a group, and in clusters
_LEAST_GROUP = 16  # columns: with one wgmma each, their numbers would not fit into registers
_MOST_MULTIPLIED = 1024  # tokens
_FEWEST_STAGES, _MOST_STAGES = 3, 8  # of general.cu

TOKENS = (*_TOKENS, 160, 192, 256, 320, 384, 512, 1024)
"""Numbers of tokens that have all kernels of a weight between them."""


@dataclass(frozen=True, slots=True)
class Tile:
    """A tile of hopper.cu or general.cu: their macros.

    `tokens` rows of x by 64 rows of the weight for each of `groups`; `stages` chunks are in flight
    or being multiplied. With `splits` > 1 a cluster of as many blocks works on a tile, each on its
    part of K; else all blocks share all tiles. `wgmma` selects wgmma instead of mma.sync, `fold`
    scales on sums instead of weights. `hopper` selects hopper.cu instead of general.cu. Of tiles
    that all blocks share, `per_sm` blocks run on an SM; None: every block has a tile of its own.
    """

    tokens: int
    groups: int
    stages: int
    splits: int = 1
    wgmma: bool = False
    fold: bool = True
    hopper: bool = True
    per_sm: int | None = 1

    @property
    def rows(self) -> int:
        """Rows of the weight."""
        return self.groups * BLOCK_ROWS

    @property
    def threads(self) -> int:
        """Threads of a block."""
        producers = _GROUP_THREADS if self.wgmma else _PRODUCER_THREADS * self.hopper
        return self.groups * _GROUP_THREADS + producers

    def shared_bytes(self, format: QuantizedFormat) -> int:
        """Shared memory of a block."""
        return self.stages * self.stage_bytes(format) + self.split_k_bytes

    def stage_bytes(self, format: QuantizedFormat) -> int:
        """Shared memory of a stage."""
        used = self.tokens * CHUNK * 2 + self.groups * format.record_bytes
        return -(-used // 1024) * 1024 + _BARRIER_BYTES

    @property
    def split_k_bytes(self) -> int:
        """Shared memory for partials from the blocks of a cluster (split_k.cuh)."""
        return split_k_bytes(self.tokens, self.groups, self.splits)


def check(shape: Shape, *, gated: bool) -> None:
    """Raise ShapeError for unsupported sizes."""
    if not 0 <= shape.rows <= MOST_ROWS or shape.rows * shape.outputs >= MOST_RESULTS:
        raise ShapeError(
            f"x has {shape.rows} rows, the weight {shape.outputs}; at most {MOST_ROWS} rows, and "
            f"fewer than {MOST_RESULTS} results"
        )
    if shape.outputs < 1 or (gated and shape.outputs % 2):
        raise ShapeError(
            f"the weight has {shape.outputs} rows; at least 1, an even number of gates"
        )
    if shape.inner < 8 or shape.inner % 8:
        raise ShapeError(f"rows have {shape.inner} elements; a multiple of 8, at least 8")


def choose(
    shape: Shape, format: QuantizedFormat, arch: str, shared_bytes: int, *, gated: bool
) -> Tile:
    """Return the tile for `shape` on GPUs of `arch` whose blocks may have `shared_bytes`.

    On Hopper few tiles go to clusters. That was the fastest, or within 6 % of it, of 7 to 20 tried
    for each of 5 weights and 9 numbers of tokens (H200, 2026-11-23).
    """
    if arch != "sm_90a" or (gated and shape.outputs % 16):
        return _choose_general(shape, format, shared_bytes)
    tokens = _tokens_for(shape.rows, _TOKENS)
    if shape.rows > _MOST_FOLDED:
        tokens = min(_MANY_TOKENS, key=lambda tokens: _rows_paid_for(shape.rows, tokens))
    if tokens == _MANY_TOKENS[0] >= shape.rows and shape.outputs < _MANY_OUTPUTS:
        tokens = _MOST_FOLDED  # twice as many tiles, for all SMs
    wgmma = tokens > _FEW
    folds = format.shift != "minimum" and tokens <= _MOST_FOLDED
    folds = folds and not (wgmma and format.group == _LEAST_GROUP)
    room = shared_bytes if wgmma else min(shared_bytes, _HALF_SM_BYTES)
    if shape.rows <= tokens <= _MOST_FOLDED:
        groups = 2 if wgmma or shape.inner >= _LONG * shape.outputs else 1
        tiles, chunks = -(-shape.outputs // (groups * BLOCK_ROWS)), -(-shape.inner // CHUNK)
        splits = min(_BLOCKS_IN_CLUSTERS[wgmma] // tiles, chunks, _MOST_SPLITS)
        if splits > 1:
            return fill(Tile(tokens, groups, 0, splits, wgmma, folds), format, room)
    tile = Tile(tokens, 3 if tokens <= 64 else 2, 0, 1, wgmma, folds)
    tiles = -(-shape.outputs // tile.rows) * -(-shape.rows // tokens)
    if wgmma and _NEARLY_ALL_SMS <= tiles <= _SMS:
        tile = replace(tile, per_sm=None)
    return fill(tile, format, room)


def _rows_paid_for(rows: int, tokens: int) -> float:
    """Return how many rows of tiles of 256 cost as much as tiles of so many tokens."""
    empty = -rows % tokens
    return _COST_OF_ROW[tokens] * (rows + _COST_OF_EMPTY_ROW * empty)


def _choose_general(shape: Shape, format: QuantizedFormat, shared_bytes: int) -> Tile:
    tokens = _tokens_for(shape.rows, _GENERAL_TOKENS)
    tile = Tile(tokens, 2, 0, fold=format.shift != "minimum", hopper=False)
    room = min(shared_bytes, _HALF_SM_BYTES)
    if room // tile.stage_bytes(format) < _FEWEST_STAGES:
        tile, room = replace(tile, groups=1), shared_bytes
    filled = fill(tile, format, room)
    return replace(filled, stages=min(filled.stages, _MOST_STAGES))


def _tokens_for(rows: int, sizes: tuple[int, ...]) -> int:
    """Return the smallest of `sizes` that holds the rows, or the largest."""
    return next((size for size in sizes if size >= rows), sizes[-1])


def is_faster(shape: Shape, arch: str, *, gated: bool) -> bool:
    """Return True if codes are multiplied sooner than a weight is dequantised for cuBLAS."""
    if arch != "sm_90a" or (gated and shape.outputs % 16):
        return shape.rows <= _GENERAL_TOKENS[-1]
    return shape.rows <= _MOST_MULTIPLIED


def fill(tile: Tile, format: QuantizedFormat, shared_bytes: int) -> Tile:
    """Return the tile with as many stages as fit."""
    room = shared_bytes - tile.split_k_bytes
    return replace(tile, stages=max(room // tile.stage_bytes(format), 2))


def launch(shape: Shape, tile: Tile, format: QuantizedFormat, sm_count: int) -> Launch | None:
    """Return the grid: blocks along x, groups of tokens along y; None without rows."""
    if not shape.rows:
        return None
    groups = -(-shape.rows // tile.tokens)
    tiles, chunks = -(-shape.outputs // tile.rows), -(-shape.inner // CHUNK)
    if tile.per_sm is None:
        blocks = tiles
    elif tile.splits > 1:
        assert tile.splits <= chunks, (tile, shape)
        blocks = tiles * tile.splits
    else:
        blocks = min(max(sm_count * tile.per_sm // groups, 1), tiles * chunks, FLAGS // groups)
    return Launch(
        grid=(blocks, groups, 1),
        block=(tile.threads, 1, 1),
        shared_bytes=tile.shared_bytes(format),
        cluster=(tile.splits, 1, 1),
        overlaps=True,
    )
