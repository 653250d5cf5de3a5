"""The GEMM of one shape with a weight of one format, compiled and ready to be launched."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
from spaninfer_kernel_launch import (
    Call,
    Compiled,
    FileCache,
    Gpu,
    Launch,
    NamedCalls,
    Result,
    ShapeError,
    Source,
    Step,
    Variant,
    compile_variant,
    load,
    pointer_of,
    stream_handle,
    user_cache,
)

from spaninfer_kernels_cuda.activation import ACTS, Act
from spaninfer_kernels_cuda.gemm.kernels import FLAG_BYTES, ClearArguments, GeneralSizes, Sizes
from spaninfer_kernels_cuda.gemm.tuning import FLAGS, Shape
from spaninfer_kernels_cuda.quantized_gemm.codes import CODES, operand_macros
from spaninfer_kernels_cuda.quantized_gemm.format import QuantizedFormat
from spaninfer_kernels_cuda.quantized_gemm.kernels import (
    GEMM_CLEAR,
    GEMM_GENERAL,
    GEMM_HOPPER,
    Addresses,
    General,
    OnHopper,
)
from spaninfer_kernels_cuda.quantized_gemm.tiles import Tile
from spaninfer_kernels_cuda.quantized_gemm.tuning import check, choose, launch

_PACKAGE = "spaninfer_kernels_cuda"
_HEADERS = ("types.cuh", "reduce.cuh", "mma.cuh", "copy.cuh", "overlap.cuh", "activate.cuh")
_MULTIPLY = (CODES, "quantized_gemm/chunk.cuh", "quantized_gemm/multiply.cuh")
HOPPER = Source(
    _PACKAGE,
    "quantized_gemm/hopper.cu",
    (*_HEADERS, "cluster.cuh", "wgmma.cuh"),
    ("stream_k.cuh", "epilogue.cuh", "split_k.cuh", "ring.cuh"),
    (*_MULTIPLY, *(f"quantized_gemm/{name}.cuh" for name in ("results", "pipeline", "turns"))),
    kernels=(GEMM_HOPPER, GEMM_CLEAR),
)
GENERAL = Source(
    _PACKAGE,
    "quantized_gemm/general.cu",
    (*_HEADERS, "cluster.cuh"),
    ("stream_k.cuh", "epilogue.cuh"),
    _MULTIPLY,
    kernels=(GEMM_GENERAL, GEMM_CLEAR),
)


@dataclass(frozen=True, slots=True)
class PreparedQuantizedGemm:
    """A GEMM of one shape with a weight of one format.

    `launch` needs `workspace_bytes` of 16-byte aligned memory, zeroed once; every launch leaves it
    ready for the next one, of any shape.
    """

    shape: Shape
    tile: Tile
    workspace_bytes: int
    _kernel: General | OnHopper | None
    _clear: Call[ClearArguments]

    def launch(
        self,
        x: object,
        records: object,
        factors: object,
        *,
        out: object,
        workspace: object,
        bias: object = None,
        residual: object = None,
        x_scales: object = None,
        stream: object = None,
    ) -> None:
        """Write x @ weight^T, bias, activation and residual applied, to `out`.

        `x_scales` float32 [M] are those of codes, absent for floats. `out` may be `residual`. The
        weight is read before the previous launch on the stream has finished, so that one must not
        write it.
        """
        at = Addresses(
            out=pointer_of(out),
            x=pointer_of(x),
            records=pointer_of(records),
            factors=pointer_of(factors),
            bias=pointer_of(bias),
            residual=pointer_of(residual),
            workspace=pointer_of(workspace),
            x_scales=pointer_of(x_scales),
        )
        self.start(stream_handle(stream, x), at)

    def start(self, handle: int, at: Addresses) -> None:
        """Launch on the stream with this handle, the default stream included."""
        if self._kernel is not None:
            self._kernel.start(handle, at)

    def step(self, gpu: Gpu, results: tuple[Result, ...]) -> Step:
        """Return it as the step of an operator, whose arrays have the names of `launch`."""
        if self._kernel is None:
            return Step(gpu, NamedCalls(), results)
        named = self._kernel.by_name
        if not self.uses_flags:
            return Step(gpu, named, results, constants={"workspace": 0, "partial": 0})
        calls = NamedCalls(
            ((self._clear, {"flags": "workspace"}), *named.calls),
            {"partial": ("workspace", FLAG_BYTES), **named.derived},
        )
        return Step(gpu, calls, results, (("workspace", (self.workspace_bytes,), np.uint8, 16),))

    @property
    def uses_flags(self) -> bool:
        """True if blocks exchange partial accumulators through the workspace."""
        return self.tile.splits == 1

    def start_clear(self, handle: int, workspace: int) -> None:
        """Initialise a workspace on the stream with this handle, the default stream included."""
        self._clear(handle, ClearArguments(workspace))


def variant_for(
    tile: Tile, format: QuantizedFormat, dtype: object, gate: Act | None = None
) -> Variant:
    """Return the variant for a tile, a format and results of `dtype`, float16 or bfloat16."""
    if gate is not None and gate not in ACTS:
        raise ShapeError(f"there is no activation {gate!r}; there are {', '.join(ACTS)}")
    macros, architectures = operand_macros(format, dtype)
    macros |= {"TOKENS": tile.tokens, "GROUPS": tile.groups, "STAGES": tile.stages}
    macros |= {"BLOCKS": tile.blocks, "BATCH": tile.batch}
    macros |= {"SPLITS": tile.splits, "FOLD": tile.fold}
    macros |= {"GATED": gate is not None, "ACT": gate or ""}
    if not tile.hopper:
        return Variant.of("quantized_gemm", GENERAL, macros, architectures)
    macros["WGMMA"] = tile.wgmma
    return Variant.of("quantized_gemm", HOPPER, macros, ("sm_90a",))


def prepare(
    shape: Shape,
    format: QuantizedFormat,
    *,
    dtype: object,
    gpu: Gpu,
    gate: Act | None = None,
    row_stride: int | None = None,
    tile: Tile | None = None,
    cache: FileCache | None = None,
) -> PreparedQuantizedGemm:
    """Return the GEMM of `shape` on `gpu`, compiled or cached.

    `dtype` is that of results, bias and residual, and of x where it holds floats. `row_stride`
    counts elements from one row of x to the next (K unless given); `tile` is chosen for the shape
    unless given. Raises ShapeError or DTypeError for unsupported sizes or types, CompileError where
    there is no compiler.
    """
    check(shape, format, gated=gate is not None)
    tile = tile or choose(shape, format, gpu.arch, gpu.shared_bytes, gated=gate is not None)
    variant = variant_for(tile, format, dtype, gate)
    compiled = compile_variant(variant, gpu.arch, cache or user_cache())
    grid = launch(shape, tile, format, gpu.sm_count)
    operand: Any = dtype if format.activations == "floats" else ml_dtypes.float8_e4m3fn
    rows = _Rows(
        np.dtype(operand).name,
        shape.inner if row_stride is None else row_stride,
    )
    return PreparedQuantizedGemm(
        shape,
        tile,
        workspace_bytes=FLAG_BYTES + (_partial_bytes(grid, tile) if grid else 0),
        _kernel=_load(compiled, gpu, shape, rows, tile, grid) if grid else None,
        _clear=Call(load(compiled, gpu, GEMM_CLEAR), Launch((1, 1, 1), (FLAGS, 1, 1))),
    )


class _Rows(NamedTuple):
    """The rows of x: their elements' type, and how many elements one row begins behind another."""

    dtype: str
    stride: int


def _load(
    compiled: Compiled, gpu: Gpu, shape: Shape, rows: _Rows, tile: Tile, grid: Launch
) -> General | OnHopper:
    sizes = Sizes(shape.rows, shape.outputs, shape.inner)
    if tile.hopper:
        call = Call(load(compiled, gpu, GEMM_HOPPER), grid, sizes)
        return OnHopper(shape, rows.dtype, rows.stride, tile.tokens, call)
    general = GeneralSizes(*sizes, stride=rows.stride)
    return General(Call(load(compiled, gpu, GEMM_GENERAL), grid, general))


def _partial_bytes(grid: Launch, tile: Tile) -> int:
    """Return the bytes of all blocks' partial accumulators: a tile of float32 each."""
    if tile.splits > 1:
        return 0
    blocks, groups, _ = grid.grid
    return blocks * groups * tile.rows * tile.tokens * 4
