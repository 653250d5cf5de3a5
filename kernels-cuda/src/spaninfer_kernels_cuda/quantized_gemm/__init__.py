"""GEMM with a quantised weight: out = x @ weight^T with bias, activation and residual fused.

x[M K] and out[M N] hold one 16-bit float type, the weight codes of 4 or 8 bits (`QuantizedFormat`),
packed into the order of the kernels (`pack`, on the device `prepare_pack`). K is a multiple of 8;
rows of x are strided, and begin at multiples of 16 bytes. Accumulation is float32, rounded once,
after bias[N], activation and residual. With an activation, the weight was packed as `gated`, its
rows those of the gate above those of up: out[M N/2] = act(gate) * up.

A weight of 4 bits may also be packed for x in e4m3 with a scale per token, x_scales[M] of float32;
then K is a multiple of 16. Codes of the weight become e4m3 exactly. Products of a group of columns
are summed with at least the 14 bits of FP8's accumulators, groups in float32.

Where `Tile.fold`, codes less their zero points are multiplied, exactly, and sums of a group scaled;
else weights are rounded to x's type first. The same arguments give the same bits.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
from spaninfer_kernel_launch import (
    ArraySpec,
    Operator,
    ShapeError,
    Step,
    View,
    check_aligned,
    check_dense,
    check_rows,
    gpu_of,
    match,
    new_results,
    numpy_dtype,
    view_at,
)

from spaninfer_kernels_cuda.activation import Act
from spaninfer_kernels_cuda.gemm.tuning import Shape
from spaninfer_kernels_cuda.quantized_gemm.codes import (
    DEQUANTIZING,
    PACKING,
    PreparedDequantize,
    PreparedPack,
    code_macros,
    prepare_dequantize,
    prepare_pack,
)
from spaninfer_kernels_cuda.quantized_gemm.format import (
    BLOCK_ROWS,
    CHUNK,
    PackedWeight,
    QuantizedFormat,
    Shift,
    pack,
    row_order,
)
from spaninfer_kernels_cuda.quantized_gemm.kernels import PackArguments
from spaninfer_kernels_cuda.quantized_gemm.prepared import (
    GENERAL,
    HOPPER,
    PreparedQuantizedGemm,
    prepare,
    variant_for,
)
from spaninfer_kernels_cuda.quantized_gemm.tiles import Tile
from spaninfer_kernels_cuda.quantized_gemm.tuning import (
    invariant_tile,
    is_faster,
    rows_of_tiles,
)
from spaninfer_kernels_cuda.quantized_gemm.variants import VARIANTS

__all__ = [
    "BLOCK_ROWS",
    "CHUNK",
    "DEQUANTIZING",
    "GENERAL",
    "HOPPER",
    "PACKING",
    "VARIANTS",
    "PackArguments",
    "PackedWeight",
    "PreparedDequantize",
    "PreparedPack",
    "PreparedQuantizedGemm",
    "QuantizedFormat",
    "Shape",
    "Shift",
    "Tile",
    "code_macros",
    "invariant_tile",
    "is_faster",
    "multiply",
    "pack",
    "prepare",
    "prepare_dequantize",
    "prepare_pack",
    "row_order",
    "rows_of_tiles",
    "variant_for",
]

_ALIGNMENT = 16  # bytes of a copy to shared memory


def multiply(
    x: object,
    weight: PackedWeight,
    *,
    x_scales: object = None,
    bias: object = None,
    gate: Act | None = None,
    residual: object = None,
    dtype: object = ml_dtypes.bfloat16,
    out: object = None,
    stream: object = None,
) -> object:
    """Return x[M K] @ weight[N K]^T, plus bias[N], gated by `gate`, plus residual.

    All but the weight are float16 or bfloat16; where it was packed for x in e4m3, x_scales[M] are
    float32, and the others of `dtype`. Without `out`, the result is a new array. Raises ShapeError,
    DTypeError or DeviceError for arguments that do not fit.
    """
    options = gate, weight.format, weight.outputs, weight.inner, weight.gated, dtype
    arrays = x, weight.records, weight.factors, x_scales, bias, residual, out
    new = _quantized_gemm.start(options, arrays, stream=stream)
    return new[0] if out is None else out


def _prepare_call(
    options: tuple[Act | None, QuantizedFormat, int, int, bool, Any], given: dict[str, ArraySpec]
) -> Step:
    """Return the GEMM of arrays with these specs.

    Options are the gate, the weight's fields, and the type of results for x in codes.
    """
    gate, format, outputs, inner, gated, dtype_for_codes = options
    if gated != (gate is not None):
        raise ShapeError(f"the weight was packed with gated={gated}, and gate is {gate!r}")
    x = view_at(given["x"])
    rows = match(x=(x, f"M {inner}"))["M"]
    columns = outputs // 2 if gated else outputs
    block, chunk, num_bytes = format.records(outputs, inner)
    packed = {name: view_at(given[name]) for name in ("records", "factors")}
    match(records=(packed["records"], f"{block} {chunk} {num_bytes}"))
    match(factors=(packed["factors"], f"{block * BLOCK_ROWS}"))
    views = {name: view_at(given[name]) for name in ("bias", "residual") if name in given}
    axes = {"bias": f"{outputs}", "residual": f"{rows} {columns}"}
    match(**{name: (views[name], axes[name]) for name in views})
    dtype = x.dtype
    if format.activations == "e4m3":
        dtype, packed["x_scales"] = numpy_dtype(dtype_for_codes), _scales_of(given)
        match(x_scales=(packed["x_scales"], f"{rows}"))
        check_dense(np.float32, x_scales=packed["x_scales"])
    check_rows(_E4M3 if format.activations == "e4m3" else dtype, _ALIGNMENT, x=x)
    check_dense(dtype, **views)
    check_dense(np.uint8, records=packed["records"])
    check_dense(np.float32, factors=packed["factors"])
    check_aligned(_ALIGNMENT, records=packed["records"])
    gpu = gpu_of(x=x, **packed, **views)
    row_stride = x.strides[0] if rows > 1 else inner
    shape = Shape(rows, outputs, inner)
    product = prepare(shape, format, dtype=dtype, gpu=gpu, gate=gate, row_stride=row_stride)
    return product.step(gpu, new_results(given, gpu, ("out", (rows, columns), dtype, 1)))


def _scales_of(given: dict[str, ArraySpec]) -> View:
    """Return the scales of x in codes. Raises ShapeError where they are not given."""
    if "x_scales" not in given:
        raise ShapeError("the weight is packed for x in e4m3, which has x_scales; none were given")
    return view_at(given["x_scales"])


_E4M3 = np.dtype(ml_dtypes.float8_e4m3fn)
_quantized_gemm = Operator("x records factors x_scales bias residual out", _prepare_call)
