"""Shape and format of a grouped GEMM with codes -> tile and grid. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace

from spaninfer_kernel_launch import Launch

from spaninfer_kernels_cuda.grouped_gemm.tuning import (
    BLOCK_ROWS,
    GROUP_THREADS,
    SOURCE_BYTES,
    Prompt,
    Shape,
    choose,
    experts_bytes,
)
from spaninfer_kernels_cuda.quantized_gemm.format import CHUNK, QuantizedFormat

# By the mean of rows that an expert has: rows of x of the tile of coded.cu.
_CODED = ((6, 8), (12, 16), (32, 32))
_FEW_CODED, _MOST_CODED = 16, 64
_CODED_BLOCKS = 6  # of an SM, at most
_FEWEST_STAGES, _CODED_STAGES = 3, 6
_STAGE_GRAIN = 1024
_DEQUANTIZED_ROWS = 128  # of an expert, on average, from which its weights are dequantised before
_MOST_BLOCKS = 1 << 16
_MOST_NUMBERS = 4 << 30  # bytes that dequantised weights of a product may take


@dataclass(frozen=True, slots=True)
class Coded:
    """A tile of coded.cu: its macros. `tokens` rows of x by 64 rows of codes for each of `groups`.

    With `fold`, scales go to sums instead of weights.
    """

    tokens: int
    groups: int
    stages: int
    fold: bool = True
    blocks: int = _CODED_BLOCKS

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


def choose_coded(shape: Shape, format: QuantizedFormat, shared_bytes: int) -> Coded:
    """Return the tile of coded.cu for `shape` on GPUs whose blocks may have `shared_bytes`."""
    mean = shape.rows / shape.experts
    room = shared_bytes - experts_bytes(shape.experts) - _MOST_CODED * SOURCE_BYTES
    tokens = next((tokens for most, tokens in _CODED if mean <= most), _MOST_CODED)
    tile = Coded(tokens, 2, 0, format.shift != "minimum")
    if room // tile.stage_bytes(format) < _FEWEST_STAGES:
        tile = replace(tile, tokens=min(tokens, _CODED[-1][1]), groups=1)
    of_sm = _CODED_BLOCKS if tokens <= _FEW_CODED else _CODED_BLOCKS // 2
    fit = room // of_sm // tile.stage_bytes(format)
    return replace(tile, stages=max(_FEWEST_STAGES, min(_CODED_STAGES, fit)))


def choose_quantized(
    shape: Shape, format: QuantizedFormat, arch: str, shared_bytes: int
) -> Coded | Prompt:
    """Return the tile for codes: of coded.cu, or of prompt.cu for the numbers they stand for."""
    # Records of all experts are those of one weight, whose blocks are an axis of a grid.
    is_whole = shape.outputs % BLOCK_ROWS == 0
    is_whole = is_whole and shape.experts * shape.outputs // BLOCK_ROWS < _MOST_BLOCKS
    mean = shape.rows / shape.experts
    if arch != "sm_90a" or mean < _DEQUANTIZED_ROWS or not is_whole:
        return choose_coded(shape, format, shared_bytes)
    if numbers_bytes(shape) > _MOST_NUMBERS:
        return choose_coded(shape, format, shared_bytes)
    tile = choose(shape, arch, shared_bytes)
    assert isinstance(tile, Prompt), "so many rows are multiplied in prompts' tiles"
    return tile


def numbers_bytes(shape: Shape) -> int:
    """Return the bytes of the weights of all experts as 16-bit floats."""
    return 2 * shape.experts * shape.outputs * shape.inner


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
