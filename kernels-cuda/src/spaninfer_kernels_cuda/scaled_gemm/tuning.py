"""Shape of a GEMM of 8-bit codes -> tile. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import inf
from typing import Final

from spaninfer_kernel_launch import DTypeError, ShapeError

from spaninfer_kernels_cuda.gemm import buckets
from spaninfer_kernels_cuda.gemm import tuning as floats
from spaninfer_kernels_cuda.gemm.buckets import FEW_ROWS, bucket_of
from spaninfer_kernels_cuda.gemm.prepared import BLOCK, Codes
from spaninfer_kernels_cuda.gemm.tiles import every_tile as every_float_tile
from spaninfer_kernels_cuda.gemm.tuning import Shape, Tile, fill
from spaninfer_kernels_cuda.gemm.wide import Wide, fill_wide, units_of

MAX_ROWS: Final = 65_536
_MAX_RESULTS: Final = 2**31 - 1
_CHUNK: Final = 128  # codes of K

# Groups, blocks of 64 rows of x and rows of the weight, without stages.
_OF_ROWS: Final = (
    *((2, 1, rows) for rows in (144, 128, 96)),
    (2, 2, 144),
    (2, 2, 128),
    (2, 2, 112),
)
_OF_BLOCKS: Final = ((2, 1, 128), (2, 1, 96), (2, 2, 96))
_ALTERNATING: Final = ((2, 2, 144), (2, 2, 128))  # whose scales are those of rows
_ALTERNATE_BEYOND: Final = 512  # rows of x: fewer wait for memory
_CLUSTERS: Final = {1: 132, 2: 66, 4: 28}  # that run at a time, by splits of K

# What an H200 took on 2026-11-23: of 40 GEMMs of FP8 of 96 to 8192 rows, half were within 6 % of it
# and 36 within 14 %. Ends of tiles have become shorter since; of 64 GEMMs the choice is 1 % behind
# the quickest tile in the mean, as with constants fitted to the new times (2026-12-01;
# docs/measurements/gpu-gemm.md, "Ends of tiles"). Multiply-adds of an SM per nanosecond; for a tile
# beside them, and for each of its results; for a tile of alternating groups, which write results
# meanwhile, and for the last.
_MACS_PER_NS: Final = {"rows": 3500.0, "blocks": 3570.0}
_CACHE_BYTES_PER_NS: Final = 53.0
_TILE_NS, _RESULT_NS = 2140, 0.055
_TURN_NS, _LAST_TURN_NS = 1200, 2500
_SPLIT_NS: Final = 7000  # for the reduction over a cluster
_MEMORY_NS, _BYTES_PER_NS = 3500, 3600  # for the weight, where reading it takes longest
_TIE: Final = 0.1  # of the time for multiplying: among tiles that wait for memory
_SHARED_BYTES: Final = 232_448  # that a block may have on Hopper


def check(shape: Shape, codes: Codes, *, gated: bool) -> None:
    """Raise ShapeError for unsupported sizes, DTypeError for unsupported codes."""
    if codes == Codes("int8", "blocks"):
        raise DTypeError("scales of blocks are those of fp8; int8 has a scale per row")
    if not 0 <= shape.rows <= MAX_ROWS:
        raise ShapeError(f"x has {shape.rows} rows; at most {MAX_ROWS}")
    if shape.outputs < 1 or shape.rows * shape.outputs > _MAX_RESULTS:
        raise ShapeError(
            f"{shape.rows} rows of x by {shape.outputs} rows of the weight; "
            f"at least 1 of the weight, at most {_MAX_RESULTS} results"
        )
    if gated and shape.outputs % 2:
        raise ShapeError(f"the weight has {shape.outputs} rows; as many for the gate as for up")
    if shape.inner < 16 or shape.inner % 16:
        raise ShapeError(f"rows have {shape.inner} codes; a multiple of 16, at least 16")


def blocks_of_sum(shape: Shape) -> int:
    """Return the blocks along K that have scales of their own."""
    return -(-shape.inner // BLOCK)


def blocks_of_rows(shape: Shape, *, gated: bool) -> int:
    """Return the blocks of weight rows that have; up rows begin with a new one."""
    return 2 * -(-shape.outputs // 2 // BLOCK) if gated else -(-shape.outputs // BLOCK)


def choose(shape: Shape, codes: Codes, arch: str, shared_bytes: int, *, gated: bool) -> Tile | Wide:
    """Return the tile for `shape` on GPUs of `arch` whose blocks may have `shared_bytes`."""
    pairs_fit = shape.outputs % 16 == 0 or not gated
    if arch == "sm_90a" and shape.rows > FEW_ROWS and shape.outputs % 8 == 0 and pairs_fit:
        tiles = (fill_wide(tile, shared_bytes) for tile in _wide_tiles(codes))
        rounded = replace(shape, rows=bucket_of(shape.rows))
        return min(tiles, key=lambda tile: _estimate_ns(rounded, codes, tile))
    # Chunks have as many bytes as those of 16-bit floats; tiles of more rows of x would spill.
    halved = replace(shape, rows=min(shape.rows, FEW_ROWS), inner=shape.inner // 2)
    tile = floats.choose(halved, arch, shared_bytes, gated=gated)
    assert isinstance(tile, Tile)
    return _with_scales(tile, codes, shared_bytes)


def _with_scales(tile: Tile, codes: Codes, shared_bytes: int) -> Tile:
    """Return a tile for floats as one whose sums and scales fit into registers."""
    if tile.groups > 2 and tile.tokens > 16 and codes.scales == "blocks":
        return fill(tile.tokens, 2, hopper=True, shared_bytes=shared_bytes)
    return tile


def _wide_tiles(codes: Codes) -> Iterator[Wide]:
    """Yield all tiles for many rows, without stages."""
    for sizes in _OF_BLOCKS if codes.scales == "blocks" else _OF_ROWS:
        for splits in _CLUSTERS:
            yield Wide(*sizes, stages=0, splits=splits)
    for sizes in () if codes.scales == "blocks" else _ALTERNATING:
        yield Wide(*sizes, stages=0, alternate=True)


def _estimate_ns(shape: Shape, codes: Codes, tile: Wide) -> float:
    """Return an estimate of the GEMM's time."""
    units, clusters = units_of(shape.rows, shape.outputs, tile), _CLUSTERS[tile.splits]
    chunks = -(-shape.inner // _CHUNK)
    if tile.splits > 1 and (units > clusters or tile.splits > chunks or not _has_room(tile)):
        return inf
    if tile.alternate and shape.rows <= _ALTERNATE_BEYOND:
        return inf
    results, turns = tile.tokens * tile.rows, -(-units // clusters)
    copied = tile.rows + tile.tokens  # lines of a chunk
    chunk_ns = _CHUNK * max(results / _MACS_PER_NS[codes.scales], copied / _CACHE_BYTES_PER_NS)
    multiply_ns = -(-chunks // tile.splits) * chunk_ns
    if tile.alternate:
        compute_ns = turns * (multiply_ns + _TURN_NS) + _LAST_TURN_NS
    else:
        compute_ns = turns * (multiply_ns + _TILE_NS + results * _RESULT_NS)
    compute_ns += _SPLIT_NS if tile.splits > 1 else 0
    memory_ns = _MEMORY_NS + shape.outputs * shape.inner / _BYTES_PER_NS
    return max(memory_ns, compute_ns) + _TIE * compute_ns


def _has_room(tile: Wide) -> bool:
    """Return True if the ring holds a tile's sums, which the blocks of a cluster exchange."""
    return 4 * tile.tokens * tile.rows <= tile.stages * _CHUNK * (tile.tokens + tile.rows)


def invariant_tile(arch: str, shared_bytes: int) -> Wide | None:
    """Return a tile for any number of rows, in which none depends on others; None without one."""
    return fill_wide(Wide(2, 1, 128, 0), shared_bytes) if arch == "sm_90a" else None


def rows_of_tiles(
    outputs: int, inner: int, codes: Codes, arch: str, shared_bytes: int, *, gated: bool
) -> tuple[int, ...]:
    """Return numbers of rows that have every tile between them, of 1 to 8192 rows."""
    return buckets.rows_of_tiles(
        lambda rows: choose(Shape(rows, outputs, inner), codes, arch, shared_bytes, gated=gated)
    )


def every_tile(codes: Codes) -> Iterator[Tile | Wide]:
    """Yield each tile once."""
    few = (
        _with_scales(tile, codes, _SHARED_BYTES)
        for tile in every_float_tile()
        if isinstance(tile, Tile) and tile.tokens <= FEW_ROWS
    )
    yield from dict.fromkeys(few)
    for tile in _wide_tiles(codes):
        filled = fill_wide(tile, _SHARED_BYTES)
        if tile.splits == 1 or _has_room(filled):
            yield filled
