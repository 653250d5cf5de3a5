"""GEMM (GEMV at one token): out = x @ weight^T with bias, activation and residual fused.

x[M K], weight[N K] and out[M N] hold one 16-bit float type; K is a multiple of 8. M is at most 512,
but on Hopper any number where N is a multiple of 8 (gated: of 16).
The weight is contiguous, rows of x are strided, both begin at multiples of 16 bytes; for a `Wide`
tile the others begin at multiples of 4. Accumulation is float32, rounded once, after bias[N],
activation and residual. With an activation, the weight's rows are those of the gate above those of
up: out[M N/2] = act(gate) * up; a plain activation is applied to every result.

The same arguments give the same bits. A row's result depends neither on the other rows nor on their
number as long as the same tile is chosen for it.
"""

from __future__ import annotations

import ml_dtypes
import numpy as np
from spaninfer_kernel_launch import (
    ArraySpec,
    FileCache,
    Gpu,
    Operator,
    Step,
    Variant,
    check_aligned,
    check_dense,
    check_rows,
    gpu_of,
    match,
    new_results,
    view_at,
)

from spaninfer_kernels_cuda.activation import ACTS, Act
from spaninfer_kernels_cuda.gemm.prepared import (
    GENERAL,
    HOPPER,
    TALL,
    WIDE,
    PreparedGemm,
    prepare_tile,
    variant_for,
)
from spaninfer_kernels_cuda.gemm.tall import Tall
from spaninfer_kernels_cuda.gemm.tiles import AnyTile, every_tile
from spaninfer_kernels_cuda.gemm.tuning import (
    MAX_ROWS,
    Shape,
    Tile,
    check,
    choose,
    is_faster,
    takes_many,
)
from spaninfer_kernels_cuda.gemm.wide import Wide, choose_many, every_many

__all__ = [
    "GENERAL",
    "HOPPER",
    "MAX_ROWS",
    "TALL",
    "VARIANTS",
    "WIDE",
    "PreparedGemm",
    "Shape",
    "Tall",
    "Tile",
    "Wide",
    "choose_many",
    "every_many",
    "gemm",
    "is_faster",
    "prepare",
    "takes_many",
    "variant_for",
]

_ALIGNMENT = 16  # bytes of one copy to shared memory
_PAIR_BYTES = 4  # bytes that a thread of wide.cu reads or writes at once


def prepare(
    shape: Shape,
    *,
    dtype: object,
    gpu: Gpu,
    gate: Act | None = None,
    act: Act | None = None,
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
    return prepare_tile(
        shape,
        tile,
        dtype=dtype,
        gpu=gpu,
        gate=gate,
        act=act,
        row_stride=row_stride,
        cache=cache,
    )


def gemm(
    x: object,
    weight: object,
    *,
    bias: object = None,
    gate: Act | None = None,
    act: Act | None = None,
    residual: object = None,
    out: object = None,
    stream: object = None,
) -> object:
    """Return act(x[M K] @ weight[N K]^T + bias[N]), or gated by `gate`, plus residual.

    All are float16 or bfloat16; sums are float32. Without `out`, the result is a new array. Raises
    ShapeError, DTypeError or DeviceError for arguments that do not fit.
    """
    new = _gemm.start((gate, act), (x, weight, bias, residual, out), stream=stream)
    return new[0] if out is None else out


def _prepare_call(options: tuple[Act | None, Act | None], given: dict[str, ArraySpec]) -> Step:
    """Return the GEMM of arrays with these specs; options are gate and activation."""
    (gate, act), x = options, view_at(given["x"])
    views = {name: view_at(given[name]) for name in _OPERANDS if name in given}
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
    product = prepare(shape, dtype=x.dtype, gpu=gpu, gate=gate, act=act, row_stride=row_stride)
    alignment = _PAIR_BYTES if isinstance(product.tile, Wide) else 1
    check_aligned(alignment, **views)
    new = new_results(given, gpu, ("out", (shape.rows, columns), x.dtype, alignment))
    return product.step(gpu, new)


_OPERANDS = ("weight", "bias", "residual")
_gemm = Operator("x weight bias residual out", _prepare_call)


VARIANTS: tuple[Variant, ...] = tuple(
    variant_for(tile, dtype, gate, act)
    for number, tile in enumerate(every_tile())
    for dtype in (np.float16, ml_dtypes.bfloat16)
    for gate, act in (
        (None, ACTS[number % len(ACTS)] if isinstance(tile, Wide) and tile.many else None),
        (ACTS[number % len(ACTS)], None),
    )
)
"""Every tile with both element types, with a gate and without: with one of the activations in turn
then, where tiles are for any number of rows.
"""
