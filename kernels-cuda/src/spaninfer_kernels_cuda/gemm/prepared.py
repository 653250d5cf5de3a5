"""GEMMs of one shape, compiled and loaded: of 16-bit floats, or of 8-bit codes with scales."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from spaninfer_kernel_launch import (
    Call,
    Compiled,
    DTypeError,
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
    element_of,
    load,
    pointer_of,
    stream_handle,
    user_cache,
)

from spaninfer_kernels_cuda.activation import ACTS, Act
from spaninfer_kernels_cuda.codes import Code, code_type
from spaninfer_kernels_cuda.gemm.kernels import (
    FLAG_BYTES,
    GEMM_CLEAR,
    GEMM_GENERAL,
    GEMM_HOPPER,
    GEMM_TALL,
    GEMM_WIDE,
    Addresses,
    ClearArguments,
    General,
    GeneralSizes,
    OnHopper,
    Operands,
    Sizes,
    TallTiles,
    WideSizes,
    WideTiles,
)
from spaninfer_kernels_cuda.gemm.tall import Tall, launch_tall
from spaninfer_kernels_cuda.gemm.tiles import AnyTile
from spaninfer_kernels_cuda.gemm.tuning import FLAGS, Shape, Tile, launch
from spaninfer_kernels_cuda.gemm.wide import Wide, band_of, launch_wide

_HEADERS = (
    "types.cuh",
    "reduce.cuh",
    "mma.cuh",
    "copy.cuh",
    "overlap.cuh",
    "activate.cuh",
    "cluster.cuh",
)
_ON_HOPPER = (*_HEADERS, "wgmma.cuh")
_OWN, _RING, _SCALES = ("stream_k.cuh", "epilogue.cuh"), "ring.cuh", "scales.cuh"
GENERAL = Source(
    "spaninfer_kernels_cuda",
    "gemm/general.cu",
    _HEADERS,
    (*_OWN, _SCALES),
    kernels=(GEMM_GENERAL, GEMM_CLEAR),
)
HOPPER = Source(
    "spaninfer_kernels_cuda",
    "gemm/hopper.cu",
    _ON_HOPPER,
    (*_OWN, "split_k.cuh", _RING, _SCALES),
    kernels=(GEMM_HOPPER, GEMM_CLEAR),
)
TALL = Source(
    "spaninfer_kernels_cuda",
    "gemm/tall.cu",
    _ON_HOPPER,
    (*_OWN, _RING),
    kernels=(GEMM_TALL, GEMM_CLEAR),
)
WIDE = Source(
    "spaninfer_kernels_cuda",
    "gemm/wide.cu",
    _ON_HOPPER,
    (_RING, _SCALES),
    parts=("gemm/wide_tile.cuh", "gemm/wide_results.cuh"),
    kernels=(GEMM_WIDE, GEMM_CLEAR),
)

Scales = Literal["rows", "blocks"]
BLOCK = 128  # elements of K, and rows of the weight, that share a scale of blocks


@dataclass(frozen=True, slots=True)
class Codes:
    """Operands of 8-bit codes: which codes, and what shares a scale (csrc/scales.cuh)."""

    code: Code
    scales: Scales = "rows"

    @property
    def group(self) -> int | None:
        """Codes of a row of x that share a scale; None: the row."""
        return BLOCK if self.scales == "blocks" else None

    @property
    def operand(self) -> str:
        """The element type in CUDA."""
        return {"fp8": "e4m3", "int8": "int8"}[self.code]

    @property
    def dtype(self) -> np.dtype[Any]:
        """The element type."""
        return code_type(self.code).dtype


_NOT_GIVEN = dict.fromkeys(("x_scales", "weight_scales", "workspace", "partial"), 0)


@dataclass(frozen=True, slots=True)
class PreparedGemm:
    """A GEMM of one shape.

    `launch` needs `workspace_bytes` of 16-byte aligned memory. Fresh memory is initialised once by
    `clear` (or zeroed); every launch leaves it ready for the next one, of any shape.
    """

    shape: Shape
    tile: AnyTile
    gated: bool  # the outputs are half as many as the weight's rows
    workspace_bytes: int
    _kernel: General | OnHopper | WideTiles | TallTiles | None
    _clear: Call[ClearArguments]

    @property
    def uses_flags(self) -> bool:
        """True if blocks exchange partial accumulators through the workspace."""
        return isinstance(self.tile, Tile) and self.tile.splits == 1

    def launch(
        self,
        x: object,
        weight: object,
        *,
        out: object,
        workspace: object,
        bias: object = None,
        residual: object = None,
        x_scales: object = None,
        weight_scales: object = None,
        stream: object = None,
    ) -> None:
        """Write x @ weight^T, bias, activation and residual applied, to `out`.

        Scales are those of codes, absent for floats. `out` may be `residual`. The weight is read
        before the previous launch on the stream has finished, so that one must not write it.
        """
        at = Addresses(
            out=pointer_of(out),
            x=pointer_of(x),
            weight=pointer_of(weight),
            bias=pointer_of(bias),
            residual=pointer_of(residual),
            workspace=pointer_of(workspace),
            x_scales=pointer_of(x_scales),
            weight_scales=pointer_of(weight_scales),
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
            return Step(gpu, named, results, constants=_NOT_GIVEN)
        calls = NamedCalls(
            ((self._clear, {"flags": "workspace"}), *named.calls),
            {"partial": ("workspace", FLAG_BYTES), **named.derived},
        )
        workspace: Result = ("workspace", (self.workspace_bytes,), np.uint8, 16)
        return Step(gpu, calls, results, (workspace,), _NOT_GIVEN)

    def clear(self, workspace: object, *, stream: object = None) -> None:
        """Initialise fresh memory as a workspace."""
        self.start_clear(stream_handle(stream, workspace), pointer_of(workspace))

    def start_clear(self, handle: int, workspace: int) -> None:
        """Initialise a workspace on the stream with this handle, the default stream included."""
        self._clear(handle, ClearArguments(workspace))


def variant_for(
    tile: AnyTile,
    dtype: object,
    gate: Act | None = None,
    act: Act | None = None,
    codes: Codes | None = None,
) -> Variant:
    """Return the variant for `tile` and results of `dtype`, float16 or bfloat16.

    Operands are of the same type, or `codes`.
    """
    element = element_of(dtype)
    if element.itemsize != 2:
        raise DTypeError(f"no kernel for elements of type {np.dtype(dtype)}; 16-bit floats only")  # type: ignore[call-overload]
    if gate is not None and act is not None:
        raise ShapeError(f"gate {gate} and act {act}; a GEMM has one of them")
    named = gate or act
    if named is not None and named not in ACTS:
        raise ShapeError(f"there is no activation {named!r}; there are {', '.join(ACTS)}")
    macros: dict[str, str | int | bool] = {
        "T": element.name,
        "STAGES": tile.stages,
        "GATED": gate is not None,
        "ACT": named or "",
    }
    if isinstance(tile, Tall):
        macros["TOKENS"] = tile.tokens
        return Variant.of("gemm", TALL, macros, ("sm_90a",))
    macros |= {"OPERAND": codes.operand if codes else element.name}
    macros |= {"SCALES": codes.scales if codes else "none"}
    if isinstance(tile, Wide):
        macros |= {"GROUPS": tile.groups, "BLOCKS": tile.blocks}
        macros |= {"ROWS": tile.rows, "SPLITS": tile.splits}
        macros |= {"VECTORS": bool(codes), "ALTERNATE": tile.alternate, "MANY": tile.many}
        return Variant.of("gemm", WIDE, macros, ("sm_90a",))
    macros |= {"TOKENS": tile.tokens, "GROUPS": tile.groups}
    if tile.hopper:
        macros["SPLITS"] = tile.splits
        return Variant.of("gemm", HOPPER, macros, ("sm_90a",))
    return Variant.of("gemm", GENERAL, macros, element.architectures)


def prepare_tile(
    shape: Shape,
    tile: AnyTile,
    *,
    dtype: object,
    gpu: Gpu,
    gate: Act | None = None,
    act: Act | None = None,
    codes: Codes | None = None,
    row_stride: int | None = None,
    cache: FileCache | None = None,
) -> PreparedGemm:
    """Return the GEMM of `shape` by `tile` on `gpu`, compiled or cached."""
    gated = gate is not None
    variant = variant_for(tile, dtype, gate, act, codes)
    compiled = compile_variant(variant, gpu.arch, cache or user_cache())
    operand = codes.dtype if codes else np.dtype(dtype)  # type: ignore[call-overload]
    grid = _launch(shape, tile, gpu.sm_count, operand.itemsize)
    operands = Operands(
        shape,
        operand.name,
        row_stride=shape.inner if row_stride is None else row_stride,
        gated=gated,
    )
    return PreparedGemm(
        shape,
        tile,
        gated,
        workspace_bytes=FLAG_BYTES + (_partial_bytes(grid, tile) if grid else 0),
        _kernel=_load(compiled, gpu, operands, tile, grid) if grid else None,
        _clear=Call(load(compiled, gpu, GEMM_CLEAR), Launch((1, 1, 1), (FLAGS, 1, 1))),
    )


def _launch(shape: Shape, tile: AnyTile, sm_count: int, itemsize: int) -> Launch | None:
    """Return the grid; None without rows."""
    if isinstance(tile, Wide):
        return launch_wide(shape.rows, shape.outputs, tile, sm_count)
    if isinstance(tile, Tall):
        return launch_tall(shape.rows, shape.outputs, tile, sm_count)
    # Chunks have as many bytes of 8-bit elements as of 16-bit ones.
    return launch(replace(shape, inner=shape.inner * itemsize // 2), tile, sm_count)


def _load(
    compiled: Compiled, gpu: Gpu, operands: Operands, tile: AnyTile, grid: Launch
) -> General | OnHopper | WideTiles | TallTiles:
    """Return the kernel of the tile on the GPU."""
    shape = operands.shape
    sizes = Sizes(shape.rows, shape.outputs, shape.inner)
    if isinstance(tile, Wide):
        band = band_of(shape.rows, shape.inner * np.dtype(operands.dtype).itemsize, tile)
        wide = Call(load(compiled, gpu, GEMM_WIDE), grid, WideSizes(*sizes, band))
        return WideTiles(operands, tile, wide)
    if isinstance(tile, Tall):
        return TallTiles(operands, tile, Call(load(compiled, gpu, GEMM_TALL), grid, sizes))
    if tile.hopper:
        return OnHopper(operands, tile, Call(load(compiled, gpu, GEMM_HOPPER), grid, sizes))
    general = GeneralSizes(*sizes, stride=operands.row_stride)
    return General(Call(load(compiled, gpu, GEMM_GENERAL), grid, general))


def _partial_bytes(grid: Launch, tile: AnyTile) -> int:
    """Return the bytes of all blocks' partial accumulators: a tile of float32 each."""
    if isinstance(tile, (Wide, Tall)) or tile.splits > 1:
        return 0
    blocks, groups, _ = grid.grid
    return blocks * groups * tile.rows * tile.tokens * 4
