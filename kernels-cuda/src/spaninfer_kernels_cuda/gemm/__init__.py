"""Small-M GEMM (GEMV at one token): out = x @ weight^T with bias, activation and residual fused.

x[M K], weight[N K] and out[M N] hold one 16-bit float type; M is at most 512, K a multiple of 8.
The weight is contiguous, rows of x are strided, both begin at multiples of 16 bytes; for a `Wide`
tile the others begin at multiples of 4. Accumulation is float32, rounded once, after bias[N],
activation and residual. With an activation, the weight's rows are those of the gate above those of
up: out[M N/2] = act(gate) * up.

The same arguments give the same bits. A row's result depends neither on the other rows nor on their
number as long as the same tile is chosen for it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
from spaninfer_kernel_launch import (
    ArraySpec,
    Call,
    Compiled,
    DTypeError,
    FileCache,
    Gpu,
    Launch,
    ShapeError,
    Source,
    Variant,
    allocator,
    check_aligned,
    check_dense,
    check_results,
    check_rows,
    compile_variant,
    element_of,
    gpu_of,
    inspect_arrays,
    load,
    match,
    pointer_of,
    prepared_once,
    stream_handle,
    user_cache,
    view_at,
)

from spaninfer_kernels_cuda.activation import ACTS, Act
from spaninfer_kernels_cuda.gemm.kernels import (
    FLAG_BYTES,
    GEMM_CLEAR,
    GEMM_GENERAL,
    GEMM_HOPPER,
    GEMM_WHOLE_TILES,
    Addresses,
    ClearArguments,
    General,
    GeneralSizes,
    OnHopper,
    Operands,
    Sizes,
    WholeTiles,
)
from spaninfer_kernels_cuda.gemm.tall import Tall, launch_tall
from spaninfer_kernels_cuda.gemm.tiles import AnyTile, every_tile
from spaninfer_kernels_cuda.gemm.tuning import FLAGS, Shape, Tile, check, choose, launch
from spaninfer_kernels_cuda.gemm.wide import Wide, launch_wide

__all__ = [
    "GENERAL",
    "HOPPER",
    "TALL",
    "VARIANTS",
    "WIDE",
    "PreparedGemm",
    "Shape",
    "Tall",
    "Tile",
    "Wide",
    "gemm",
    "prepare",
    "variant_for",
]

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
_OWN, _RING = ("stream_k.cuh", "epilogue.cuh"), "ring.cuh"
_WHOLE_TILES = (GEMM_WHOLE_TILES, GEMM_CLEAR)
GENERAL = Source(
    "spaninfer_kernels_cuda",
    "gemm/general.cu",
    _HEADERS,
    _OWN,
    kernels=(GEMM_GENERAL, GEMM_CLEAR),
)
HOPPER = Source(
    "spaninfer_kernels_cuda",
    "gemm/hopper.cu",
    _ON_HOPPER,
    (*_OWN, "split_k.cuh", _RING),
    kernels=(GEMM_HOPPER, GEMM_CLEAR),
)
TALL = Source(
    "spaninfer_kernels_cuda", "gemm/tall.cu", _ON_HOPPER, (*_OWN, _RING), kernels=_WHOLE_TILES
)
WIDE = Source("spaninfer_kernels_cuda", "gemm/wide.cu", _ON_HOPPER, (_RING,), kernels=_WHOLE_TILES)

_ALIGNMENT = 16  # bytes of one copy to shared memory
_PAIR_BYTES = 4  # bytes that a thread of wide.cu reads or writes at once


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
    _kernel: General | OnHopper | WholeTiles | None
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
        stream: object = None,
    ) -> None:
        """Write x @ weight^T, bias, activation and residual applied, to `out`.

        `out` may be `residual`. The weight is read before the previous launch on the stream has
        finished, so that one must not write it.
        """
        at = Addresses(
            out=pointer_of(out),
            x=pointer_of(x),
            weight=pointer_of(weight),
            bias=pointer_of(bias),
            residual=pointer_of(residual),
            workspace=pointer_of(workspace),
        )
        self.start(stream_handle(stream, x), at)

    def start(self, handle: int, at: Addresses) -> None:
        """Launch on the stream with this handle, the default stream included."""
        if self._kernel is not None:
            self._kernel.start(handle, at)

    def clear(self, workspace: object, *, stream: object = None) -> None:
        """Initialise fresh memory as a workspace."""
        self.start_clear(stream_handle(stream, workspace), pointer_of(workspace))

    def start_clear(self, handle: int, workspace: int) -> None:
        """Initialise a workspace on the stream with this handle, the default stream included."""
        self._clear(handle, ClearArguments(workspace))


def variant_for(tile: AnyTile, dtype: object, gate: Act | None = None) -> Variant:
    """Return the variant for `tile` and elements of `dtype`, float16 or bfloat16."""
    element = element_of(dtype)
    if element.itemsize != 2:
        raise DTypeError(f"no kernel for elements of type {np.dtype(dtype)}; 16-bit floats only")  # type: ignore[call-overload]
    if gate is not None and gate not in ACTS:
        raise ShapeError(f"there is no activation {gate!r}; there are {', '.join(ACTS)}")
    macros: dict[str, str | int | bool] = {
        "T": element.name,
        "STAGES": tile.stages,
        "GATED": gate is not None,
        "ACT": gate or "",
    }
    if isinstance(tile, Wide):
        macros |= {"GROUPS": tile.groups, "BLOCKS": tile.blocks}
        macros |= {"ROWS": tile.rows, "SPLITS": tile.splits}
        return Variant.of("gemm", WIDE, macros, ("sm_90a",))
    macros["TOKENS"] = tile.tokens
    if isinstance(tile, Tall):
        return Variant.of("gemm", TALL, macros, ("sm_90a",))
    macros["GROUPS"] = tile.groups
    if tile.hopper:
        macros["SPLITS"] = tile.splits
        return Variant.of("gemm", HOPPER, macros, ("sm_90a",))
    return Variant.of("gemm", GENERAL, macros, element.architectures)


def prepare(
    shape: Shape,
    *,
    dtype: object,
    gpu: Gpu,
    gate: Act | None = None,
    row_stride: int | None = None,
    tile: AnyTile | None = None,
    cache: FileCache | None = None,
) -> PreparedGemm:
    """Return the GEMM of `shape` on `gpu`, compiled or cached.

    `row_stride` counts elements from one row of x to the next (K unless given); `tile` is chosen
    for the shape unless given. Raises ShapeError or DTypeError for unsupported sizes or types,
    CompileError where there is no compiler.
    """
    gated = gate is not None
    check(shape, gated=gated)
    tile = tile or choose(shape, gpu.arch, gpu.shared_bytes, gated=gated)
    compiled = compile_variant(variant_for(tile, dtype, gate), gpu.arch, cache or user_cache())
    grid = _launch(shape, tile, gpu.sm_count)
    operands = Operands(
        shape,
        np.dtype(dtype).name,  # type: ignore[call-overload]
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


def _launch(shape: Shape, tile: AnyTile, sm_count: int) -> Launch | None:
    """Return the grid; None without rows."""
    if isinstance(tile, Wide):
        return launch_wide(shape.rows, shape.outputs, tile, sm_count)
    if isinstance(tile, Tall):
        return launch_tall(shape.rows, shape.outputs, tile, sm_count)
    return launch(shape, tile, sm_count)


def _load(
    compiled: Compiled, gpu: Gpu, operands: Operands, tile: AnyTile, grid: Launch
) -> General | OnHopper | WholeTiles:
    """Return the kernel of the tile on the GPU."""
    shape = operands.shape
    sizes = Sizes(shape.rows, shape.outputs, shape.inner)
    if isinstance(tile, (Wide, Tall)):
        call = Call(load(compiled, gpu, GEMM_WHOLE_TILES), grid, sizes)
        return WholeTiles(operands, tile, call)
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


def gemm(
    x: object,
    weight: object,
    *,
    bias: object = None,
    gate: Act | None = None,
    residual: object = None,
    out: object = None,
    stream: object = None,
) -> object:
    """Return x[M K] @ weight[N K]^T, plus bias[N], gated by `gate`, plus residual.

    Without `out`, the result is a new array.
    """
    at, specs = inspect_arrays(x, weight, bias, residual, out)
    x_at, weight_at, bias_at, residual_at, to = at
    step, allocate = _checked(gate, *specs)
    handle = stream_handle(stream, x)
    memory, *new = allocate(handle)
    workspace = pointer_of(memory)
    if out is None:
        (out,) = new
        to = pointer_of(out)
    if step.uses_flags:
        step.start_clear(handle, workspace)
    step.start(handle, Addresses(to, x_at, weight_at, bias_at, residual_at, workspace))
    return out


@prepared_once(1024)
def _checked(
    gate: Act | None,
    spec: ArraySpec,
    weight: ArraySpec,
    bias: ArraySpec,
    residual: ArraySpec,
    out: ArraySpec,
) -> tuple[PreparedGemm, Callable[[int], tuple[Any, ...]]]:
    """Return the GEMM of arrays with these specs, and the allocator of workspace and result."""
    x = view_at(spec)
    given = {"weight": weight, "bias": bias, "residual": residual}
    views = {name: view_at(each) for name, each in given.items() if each}
    sizes = match(x=(x, "M K"), weight=(views["weight"], "N K"))
    shape = Shape(sizes["M"], sizes["N"], sizes["K"])
    check(shape, gated=gate is not None)
    columns = shape.outputs // 2 if gate else shape.outputs
    axes = {"bias": f"{shape.outputs}", "residual": f"{shape.rows} {columns}"}
    match(**{name: (views[name], axes[name]) for name in axes if name in views})
    check_rows(x.dtype, _ALIGNMENT, x=x)
    check_dense(x.dtype, **views)
    check_aligned(_ALIGNMENT, weight=views["weight"])
    gpu = gpu_of(x=x, **views)
    row_stride = x.strides[0] if shape.rows > 1 else shape.inner
    step = prepare(shape, dtype=x.dtype, gpu=gpu, gate=gate, row_stride=row_stride)
    alignment = _PAIR_BYTES if isinstance(step.tile, Wide) else 1
    check_aligned(alignment, **views)
    result = ("out", (shape.rows, columns), x.dtype, alignment)
    check_results((out,), gpu, result)
    workspace = ("workspace", (step.workspace_bytes,), np.uint8, _ALIGNMENT)
    return step, allocator(spec, gpu, workspace, *(() if out else (result,)))


VARIANTS: tuple[Variant, ...] = tuple(
    variant_for(tile, dtype, gate)
    for number, tile in enumerate(every_tile())
    for dtype in (np.float16, ml_dtypes.bfloat16)
    for gate in (None, ACTS[number % len(ACTS)])
)
"""Every tile with both element types, without a gate and with one of them in turn."""
