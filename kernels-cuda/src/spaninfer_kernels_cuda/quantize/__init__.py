"""Rows of activations in 8 bits, with one scale per row.

x[T C] -> codes[T C] (int8, or float8_e4m3fn) and scales[T] float32, such that a code times its
row's scale is near x: scale = largest size / 127 for int8 and / 448 for fp8, 1 for rows of zeros;
code = x / scale, rounded to nearest, to even in the middle; rows of nothing beyond 1e-36 may come
out smaller. x is contiguous, 16-byte aligned.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import ml_dtypes
import numpy as np
from spaninfer_kernel_launch import (
    Call,
    FileCache,
    Gpu,
    Source,
    Variant,
    check_aligned,
    check_dense,
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

from spaninfer_kernels_cuda.codes import CODES, Code, code_type
from spaninfer_kernels_cuda.rows import divide, launch

SOURCE = Source(
    "spaninfer_kernels_cuda",
    "quantize/kernel.cu",
    headers=("types.cuh", "overlap.cuh", "reduce.cuh", "codes.cuh"),
)


@dataclass(frozen=True, slots=True)
class Prepared:
    """A quantisation of one size, compiled and loaded: `launch` passes pointers, nothing else.

    Pointers are multiples of 16 bytes wherever `channels` elements are.
    """

    rows: int
    channels: int
    workspace_bytes: int
    _call: Call | None

    def launch(self, x: object, *, out: tuple[object, object], stream: object = None) -> None:
        """Write codes and scales, in this order, to `out`.

        Arrays may be given as addresses. Without a stream, the current one of x's framework.
        """
        self.start(stream_handle(stream, x), *map(pointer_of, (*out, x)))

    def start(self, handle: int, codes: int, scales: int, x: int) -> None:
        """Launch with addresses on the stream with this handle, whichever it is."""
        if self._call is not None:
            self._call(handle, codes, scales, x)


def variant_for(code: Code, channels: int, dtype: object) -> Variant:
    """Return the variant for rows of `channels` elements of `dtype` (float32, 16-bit floats)."""
    element = element_of(dtype)
    division = divide(channels, element.itemsize)
    macros: dict[str, str | int | bool] = {
        "T": element.name,
        "CODE": code_type(code).name,
        "THREADS": division.threads,
        "VECTOR": division.vector,
        "PACKS": division.packs,
    }
    return Variant.of("quantize_rows", SOURCE, macros, element.architectures)


def prepare(
    code: Code,
    *,
    rows: int,
    channels: int,
    dtype: object,
    gpu: Gpu,
    cache: FileCache | None = None,
) -> Prepared:
    """Return the quantisation of x[rows channels] on `gpu`, compiled or cached.

    Raises ShapeError or DTypeError for what no variant takes.
    """
    compiled = compile_variant(variant_for(code, channels, dtype), gpu.arch, cache or user_cache())
    grid = launch(rows, divide(channels, element_of(dtype).itemsize))
    call = Call(load(compiled, gpu), grid, "PPP i", always=(channels,)) if grid else None
    return Prepared(rows, channels, workspace_bytes=0, _call=call)


_prepared = lru_cache(maxsize=1024)(prepare)


def quantize(
    x: object,
    code: Code,
    *,
    out: tuple[object, object] | None = None,
    stream: object = None,
) -> tuple[object, object]:
    """Return codes[T C] and scales[T] of x[T C].

    Without `out`, the results are new arrays in the order of the stream, which torch.from_dlpack
    takes (cupy.from_dlpack has no fp8). Without a stream, the current one of x's framework.
    """
    given = view_of(x)
    rows, channels = match(x=(given, "T C")).values()
    gpu, dtype = gpu_of(x=given), given.dtype
    vector = divide(channels, dtype.itemsize).vector
    check_dense(dtype, x=given)
    check_aligned(vector * dtype.itemsize, x=given)
    step = _prepared(code, rows=rows, channels=channels, dtype=dtype, gpu=gpu)
    handle = stream_handle(stream, x)
    kind = code_type(code).dtype
    codes, scales = out or (None, None)
    codes = result_array(
        *(codes, (rows, channels), kind, gpu, handle), name="codes", alignment=vector
    )
    scales = result_array(scales, (rows,), np.float32, gpu, handle, name="scales")
    step.start(handle, pointer_of(codes), pointer_of(scales), given.pointer)
    return codes, scales


VARIANTS: tuple[Variant, ...] = tuple(
    variant_for(code, channels, dtype)
    for code in CODES
    for channels in (96, 1001, 3584, 8192, 16_384)
    for dtype in (np.float32, np.float16, ml_dtypes.bfloat16)
)
"""Every code and element type, with rows of every division that models need."""
