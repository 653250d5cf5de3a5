"""Shape and format of a grouped GEMM with codes -> tile and grid. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace

from spaninfer_kernel_launch import Launch

from spaninfer_kernels_cuda.grouped_gemm.tuning import (
    BLOCK_ROWS,
    GROUP_THREADS,
    SOURCE_BYTES,
    Shape,
    experts_bytes,
)
from spaninfer_kernels_cuda.quantized_gemm.format import CHUNK, QuantizedFormat

# By the mean of rows that an expert has: rows of x of the tile of coded.cu.
_CODED = ((6, 8), (12, 16), (32, 32))
_MAX_CODED = 64
_CODED_BLOCKS = ((32, 2),)  # for whom an SM has registers, by the most rows of x; else one
_FEWEST_STAGES, _CODED_STAGES = 3, 8
_STAGE_GRAIN = 1024
_BARRIER_BYTES = 16  # of a stage: full and empty
_RESERVED_BYTES = 1024  # of shared memory, for each block that runs on a multiprocessor


@dataclass(frozen=True, slots=True)
class Coded:
    """A tile of coded.cu: its macros. `tokens` rows of x by 64 rows of codes for each of `groups`.

    With `fold`, scales go to sums instead of weights. `blocks` of them run on a multiprocessor.
    """

    tokens: int
    groups: int
    stages: int
    fold: bool = True
    blocks: int = 1

    @property
    def outputs(self) -> int:
        """Rows of the weight."""
        return self.groups * BLOCK_ROWS

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return self.groups * GROUP_THREADS

    def stage_bytes(self, format: QuantizedFormat) -> int:
        """Shared memory of a stage."""
        used = self.tokens * CHUNK * 2 + self.groups * format.record_bytes
        return -(-used // _STAGE_GRAIN) * _STAGE_GRAIN


@dataclass(frozen=True, slots=True)
class CodedHopper:
    """A tile of coded_hopper.cu: its macros. `tokens` rows of x by 64 rows of codes for each of
    `groups`, of which a warpgroup has `blocks`.

    With `wgmma`, weights are made while the tensor cores multiply those before, else in turn.
    """

    tokens: int
    groups: int
    stages: int
    wgmma: bool = True
    fold: bool = True
    blocks: int = 1
    of_sm: int = 1
    batch: int = 4

    @property
    def outputs(self) -> int:
        """Rows of the weight."""
        return self.groups * BLOCK_ROWS

    @property
    def threads(self) -> int:
        """Threads of a block, those that copy included."""
        return (self.groups // self.blocks + 1) * GROUP_THREADS

    def stage_bytes(self, format: QuantizedFormat) -> int:
        """Shared memory of a stage."""
        return Coded(self.tokens, self.groups, 0).stage_bytes(format)


def fill_coded_hopper(
    tile: CodedHopper, experts: int, format: QuantizedFormat, shared_bytes: int
) -> CodedHopper:
    """Return `tile` with as many stages as fit."""
    fixed = _RESERVED_BYTES + experts_bytes(experts) + tile.tokens * SOURCE_BYTES
    room = (shared_bytes + _RESERVED_BYTES) // tile.of_sm - fixed
    return replace(tile, stages=room // (tile.stage_bytes(format) + _BARRIER_BYTES))


def launch_coded_hopper(
    shape: Shape, tile: CodedHopper, format: QuantizedFormat, sm_count: int
) -> Launch | None:
    """Return the grid of coded_hopper.cu; None without rows."""
    if not shape.rows:
        return None
    of_stage = tile.stage_bytes(format) + _BARRIER_BYTES
    return Launch(
        grid=(min(shape.tasks(tile.tokens, tile.outputs), sm_count * tile.of_sm), 1, 1),
        block=(tile.threads, 1, 1),
        shared_bytes=(
            tile.stages * of_stage + experts_bytes(shape.experts) + tile.tokens * SOURCE_BYTES
        ),
        overlaps=True,
    )


def choose_coded(shape: Shape, format: QuantizedFormat, shared_bytes: int) -> Coded:
    """Return the tile of coded.cu for `shape` on GPUs whose blocks may have `shared_bytes`."""
    mean = shape.rows / shape.experts
    tokens = next((tokens for most, tokens in _CODED if mean <= most), _MAX_CODED)
    tile = fill_coded(Coded(tokens, 2, 0, format.shift != "minimum"), shape, format, shared_bytes)
    if tile.stages < _FEWEST_STAGES:
        few = replace(tile, tokens=min(tokens, _CODED[-1][1]), groups=1)
        tile = fill_coded(few, shape, format, shared_bytes)
    return tile


def fill_coded(tile: Coded, shape: Shape, format: QuantizedFormat, shared_bytes: int) -> Coded:
    """Return `tile` with as many blocks and stages as fit on a multiprocessor."""
    of_block = experts_bytes(shape.experts) + tile.tokens * SOURCE_BYTES + _RESERVED_BYTES
    most = next((blocks for rows, blocks in _CODED_BLOCKS if tile.tokens <= rows), 1)
    for blocks in range(most, 0, -1):
        room = (shared_bytes + _RESERVED_BYTES) // blocks - of_block
        stages = min(_CODED_STAGES, room // tile.stage_bytes(format))
        if stages >= _FEWEST_STAGES:
            break
    return replace(tile, blocks=blocks, stages=stages)


def choose_coded_hopper(shape: Shape, format: QuantizedFormat, shared_bytes: int) -> CodedHopper:
    """Return the tile of coded_hopper.cu for `shape` on GPUs whose blocks may have `shared_bytes`.

    Rows of x that experts have on average, and as many more as two of three have at most, fit into
    one tile where that is small.
    """
    mean = shape.rows / shape.experts
    tile = next((tile for most, tile in _ON_HOPPER[format.bits] if mean <= most), _PROMPTS)
    rounds = format.shift == "minimum" or (tile.wgmma and format.group == _SMALL_GROUP)
    tile = replace(tile, fold=tile.fold and not rounds)
    fitting = fill_coded_hopper(tile, shape.experts, format, shared_bytes)
    if fitting.stages >= _FEWEST_STAGES:
        return fitting
    few = replace(tile, tokens=_FEWER_ROWS)
    return fill_coded_hopper(few, shape.experts, format, shared_bytes)


_SMALL_GROUP = 16  # columns that one wgmma multiplies: no sums to scale
_FEW_ROWS = CodedHopper(8, 2, 0, wgmma=False, of_sm=2)
_ON_HOPPER: dict[int, tuple[tuple[int, CodedHopper], ...]] = {
    4: (
        (5, _FEW_ROWS),
        (10, CodedHopper(16, 4, 0)),
        (22, CodedHopper(32, 4, 0)),
        (36, CodedHopper(48, 3, 0)),
        (64, CodedHopper(96, 4, 0, fold=False, blocks=2)),
    ),
    8: (
        (5, _FEW_ROWS),
        (10, CodedHopper(16, 4, 0)),
        (36, CodedHopper(48, 3, 0)),
        (64, CodedHopper(96, 4, 0, fold=False, blocks=2)),
    ),
}
_PROMPTS = CodedHopper(144, 4, 0, fold=False, blocks=2)
_FEWER_ROWS = 96  # of x, where records are so large that a ring would be too short


def choose_quantized(
    shape: Shape, format: QuantizedFormat, arch: str, shared_bytes: int
) -> Coded | CodedHopper:
    """Return the tile for codes: of coded_hopper.cu where that runs, else of coded.cu."""
    if arch == "sm_90a":
        return choose_coded_hopper(shape, format, shared_bytes)
    return choose_coded(shape, format, shared_bytes)


def launch_coded(
    shape: Shape, tile: Coded, format: QuantizedFormat, sm_count: int
) -> Launch | None:
    """Return the grid of coded.cu; None without rows."""
    if not shape.rows:
        return None
    dynamic = tile.stages * tile.stage_bytes(format) + experts_bytes(shape.experts)
    blocks = min(shape.tasks(tile.tokens, tile.outputs), sm_count * tile.blocks)
    return Launch(
        grid=(blocks, 1, 1),
        block=(tile.threads, 1, 1),
        shared_bytes=dynamic + tile.tokens * SOURCE_BYTES,
        overlaps=True,
    )
