"""Products of few rows with a large weight: out = x @ weight^T, with what follows it in a model.

x[M K], weight[N K] and out[M N] hold one 16-bit float type; M is at most 512, K a multiple of 8.
The weight is contiguous, rows of x are strided, both begin at multiples of 16 bytes; for a `Wide`
tile the others begin at multiples of 4. Sums are float32, rounded once, after bias[N], activation
and residual. With an activation, the weight's rows are those of the gate above those of up:
out[M N/2] = act(gate) * up.

The same arguments give the same bits. A row's result depends neither on the other rows nor on
their number as long as the same tile is chosen for it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import ml_dtypes
import numpy as np
from spaninfer_kernel_launch import (
    Array,
    Call,
    DTypeError,
    FileCache,
    Gpu,
    Launch,
    ShapeError,
    Source,
    Variant,
    check_aligned,
    check_dense,
    check_rows,
    compile_variant,
    element_of,
    gpu_of,
    load,
    match,
    pointer_of,
    result_array,
    stream_handle,
    user_cache,
    view_of,
)

from spaninfer_kernels_cuda.activation import ACTS, Act
from spaninfer_kernels_cuda.gemm.maps import map_weight, map_x
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
    "Prepared",
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
GENERAL = Source("spaninfer_kernels_cuda", "gemm/general.cu", _HEADERS, _OWN)
HOPPER = Source(
    "spaninfer_kernels_cuda", "gemm/hopper.cu", _ON_HOPPER, (*_OWN, "split_k.cuh", _RING)
)
TALL = Source("spaninfer_kernels_cuda", "gemm/tall.cu", _ON_HOPPER, (*_OWN, _RING))
WIDE = Source("spaninfer_kernels_cuda", "gemm/wide.cu", _ON_HOPPER, (_RING,))

_FLAG_BYTES = 4 * FLAGS
_ALIGNMENT = 16  # bytes: what one copy to shared memory brings
_PAIR_BYTES = 4  # what a thread of wide.cu reads or writes at once


@dataclass(frozen=True, slots=True)
class Prepared:
    """A product of one shape, compiled and loaded: `launch` passes pointers, and nothing else.

    `launch` needs `workspace_bytes` of 16-byte aligned memory. What is fresh goes through `clear`
    once (or is zeroed otherwise); every launch leaves it fit for the next one, of any shape.
    """

    shape: Shape
    tile: AnyTile
    dtype: str
    gate: Act | None
    workspace_bytes: int
    _call: Call | None
    _clear: Call
    _row_stride: int

    def launch(
        self,
        x: object,
        weight: object,
        *,
        out: object,
        workspace: object,
        bias: object = 0,
        residual: object = 0,
        stream: object = None,
    ) -> None:
        """Write x @ weight^T, what follows included, to `out`.

        Arrays may be given as addresses; `out` may be `residual`. The weight is read before the
        launch in front on the stream has finished, so that one must not write it. Without a
        stream, the current one of x's framework.
        """
        self.start(stream_handle(stream, x), (out, x, weight, bias, residual), workspace)

    def start(self, handle: int, arrays: tuple[object, ...], workspace: object) -> None:
        """Launch with the kernel's own order of arrays on the stream with this handle."""
        if self._call is None:
            return
        out, x, weight, bias, residual = map(pointer_of, arrays)
        flags = pointer_of(workspace)
        shape, tile = self.shape, self.tile
        others = (bias, residual, flags + _FLAG_BYTES, flags)
        sizes = (shape.rows, shape.outputs, shape.inner)
        gated = self.gate is not None
        if isinstance(tile, (Wide, Tall)):
            weights = map_weight(weight, self.dtype, shape, tile.rows, gated=gated)
            rows = map_x(x, self.dtype, shape, self._row_stride, tile.tokens)
            self._call(handle, out, weights, rows, bias, residual, *sizes)
        elif tile.hopper:
            weights = map_weight(weight, self.dtype, shape, tile.rows, gated=gated)
            rows = map_x(x, self.dtype, shape, self._row_stride, tile.tokens)
            self._call(handle, out, weights, rows, *others, *sizes)
        else:
            self._call(handle, out, weight, x, *others, *sizes, self._row_stride)

    def clear(self, workspace: object, *, stream: object = None) -> None:
        """Make fresh memory fit for a first launch."""
        self._clear(stream_handle(stream, workspace), pointer_of(workspace))


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
) -> Prepared:
    """Return the product of `shape` on `gpu`, compiled, or from `cache` where it is known.

    `row_stride` counts elements from one row of x to the next (K unless given); `tile` is chosen
    for the shape unless given. Raises ShapeError or DTypeError for what no kernel takes,
    CompileError where there is no compiler.
    """
    gated = gate is not None
    check(shape, gated=gated)
    tile = tile or choose(shape, gpu.arch, gpu.shared_bytes, gated=gated)
    variant = variant_for(tile, dtype, gate)
    compiled = compile_variant(variant, gpu.arch, cache or user_cache())
    if isinstance(tile, Wide):
        grid = launch_wide(shape.rows, shape.outputs, tile, gpu.sm_count)
        parameters = "P MM PP iii"
    elif isinstance(tile, Tall):
        grid = launch_tall(shape.rows, shape.outputs, tile, gpu.sm_count)
        parameters = "P MM PP iii"
    else:
        grid = launch(shape, tile, gpu.sm_count)
        parameters = "P MM PPPP iii" if tile.hopper else "P PP PPPP iiiq"
    return Prepared(
        *(shape, tile, np.dtype(dtype).name, gate),  # type: ignore[call-overload]
        workspace_bytes=_FLAG_BYTES + (_partial_bytes(grid, tile) if grid else 0),
        _call=Call(load(compiled, gpu), grid, parameters) if grid else None,
        _clear=Call(load(compiled, gpu, "gemm_clear"), Launch((1, 1, 1), (FLAGS, 1, 1)), "P"),
        _row_stride=shape.inner if row_stride is None else row_stride,
    )


def _partial_bytes(grid: Launch, tile: AnyTile) -> int:
    """Return what all blocks may have to leave for others: a tile of float32 each."""
    if isinstance(tile, (Wide, Tall)) or tile.splits > 1:
        return 0
    blocks, groups, _ = grid.grid
    return blocks * groups * tile.rows * tile.tokens * 4


_prepared = lru_cache(maxsize=1024)(prepare)


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

    Without `out`, the result is a new array in the order of the stream, which torch.from_dlpack
    and cupy.from_dlpack take. Without a stream, the current one of x's framework.
    """
    given = {"x": x, "weight": weight, "bias": bias, "residual": residual}
    views = {name: view_of(array) for name, array in given.items() if array is not None}
    sizes = match(x=(views["x"], "M K"), weight=(views["weight"], "N K"))
    shape = Shape(sizes["M"], sizes["N"], sizes["K"])
    check(shape, gated=gate is not None)
    columns = shape.outputs // 2 if gate else shape.outputs
    axes = {"bias": f"{shape.outputs}", "residual": f"{shape.rows} {columns}"}
    match(**{name: (views[name], axes[name]) for name in axes if name in views})
    source = views.pop("x")
    check_rows(source.dtype, _ALIGNMENT, x=source)
    check_dense(source.dtype, **views)
    check_aligned(_ALIGNMENT, weight=views["weight"])
    gpu = gpu_of(x=source, **views)
    row_stride = source.strides[0] if shape.rows > 1 else shape.inner
    step = _prepared(shape, dtype=source.dtype, gpu=gpu, gate=gate, row_stride=row_stride)
    handle = stream_handle(stream, x)
    alignment = _PAIR_BYTES if isinstance(step.tile, Wide) else 1
    check_aligned(alignment, **views)
    out = result_array(
        *(out, (shape.rows, columns), source.dtype, gpu, handle), alignment=alignment
    )
    workspace = Array((step.workspace_bytes,), np.uint8, gpu, handle)
    step._clear(handle, workspace.pointer)
    others = (views.get(name, 0) for name in ("weight", "bias", "residual"))
    step.start(handle, (out, source, *others), workspace)
    return out


VARIANTS: tuple[Variant, ...] = tuple(
    variant_for(tile, dtype, gate)
    for number, tile in enumerate(every_tile())
    for dtype in (np.float16, ml_dtypes.bfloat16)
    for gate in (None, ACTS[number % len(ACTS)])
)
"""Every tile with both element types, without a gate and with one of them in turn."""
