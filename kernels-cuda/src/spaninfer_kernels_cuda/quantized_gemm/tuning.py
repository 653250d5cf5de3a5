"""Shape and format of a quantised GEMM -> tile and grid. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache

import ml_dtypes
import numpy as np
from spaninfer_kernel_launch import Launch, ShapeError

from spaninfer_kernels_cuda.gemm.tuning import FLAGS, Shape
from spaninfer_kernels_cuda.quantized_gemm.format import BLOCK_ROWS, CHUNK, QuantizedFormat
from spaninfer_kernels_cuda.quantized_gemm.tiles import Tile, fill

MAX_ROWS = 1 << 16
MAX_RESULTS = 1 << 31

_HALF_SM_BYTES = 110 * 1024  # so that the next kernel's first chunks fit beside this one's
# Of blocks with equal shares of all tiles, one per SM: two of them would not fit, but one beside
# one of another kernel. An SM that had two while others had none took 36 us for 21 (gate and up of
# a 7B at 1 token, behind an attention output whose blocks leave SMs two at a time).
_ALONE_BYTES = 231 * 512
_MAX_SPLITS = 8  # blocks of a cluster on any GPU
_SMS, _NEARLY_ALL_SMS = 132, 120  # of an H200
# Blocks that clusters are made of at most, by `wgmma`: two of mma.sync have room on an SM.
_BLOCKS_IN_CLUSTERS = {False: 264, True: _SMS}
# Blocks in clusters of three and more that run at a time, where a warpgroup has a tile of wgmma:
# 126 took two rounds, 32 us for 18 (attention output of a 7B at 288 tokens).
_SMS_OF_CLUSTERS = 112
_LONG = 4  # K, in outputs: down projections
_FEW_TOKENS = (8, 16, 32, 64)
_GENERAL_TOKENS = (8, 16, 32, 64)
_FEW = 16  # tokens that mma.sync multiplies, of 16 bits
# Blocks of a cluster that tiles of two groups leave room for, else they have three.
_FEW_SPLITS = 4
_INVARIANT_TOKENS = 128
_MIN_GROUP = 16  # columns: with one wgmma each, their numbers would not fit into registers
_FEWEST_STAGES, _MOST_STAGES = 3, 8  # of general.cu

# Tiles of many tokens: tokens, groups, blocks of a warpgroup, steps in flight; and what a chunk of
# one takes on an H200, in nanoseconds (2026-11-23).
_MANY = (
    (96, 2, 1, 4, 660),
    (96, 4, 2, 8, 1100),
    (128, 2, 1, 4, 775),
    (128, 4, 2, 8, 1440),
    (160, 2, 1, 4, 900),
    (192, 2, 1, 4, 1070),
    (256, 2, 1, 4, 1400),
)
# The same for activations in e4m3 (2026-12-01): within 7 % of the fastest of 3 to 9 tried for each
# of 4 weights of a 7B and 7 numbers of tokens.
_MANY_CODED = (
    (96, 2, 1, 4, 470),
    (128, 2, 1, 4, 535),
    (160, 2, 1, 4, 680),
    (192, 2, 1, 4, 755),
    (256, 2, 1, 4, 985),
)
# Of these, tokens whose sums have registers beside residuals that blocks of a cluster wait with.
_MOST_CODED_IN_CLUSTERS = 128
# What is added to these, in nanoseconds, for a tile of _RESULTS: where each block has its own, or
# each cluster; for each block that it is added up from, where all blocks share all tiles. There
# once: _SHARED_NS.
_RESULTS = 128 * 128
_FEWEST_STEPS = 4  # together, whose fragments leave room for numbers of codes of 8 bits
_OWN_NS, _CLUSTER_NS, _PART_NS, _SHARED_NS = 2000, 4900, 1200, 5500
_EXACT_ROWS = 512  # beyond, rows are rounded up to multiples of 256 before a tile is chosen
_MOST_MULTIPLIED, _MOST_MULTIPLIED_SLOWLY = 8192, 1024
_EVERY_ROWS = (
    *_FEW_TOKENS,
    *range(96, _EXACT_ROWS + 1, 32),
    *range(768, _MOST_MULTIPLIED + 1, 256),
)


def check(shape: Shape, format: QuantizedFormat, *, gated: bool) -> None:
    """Raise ShapeError for unsupported sizes."""
    if not 0 <= shape.rows <= MAX_ROWS or shape.rows * shape.outputs >= MAX_RESULTS:
        raise ShapeError(
            f"x has {shape.rows} rows, the weight {shape.outputs}; at most {MAX_ROWS} rows, and "
            f"fewer than {MAX_RESULTS} results"
        )
    if shape.outputs < 1 or (gated and shape.outputs % 2):
        raise ShapeError(
            f"the weight has {shape.outputs} rows; at least 1, an even number of gates"
        )
    grain = format.column_grain
    if shape.inner < grain or shape.inner % grain:
        raise ShapeError(
            f"rows have {shape.inner} elements; a multiple of {grain}, at least {grain}"
        )


def choose(
    shape: Shape, format: QuantizedFormat, arch: str, shared_bytes: int, *, gated: bool
) -> Tile:
    """Return the tile for `shape` on GPUs of `arch` whose blocks may have `shared_bytes`.

    Up to 64 tokens, few tiles go to clusters on Hopper: the fastest, or within 6 % of it, of 7 to
    20 tried for each of 5 weights. Beyond, the tile with the least estimate: the fastest, or within
    7 % of it, of 5 to 10 tried for each of 4 weights and 10 numbers of tokens (H200, 2026-11-23).
    """
    if arch != "sm_90a" or (gated and shape.outputs % 16):
        return _choose_general(shape, format, shared_bytes)
    if shape.rows > _FEW_TOKENS[-1]:
        rounded = replace(shape, rows=bucket_of(shape.rows))
        return _choose_many(rounded, format, shared_bytes)
    tokens = _tokens_for(shape.rows, _FEW_TOKENS)
    if tokens <= _FEW and format.activations == "e4m3":
        return _choose_few_coded(tokens, shape, format, shared_bytes)
    wgmma = tokens > _FEW
    folds = format.shift != "minimum" and not (wgmma and format.group == _MIN_GROUP)
    room = shared_bytes if wgmma else min(shared_bytes, _HALF_SM_BYTES)
    groups = 2 if wgmma or shape.inner >= _LONG * shape.outputs else 1
    tiles, chunks = -(-shape.outputs // (groups * BLOCK_ROWS)), -(-shape.inner // CHUNK)
    splits = min(_BLOCKS_IN_CLUSTERS[wgmma] // tiles, chunks, _MAX_SPLITS)
    if splits > 1:
        return fill(Tile(tokens, groups, 0, splits, wgmma, folds), format, room)
    tile = Tile(tokens, 3, 0, 1, wgmma, folds)
    if wgmma and (format.group not in (CHUNK, None) or format.shift != "none"):
        tile = replace(tile, groups=4, blocks=2)  # their numbers would not fit beside three's sums
    if wgmma and _NEARLY_ALL_SMS <= -(-shape.outputs // tile.rows) <= _SMS:
        tile = replace(tile, per_sm=None)
    return fill(tile, format, room)


def _choose_few_coded(
    tokens: int, shape: Shape, format: QuantizedFormat, shared_bytes: int
) -> Tile:
    """Return the tile for few tokens of activations in codes, by wgmma.

    The fastest, or within 2 % of it, of 5 to 15 tried for each of the weights of a 7B at 1, 8 and
    16 tokens (H200, 2026-12-01): by mma.sync gate and up took 26.8 us for 23.0, down 15.4 for 13.4.
    """
    tile = Tile(tokens, 2, 0, 1, True)
    if shape.inner >= _LONG * shape.outputs:
        tile = replace(tile, groups=4, blocks=2)
    elif -(-shape.outputs // tile.rows) * _FEW_SPLITS > _SMS_OF_CLUSTERS:
        tile = replace(tile, groups=3)
    tiles, chunks = -(-shape.outputs // tile.rows), -(-shape.inner // CHUNK)
    splits = max(min(_SMS_OF_CLUSTERS // tiles, chunks, _MAX_SPLITS), 1)
    return fill(replace(tile, splits=splits), format, shared_bytes)


def bucket_of(rows: int) -> int:
    """Return the number of rows that a tile is chosen for."""
    step = 32 if rows <= _EXACT_ROWS else 256
    return -(-rows // step) * step


@lru_cache(maxsize=4096)
def _choose_many(shape: Shape, format: QuantizedFormat, shared_bytes: int) -> Tile:
    return min(_many_tiles(shape, format, shared_bytes), key=lambda each: each[0])[1]


def _many_tiles(
    shape: Shape, format: QuantizedFormat, shared_bytes: int
) -> Iterator[tuple[float, Tile]]:
    """Yield the tiles for many tokens, and estimates of their nanoseconds."""
    chunks = -(-shape.inner // CHUNK)
    is_coded = format.activations == "e4m3"
    for tokens, groups, blocks, batch, chunk_ns in _MANY_CODED if is_coded else _MANY:
        together = batch if format.bits == 4 else _FEWEST_STEPS
        tile = Tile(tokens, groups, 0, 1, True, is_coded, blocks=blocks, batch=together)
        tiles = -(-shape.outputs // tile.rows) * -(-shape.rows // tokens)
        whole_ns = chunks * chunk_ns
        size = tokens * tile.rows / _RESULTS
        if tiles <= _SMS:
            alone = replace(tile, per_sm=None)
            yield whole_ns + size * _OWN_NS, fill(alone, format, shared_bytes)
        share = tiles / _SMS  # of a tile that a block has
        added_ns = _SHARED_NS + size * _PART_NS / min(share, 1.0)
        yield share * whole_ns + added_ns, fill(tile, format, shared_bytes)
        if is_coded and tokens > _MOST_CODED_IN_CLUSTERS:
            continue
        for splits in range(2, min(_SMS // tiles, _MAX_SPLITS, chunks) + 1):
            if splits > 2 and tiles * splits > _SMS_OF_CLUSTERS:
                break
            split = fill(replace(tile, splits=splits), format, shared_bytes)
            if split.stages >= _FEWEST_STAGES:
                yield -(-chunks // splits) * chunk_ns + size * _CLUSTER_NS, split


def _choose_general(shape: Shape, format: QuantizedFormat, shared_bytes: int) -> Tile:
    # Of FP4, more than 32 tokens spill on sm_75.
    sizes = _GENERAL_TOKENS[: -1 if format.values == "e2m1" else None]
    tokens = _tokens_for(shape.rows, sizes)
    tile = Tile(tokens, 2, 0, fold=format.shift != "minimum", hopper=False)
    room = min(shared_bytes, _HALF_SM_BYTES)
    if room // tile.stage_bytes(format) < _FEWEST_STAGES:
        tile, room = replace(tile, groups=1), shared_bytes
    filled = fill(tile, format, room)
    return replace(filled, stages=min(filled.stages, _MOST_STAGES))


def _tokens_for(rows: int, sizes: tuple[int, ...]) -> int:
    """Return the smallest of `sizes` that holds the rows, or the largest."""
    return next((size for size in sizes if size >= rows), sizes[-1])


def invariant_tile(
    outputs: int, format: QuantizedFormat, arch: str, shared_bytes: int, *, gated: bool
) -> Tile:
    """Return a tile for any number of tokens, none of which depends on others.

    A block has all of K. For activations in codes; others are multiplied by what is dequantised.
    """
    if arch != "sm_90a" or (gated and outputs % 16):
        tile = _choose_general(Shape(_GENERAL_TOKENS[-1], outputs, CHUNK), format, shared_bytes)
        return replace(tile, per_sm=None)
    tile = Tile(_INVARIANT_TOKENS, 2, 0, 1, True, per_sm=None)
    return fill(tile, format, shared_bytes)


def is_faster(
    shape: Shape, format: QuantizedFormat, dtype: object, arch: str, *, gated: bool
) -> bool:
    """Return True if codes are multiplied sooner than a weight is dequantised for cuBLAS.

    For activations in codes they always are: cuBLAS would need numbers of these.
    Where numbers are made from codes in few instructions, that is so for all rows (4096 of them
    times gate and up of a 7B: 1502 us, for 86 + 1417).
    """
    if format.activations != "floats":
        return True
    if arch != "sm_90a" or (gated and shape.outputs % 16):
        return shape.rows <= _GENERAL_TOKENS[-1]
    if shape.rows * shape.outputs >= MAX_RESULTS:
        return False
    is_short = format.bits == 4 or format.values == "e4m3"
    scales_pairs = format.group is None or np.dtype(dtype) == ml_dtypes.bfloat16  # type: ignore[call-overload]
    is_quick = is_short and scales_pairs and format.shift != "minimum"
    return shape.rows <= (_MOST_MULTIPLIED if is_quick else _MOST_MULTIPLIED_SLOWLY)


def rows_of_tiles(
    outputs: int, inner: int, format: QuantizedFormat, arch: str, shared_bytes: int, *, gated: bool
) -> tuple[int, ...]:
    """Return numbers of rows that have every kernel between them, of 1 to 8192 rows."""
    found: dict[Tile, int] = {}
    for rows in _EVERY_ROWS:
        shape = Shape(rows, outputs, inner)
        tile = choose(shape, format, arch, shared_bytes, gated=gated)
        found.setdefault(replace(tile, per_sm=1), rows)  # one kernel, whatever the grid
    return tuple(found.values())


def launch(shape: Shape, tile: Tile, format: QuantizedFormat, sm_count: int) -> Launch | None:
    """Return the grid: blocks along x, groups of tokens along y; None without rows."""
    if not shape.rows:
        return None
    groups = -(-shape.rows // tile.tokens)
    tiles, chunks = -(-shape.outputs // tile.rows), -(-shape.inner // CHUNK)
    is_alone = tile.hopper and tile.splits == 1 and tile.per_sm == 1
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
        shared_bytes=max(tile.shared_bytes(format), _ALONE_BYTES if is_alone else 0),
        cluster=(tile.splits, 1, 1),
        overlaps=True,
    )
