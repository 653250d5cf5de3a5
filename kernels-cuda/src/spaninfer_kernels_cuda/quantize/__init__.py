"""Dynamic quantisation of activations to 8 bits, with a scale per row or per group of a row.

x[T C] -> codes[T C] (int8, or float8_e4m3fn) and scales[T] float32, such that a code times its
scale is near x: scale = largest size / 127 for int8 and / 448 for fp8, 1 for zeros alone; code = x
/ scale, rounded to nearest, to even in the middle; rows of nothing beyond 1e-36 may come out
smaller. Scales of groups are scales[ceil(C/group) T], as `scaled_gemm` reads them. x is contiguous,
16-byte aligned; where it is gated it holds gate and up side by side, x[T 2C], and act(gate) * up is
quantised before it is rounded.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import NamedTuple

import ml_dtypes
import numpy as np
from spaninfer_kernel_launch import (
    ArraySpec,
    Call,
    FileCache,
    Gpu,
    Int32,
    NamedCalls,
    Operator,
    Pointer,
    ShapeError,
    Signature,
    Source,
    Step,
    Variant,
    check_aligned,
    check_dense,
    compile_variant,
    element_of,
    gpu_of,
    load,
    match,
    new_results,
    pointer_of,
    stream_handle,
    user_cache,
    view_at,
)

from spaninfer_kernels_cuda.activation import ACTS, Act, half_width
from spaninfer_kernels_cuda.codes import CODES, Code, check_group, code_type, scales_shape
from spaninfer_kernels_cuda.rows import divide, launch


class QuantizeArguments(NamedTuple):
    """Addresses, the arguments of quantize_rows."""

    codes: Pointer
    scales: Pointer
    x: Pointer


class QuantizeSizes(NamedTuple):
    """Sizes, the constants of quantize_rows."""

    channels: Int32


QUANTIZE_ROWS = Signature("quantize_rows", QuantizeArguments, QuantizeSizes)
SOURCE = Source(
    "spaninfer_kernels_cuda",
    "quantize/kernel.cu",
    headers=("types.cuh", "overlap.cuh", "reduce.cuh", "codes.cuh", "activate.cuh"),
    own=("coded_row.cuh",),
    kernels=(QUANTIZE_ROWS,),
)


@dataclass(frozen=True, slots=True)
class QuantizeOptions:
    """A request for a variant: the codes, elements that share a scale (None: a row), the gate."""

    code: Code
    group: int | None = None
    gate: Act | None = None


@dataclass(frozen=True, slots=True)
class PreparedQuantize:
    """A quantisation of one size.

    Pointers are multiples of 16 bytes wherever `channels` elements are.
    """

    rows: int
    channels: int
    workspace_bytes: int
    call: Call[QuantizeArguments] | None

    def launch(self, x: object, *, out: tuple[object, object], stream: object = None) -> None:
        """Write codes and scales, in this order, to `out`."""
        codes, scales = map(pointer_of, out)
        self.start(stream_handle(stream, x), QuantizeArguments(codes, scales, pointer_of(x)))

    def start(self, handle: int, arguments: QuantizeArguments) -> None:
        """Launch on the stream with this handle, the default stream included."""
        if self.call is not None:
            self.call(handle, arguments)


def variant_for(options: QuantizeOptions, channels: int, dtype: object) -> Variant:
    """Return the variant for results of `channels` elements of `dtype` (float32, 16-bit floats)."""
    element = element_of(dtype)
    division = divide(channels, element.itemsize)
    check_group(options.group, division)
    if options.gate is not None and options.gate not in ACTS:
        raise ShapeError(f"there is no activation {options.gate!r}; there are {', '.join(ACTS)}")
    macros: dict[str, str | int | bool] = {
        "T": element.name,
        "CODE": code_type(options.code).name,
        "GROUP": options.group or 0,
        "GATED": options.gate is not None,
        "ACT": options.gate or "",
        "THREADS": division.threads,
        "VECTOR": division.vector,
        "PACKS": division.packs,
    }
    return Variant.of("quantize_rows", SOURCE, macros, element.architectures)


def prepare(
    options: QuantizeOptions,
    *,
    rows: int,
    channels: int,
    dtype: object,
    gpu: Gpu,
    cache: FileCache | None = None,
) -> PreparedQuantize:
    """Return the quantisation to codes[rows channels] on `gpu`, compiled or cached.

    Raises ShapeError or DTypeError for unsupported sizes or types.
    """
    variant = variant_for(options, channels, dtype)
    compiled = compile_variant(variant, gpu.arch, cache or user_cache())
    grid = launch(rows, divide(channels, element_of(dtype).itemsize))
    kernel = load(compiled, gpu, QUANTIZE_ROWS)
    call = Call(kernel, grid, QuantizeSizes(channels)) if grid else None
    return PreparedQuantize(rows, channels, workspace_bytes=0, call=call)


def quantize(
    x: object,
    code: Code,
    *,
    group: int | None = None,
    gate: Act | None = None,
    out: tuple[object, object] | None = None,
    stream: object = None,
) -> tuple[object, object]:
    """Return codes[T C] and scales[T] of x[T C]; of act(gate) * up of x[T 2C] with a `gate`.

    x is float32, float16 or bfloat16, codes are int8 or fp8 (e4m3), scales float32. With a `group`
    (32, 64 or 128), scales[ceil(C/group) T] of groups. Without `out`, the results are new arrays;
    cupy does not read fp8. Raises ShapeError, DTypeError or DeviceError for arguments that do not
    fit.
    """
    new = _quantize.start((code, group, gate), (x, *(out or (None, None))), stream=stream)
    return out or new


def _prepare_call(asked: tuple[Code, int | None, Act | None], given: dict[str, ArraySpec]) -> Step:
    """Return the quantisation of arrays with these specs; `asked` are the options' fields."""
    options = QuantizeOptions(*asked)
    x = view_at(given["x"])
    rows, width = match(x=(x, "T C")).values()
    channels = half_width(width) if options.gate else width
    gpu, dtype = gpu_of(x=x), x.dtype
    vector = divide(channels, dtype.itemsize).vector
    check_dense(dtype, x=x)
    check_aligned(vector * dtype.itemsize, x=x)
    quantisation = prepare(options, rows=rows, channels=channels, dtype=dtype, gpu=gpu)
    new = new_results(
        given,
        gpu,
        ("codes", (rows, channels), code_type(options.code).dtype, vector),
        ("scales", scales_shape(rows, channels, options.group), np.float32, 1),
    )
    return Step(gpu, NamedCalls.of(quantisation.call), new)


_quantize = Operator("x codes scales", _prepare_call)

VARIANTS: tuple[Variant, ...] = tuple(
    variant_for(QuantizeOptions(code, group, gate), channels, dtype)
    for code in CODES
    for group, gate in product((None, 128), (None, ACTS[0]))
    for channels in (96, 3584, 8192, 16_384)
    for dtype in (np.float32, np.float16, ml_dtypes.bfloat16)
)
"""Every code and element type, scale and gate, with rows of every division that models need."""
