"""GEMMs of 8-bit codes with scales: out = x @ weight^T, bias, activation and residual fused.

x[M K] and weight[N K] hold codes of one type, float8_e4m3fn or int8; out[M N], bias and residual
one 16-bit float type. Scales are float32. Of `rows`, the usual ones: x_scales[M] and
weight_scales[N], a scale for each token and for each output channel. Of `blocks`, as DeepSeek-V3
has them: x_scales[B M], a scale for 128 codes of a token, and weight_scales[ceil(N/128) B], one for
128 x 128 codes of the weight, B = ceil(K/128); blocks of a gated weight begin anew with its up
rows. K is a multiple of 16; arrays are contiguous, and x, weight and out begin at multiples of 16
bytes, the others at multiples of their rows' pairs.

Sums of int8 products are exact in int32; those of fp8 have the 14 bits of the tensor cores'
accumulators, with scales of blocks float32 from block to block. Results are rounded once, after
bias[N], activation and residual. With an activation, the weight's rows are those of the gate above
those of up: out[M N/2] = act(gate) * up. The same arguments give the same bits.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
from spaninfer_kernel_launch import (
    ArraySpec,
    DTypeError,
    FileCache,
    Gpu,
    Operator,
    Step,
    Variant,
    check_aligned,
    check_dense,
    gpu_of,
    match,
    new_results,
    numpy_dtype,
    view_at,
)

from spaninfer_kernels_cuda.activation import ACTS, Act
from spaninfer_kernels_cuda.codes import CODES, Code, code_type
from spaninfer_kernels_cuda.gemm.prepared import (
    BLOCK,
    Codes,
    PreparedGemm,
    prepare_tile,
    variant_for,
)
from spaninfer_kernels_cuda.gemm.tuning import Shape, Tile
from spaninfer_kernels_cuda.gemm.wide import Wide
from spaninfer_kernels_cuda.scaled_gemm.tuning import (
    blocks_of_rows,
    blocks_of_sum,
    check,
    choose,
    every_tile,
    invariant_tile,
    rows_of_tiles,
)

__all__ = [
    "BLOCK",
    "VARIANTS",
    "Code",
    "Codes",
    "PreparedGemm",
    "Shape",
    "Tile",
    "Wide",
    "invariant_tile",
    "prepare",
    "rows_of_tiles",
    "scaled_gemm",
    "variant_for",
]

_ALIGNMENT = 16  # bytes of one copy to shared memory, and of the widest store
_PAIR_BYTES = 8  # of two scales, the widest other load


def prepare(
    shape: Shape,
    codes: Codes,
    *,
    dtype: object,
    gpu: Gpu,
    gate: Act | None = None,
    tile: Tile | Wide | None = None,
    cache: FileCache | None = None,
) -> PreparedGemm:
    """Return the GEMM of `shape` with results of `dtype` on `gpu`, compiled or cached.

    `tile` is chosen for the shape unless given. Raises ShapeError or DTypeError for unsupported
    sizes or types, CompileError where there is no compiler.
    """
    gated = gate is not None
    check(shape, codes, gated=gated)
    tile = tile or choose(shape, codes, gpu.arch, gpu.shared_bytes, gated=gated)
    return prepare_tile(shape, tile, dtype=dtype, gpu=gpu, gate=gate, codes=codes, cache=cache)


def scaled_gemm(
    x: object,
    weight: object,
    *,
    x_scales: object,
    weight_scales: object,
    bias: object = None,
    gate: Act | None = None,
    residual: object = None,
    dtype: object = ml_dtypes.bfloat16,
    out: object = None,
    stream: object = None,
) -> object:
    """Return x[M K] @ weight[N K]^T of scaled codes, plus bias[N], gated by `gate`, plus residual.

    Scales of two axes are those of blocks. Without `out`, the result is a new array of `dtype`.
    Raises ShapeError, DTypeError or DeviceError for arguments that do not fit.
    """
    arrays = x, weight, x_scales, weight_scales, bias, residual, out
    new = _scaled_gemm.start((gate, dtype), arrays, stream=stream)
    return new[0] if out is None else out


def _prepare_call(options: tuple[Act | None, Any], given: dict[str, ArraySpec]) -> Step:
    """Return the GEMM of arrays with these specs; options are gate and element type."""
    gate, dtype = options[0], numpy_dtype(options[1])
    views = {name: view_at(spec) for name, spec in given.items() if name != "out"}
    sizes = match(x=(views["x"], "M K"), weight=(views["weight"], "N K"))
    shape = Shape(sizes["M"], sizes["N"], sizes["K"])
    codes = Codes(
        _code_of(views["x"].dtype), "blocks" if len(views["x_scales"].shape) == 2 else "rows"
    )
    check(shape, codes, gated=gate is not None)
    columns = shape.outputs // 2 if gate else shape.outputs
    axes = _scale_axes(shape, codes, gated=gate is not None)
    axes |= {"bias": f"{shape.outputs}", "residual": f"{shape.rows} {columns}"}
    match(**{name: (views[name], axes[name]) for name in axes if name in views})
    check_dense(views["x"].dtype, x=views["x"], weight=views["weight"])
    check_dense(np.dtype(np.float32), **{name: views[name] for name in _SCALES})
    check_dense(dtype, **{name: views[name] for name in ("bias", "residual") if name in views})
    check_aligned(_ALIGNMENT, x=views["x"], weight=views["weight"])
    check_aligned(_PAIR_BYTES, **views)
    gpu = gpu_of(**views)
    product = prepare(shape, codes, dtype=dtype, gpu=gpu, gate=gate)
    new = new_results(given, gpu, ("out", (shape.rows, columns), dtype, _ALIGNMENT))
    return product.step(gpu, new)


_scaled_gemm = Operator("x weight x_scales weight_scales bias residual out", _prepare_call)
_SCALES = ("x_scales", "weight_scales")


def _code_of(dtype: np.dtype[Any]) -> Any:
    """Return the name of the codes of this type. Raises DTypeError for others."""
    for code in CODES:
        if code_type(code).dtype == dtype:
            return code
    allowed = ", ".join(code_type(code).dtype.name for code in CODES)
    raise DTypeError(f"x holds {dtype}, but codes are {allowed}")


def _scale_axes(shape: Shape, codes: Codes, *, gated: bool) -> dict[str, str]:
    """Return the axes of the scales."""
    if codes.scales == "rows":
        return {"x_scales": f"{shape.rows}", "weight_scales": f"{shape.outputs}"}
    blocks = blocks_of_sum(shape)
    return {
        "x_scales": f"{blocks} {shape.rows}",
        "weight_scales": f"{blocks_of_rows(shape, gated=gated)} {blocks}",
    }


VARIANTS: tuple[Variant, ...] = tuple(
    variant_for(tile, dtype, gate, codes=codes)
    for codes in (Codes("fp8"), Codes("int8"), Codes("fp8", "blocks"))
    for number, tile in enumerate(every_tile(codes))
    for dtype in (np.float16, ml_dtypes.bfloat16)
    for gate in (None, ACTS[number % len(ACTS)])
)
"""Every tile with all codes and scales, without a gate and with one of them in turn."""
