"""Shape of a GEMM -> tile and grid. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace

from spaninfer_kernel_launch import Launch, ShapeError

from spaninfer_kernels_cuda.gemm.tall import Tall, choose_tall, divides_evenly
from spaninfer_kernels_cuda.gemm.wide import Wide, choose_many, choose_wide

MAX_ROWS = 512  # of x, but for tiles of wide.cu that read a weight many times
MAX_OUTPUTS = 2**31 // MAX_ROWS - 1  # so that 32 bits count the results
CHUNK = 64  # elements of K, as in both kernels
FLAGS = 1024  # most blocks of a launch, and flags of a workspace

LINE_BYTES = 2 * CHUNK  # of K, of a row in shared memory
_GROUP_THREADS = 128
GROUP_ROWS = 64  # of the weight
_BARRIER_BYTES = 16  # of a stage, and of a split-K reduction, in hopper.cu
_COLUMN, _ACC_BYTES = 8, 16  # tokens whose accumulators a thread sends at once, and their bytes
_PRODUCER_THREADS = 32  # the producer warp, in hopper.cu

_HALF_SM_BYTES = 110 * 1024  # so that the next kernel's first chunks fit beside this one's (Hopper)
# For three groups and more than 8 tokens: one chunk is being multiplied and one waits to be
# released, so that three chunks are too few. A 7B step of 64 tokens takes 4855 us with a ring of
# 165 KB, 4993 us with one of 98 KB (H200).
_RING_BYTES = 165 * 1024
_SHARED_BYTES = 227 * 1024  # that a block may have on Hopper
_MAX_SPLITS = 8  # blocks of a cluster on any GPU
_FEW_ROWS = 64  # of x: beyond, reading x costs as much as reading the weight
_FASTER_UP_TO = 192  # rows of x in three groups' tile, for gates and for a long K
_LONG = 4  # K, in outputs: down projections
_MAX_EMPTY = 32  # padding rows of x in tiles of wide.cu: beyond 192 tokens it pays only so
_TALL = range(385, 449)  # rows of x where tall.cu is faster than cuBLAS, where wide.cu is not
# Blocks that clusters are made of at most, by groups: two of them, of one group each, have room on
# each of the 132 SMs of an H200; of two groups, 152 to 180 were as fast as any other number.
_BLOCKS_IN_CLUSTERS = {1: 264, 2: 200}
# By splits, of one group: the most clusters, and the splits that more tiles get. SMs come in groups
# of up to 18, which larger clusters fill unevenly, and the kernel before still has some: a layer of
# Qwen3-30B-A3B with 80 clusters of 3 for query, key and value takes 350 us at 64 rows, with 80 of 2
# 341; with 32 of 8 for the output 54.5 us at one row, with 32 of 6 52.6 (H200, 2026-11-29).
_ROOM_FOR_CLUSTERS = {3: (74, 2), 8: (27, 6)}


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of x[rows inner] @ weight[outputs inner]^T: M, N and K of the GEMM.

    `rows` is M, the number of tokens; `outputs` is N, the rows of the weight, gate and up counted;
    `inner` is K, the elements that are summed over.
    """

    rows: int
    outputs: int
    inner: int


@dataclass(frozen=True, slots=True)
class Tile:
    """A tile of hopper.cu or general.cu: their macros.

    `tokens` rows of x by 64 rows of the weight for each of `groups`; `stages` chunks are in flight
    or being multiplied. `hopper` selects hopper.cu instead of general.cu. With `splits` > 1 a
    cluster of as many blocks works on a tile, each on its part of K; else all blocks share all
    tiles.
    """

    tokens: int
    groups: int
    stages: int
    hopper: bool
    splits: int = 1

    @property
    def rows(self) -> int:
        """Rows of the weight."""
        return self.groups * GROUP_ROWS

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return self.groups * _GROUP_THREADS + (_PRODUCER_THREADS if self.hopper else 0)

    @property
    def shared_bytes(self) -> int:
        """Shared memory of a block."""
        return self.stages * self.stage_bytes + self.split_k_bytes

    @property
    def stage_bytes(self) -> int:
        """Shared memory of a stage."""
        barriers = _BARRIER_BYTES if self.hopper else 0
        return (self.rows + self.tokens) * LINE_BYTES + barriers

    @property
    def split_k_bytes(self) -> int:
        """Shared memory for partials from the blocks of a cluster (split_k.cuh)."""
        return split_k_bytes(self.tokens, self.groups, self.splits)


def split_k_bytes(tokens: int, groups: int, splits: int) -> int:
    """Return the shared memory for partials of that many groups from the blocks of a cluster."""
    if splits == 1:
        return 0
    columns = -(-tokens // (_COLUMN * splits))  # that a block owns, at most
    return columns * splits * groups * _GROUP_THREADS * _ACC_BYTES + _BARRIER_BYTES


def check(shape: Shape, *, gated: bool) -> None:
    """Raise ShapeError for unsupported sizes."""
    if not 0 <= shape.rows * shape.outputs < 2**31:
        raise ShapeError(
            f"x has {shape.rows} rows and the weight {shape.outputs}; the results are to be fewer "
            "than 2^31"
        )
    if not 1 <= shape.outputs <= MAX_OUTPUTS:
        raise ShapeError(f"the weight has {shape.outputs} rows; at least 1, at most {MAX_OUTPUTS}")
    if gated and shape.outputs % 2:
        raise ShapeError(f"the weight has {shape.outputs} rows; as many for the gate as for up")
    if shape.inner < 8 or shape.inner % 8:
        raise ShapeError(f"rows have {shape.inner} elements; a multiple of 8, at least 8")


def choose(shape: Shape, arch: str, shared_bytes: int, *, gated: bool) -> Tile | Wide | Tall:
    """Return the tile for `shape` on GPUs of `arch` whose blocks may have `shared_bytes`.

    On Hopper many rows of x go to wide.cu where outputs come in eights, or to tall.cu. For few,
    measured on an H200 (docs/decisions/0020): few tiles go to clusters, and where tiles are many,
    three groups read x less often than two, up to as many tokens as their registers hold. In tiles
    for 64 tokens 33 rows take 10 % longer than in those for 48, in those for 40 0.4 % less.
    """
    if shape.rows > MAX_ROWS:
        if not takes_many(shape, arch, gated=gated):
            raise ShapeError(
                f"x has {shape.rows} rows; at most {MAX_ROWS}, or any number on Hopper where the "
                f"weight's rows, {shape.outputs}, are a multiple of {16 if gated else 8}"
            )
        return choose_many(shape.rows, shape.outputs, shared_bytes)
    half = min(shared_bytes, _HALF_SM_BYTES)
    # A box of hopper.cu holds 8 gate rows and their up rows: it must not end between the two.
    if arch != "sm_90a" or (gated and shape.outputs % 16):
        tokens = _tokens_for(shape.rows, (8, 16, 32, 64))
        return fill(tokens, 2, hopper=False, shared_bytes=half)
    if shape.rows > _FEW_ROWS and shape.outputs % 8 == 0:
        return _choose_dozens(shape, shared_bytes, gated=gated)
    tokens = _tokens_for(shape.rows, (8, 16, 32, 48, 64, 128))
    for groups, blocks in _BLOCKS_IN_CLUSTERS.items():
        tiles, chunks = _tiles_and_chunks(shape, groups)
        splits = min(blocks // tiles, chunks, _MAX_SPLITS)
        most, fewer = _ROOM_FOR_CLUSTERS.get(splits, (tiles, splits))
        if groups == 1 and tiles > most:
            splits = fewer
        if splits > 1:
            return fill(tokens, groups, hopper=True, shared_bytes=half, splits=splits)
    if tokens > (64 if gated else 32):
        return fill(tokens, 2, hopper=True, shared_bytes=shared_bytes)
    room = half if tokens == 8 else min(shared_bytes, _RING_BYTES)
    return fill(tokens, 3, hopper=True, shared_bytes=room)


def takes_many(shape: Shape, arch: str, *, gated: bool) -> bool:
    """Return True if a kernel takes more rows of x than 512 with this weight."""
    return arch == "sm_90a" and shape.outputs % (16 if gated else 8) == 0


def is_faster(shape: Shape, arch: str, *, gated: bool) -> bool:
    """Return True if this beats cuBLAS followed by kernels for bias, gate and residual.

    Up to 64 rows it does. Beyond, cuBLAS reads and multiplies as fast, so that the gain is in the
    kernels saved: that of the gate, and the reduction of a split K. Of a step of a 7B model that is
    2 % at 224 and 256 rows, at 208 a loss of 2 %; a layer of 384, 416, 448 and 512 gains 3, 7, 2
    and 2 %, of 1024 nothing (H200, docs/decisions/0020).
    """
    if arch != "sm_90a" or (gated and shape.outputs % 16):
        return False
    if shape.rows <= _FEW_ROWS:
        return True
    if shape.outputs % 8 or shape.rows > MAX_ROWS:
        return False
    if shape.rows <= _FASTER_UP_TO:
        return gated or shape.inner >= _LONG * shape.outputs
    return gated and (_fills_wide(shape) or (shape.rows in _TALL and _fills_tall(shape)))


def _choose_dozens(shape: Shape, shared_bytes: int, *, gated: bool) -> Wide | Tall:
    """Return the tile for more than `_FEW_ROWS`."""
    if gated and shape.rows in _TALL and _fills_tall(shape):
        return choose_tall(shape.rows, shared_bytes)
    return choose_wide(shape.rows, shape.outputs, shape.inner, shared_bytes)


def _fills_wide(shape: Shape) -> bool:
    """Return True if tiles of wide.cu hold hardly any padding."""
    tile = choose_wide(shape.rows, shape.outputs, shape.inner, _SHARED_BYTES)
    return -shape.rows % tile.tokens <= _MAX_EMPTY


def _fills_tall(shape: Shape) -> bool:
    return divides_evenly(shape.rows, shape.outputs, choose_tall(shape.rows, _SHARED_BYTES))


def _tiles_and_chunks(shape: Shape, groups: int) -> tuple[int, int]:
    """Return how many tiles there are, and chunks in each."""
    return -(-shape.outputs // (groups * GROUP_ROWS)), -(-shape.inner // CHUNK)


def _tokens_for(rows: int, sizes: tuple[int, ...]) -> int:
    """Return the smallest of `sizes` that holds the rows, or the largest."""
    return next((size for size in sizes if size >= rows), sizes[-1])


def fill(tokens: int, groups: int, *, hopper: bool, shared_bytes: int, splits: int = 1) -> Tile:
    """Return the tile with as many stages as fit."""
    one = Tile(tokens, groups, 1, hopper, splits)
    return replace(one, stages=max((shared_bytes - one.split_k_bytes) // one.stage_bytes, 2))


def launch(shape: Shape, tile: Tile, sm_count: int) -> Launch | None:
    """Return the grid: blocks along x, groups of tokens along y; None without rows."""
    if not shape.rows:
        return None
    groups = -(-shape.rows // tile.tokens)
    tiles, chunks = _tiles_and_chunks(shape, tile.groups)
    if tile.splits > 1:
        assert tile.splits <= chunks, (tile, shape)
        blocks = tiles * tile.splits
    else:
        blocks = min(max(sm_count // groups, 1), tiles * chunks, FLAGS // groups)
    return Launch(
        grid=(blocks, groups, 1),
        block=(tile.threads, 1, 1),
        shared_bytes=tile.shared_bytes,
        cluster=(tile.splits, 1, 1),
        overlaps=True,
    )
