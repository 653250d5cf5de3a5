"""RMS norm and layer norm, with the residual added, and the result quantised, in the same pass.

Rows x[T C], weight[C], bias[C], residual[T C] (read, and replaced by the sum) and out[T C] have one
element type, 16-byte aligned and contiguous; sums are float32. With a residual, the norm is taken
of the sum as it was rounded, which is what the next layer adds to. Instead of elements, out[T C]
may hold 8-bit codes with scales[T], as `quantize` makes them of the norm before it is rounded.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from typing import Literal

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

_HEADERS = ("types.cuh", "math.cuh", "reduce.cuh", "overlap.cuh")


@dataclass(frozen=True, slots=True)
class Form:
    """What is computed: the kind of norm, whether a residual is added first, a bias last.

    With a `code`, the result is quantised.
    """

    kind: Literal["rms", "layer"]
    residual: bool = False
    bias: bool = False
    code: Code | None = None


@dataclass(frozen=True, slots=True)
class Prepared:
    """A norm of one size, compiled and loaded: `launch` passes pointers, and nothing else.

    Pointers are multiples of 16 bytes wherever `channels` elements are.
    """

    rows: int
    channels: int
    workspace_bytes: int
    _call: Call | None

    def launch(
        self,
        x: object,
        weight: object,
        *,
        out: object,
        eps: float,
        residual: object = 0,
        bias: object = 0,
        scales: object = 0,
        weight_offset: float = 0.0,
        stream: object = None,
    ) -> None:
        """Write the norm of x, or of x + residual, to `out`, and the sum to `residual`.

        Where the result is quantised, `out` is for codes and `scales` for their scales.

        Arrays may be given as addresses. Without a stream, the current one of x's framework.
        """
        handle = stream_handle(stream, x)
        pointers = map(pointer_of, (out, scales, residual, x, weight, bias))
        self.start(handle, (*pointers, self.channels, eps, weight_offset))

    def start(self, handle: int, values: tuple[float, ...]) -> None:
        """Launch with the kernel's own arguments on the stream with this handle."""
        if self._call is not None:
            self._call(handle, *values)


def variant_for(form: Form, channels: int, dtype: object) -> Variant:
    """Return the variant for rows of `channels` elements of `dtype` (float32, 16-bit floats)."""
    element = element_of(dtype)
    division = divide(channels, element.itemsize)
    macros: dict[str, str | int | bool] = {
        "T": element.name,
        "THREADS": division.threads,
        "VECTOR": division.vector,
        "PACKS": division.packs,
        "LAYER": form.kind == "layer",
        "RESIDUAL": form.residual,
        "BIAS": form.bias,
    }
    if form.code:
        macros["CODE"] = code_type(form.code).name
    headers = (*_HEADERS, "codes.cuh") if form.code else _HEADERS
    source = Source("spaninfer_kernels_cuda", "norm/kernel.cu", headers)
    return Variant.of("norm_rows", source, macros, element.architectures)


def prepare(
    form: Form,
    *,
    rows: int,
    channels: int,
    dtype: object,
    gpu: Gpu,
    cache: FileCache | None = None,
) -> Prepared:
    """Return the norm of x[rows channels] on `gpu`, compiled, or from `cache` where it is known.

    Raises ShapeError or DTypeError where no variant takes the sizes, CompileError where there is
    no compiler.
    """
    compiled = compile_variant(variant_for(form, channels, dtype), gpu.arch, cache or user_cache())
    grid = launch(rows, divide(channels, element_of(dtype).itemsize))
    call = Call(load(compiled, gpu), grid, "PPPPPP iff") if grid else None
    return Prepared(rows, channels, workspace_bytes=0, _call=call)


def rms_norm(
    x: object,
    weight: object,
    *,
    eps: float,
    residual: object = None,
    plus_one: bool = False,
    out: object = None,
    stream: object = None,
) -> object:
    """Return x[T C] over its root mean square, times weight[C], or times 1 + weight.

    With `residual`, x + residual takes the place of x and is written back to it. Without `out`,
    the result is a new array in the order of the stream, which torch.from_dlpack and
    cupy.from_dlpack take. Without a stream, the current one of x's framework.
    """
    form = Form("rms", residual=residual is not None)
    arrays = {"x": x, "weight": weight, "residual": residual}
    return _run(form, arrays, eps, float(plus_one), (out, None), stream)[0]


def rms_norm_quantized(
    x: object,
    weight: object,
    code: Code,
    *,
    eps: float,
    residual: object = None,
    plus_one: bool = False,
    out: tuple[object, object] | None = None,
    stream: object = None,
) -> tuple[object, object]:
    """Return codes[T C] and scales[T] of what `rms_norm` computes, before it is rounded.

    `out` holds both in this order; the rest is as for `rms_norm`.
    """
    form = Form("rms", residual=residual is not None, code=code)
    arrays = {"x": x, "weight": weight, "residual": residual}
    return _run(form, arrays, eps, float(plus_one), out or (None, None), stream)


def layer_norm(
    x: object,
    weight: object,
    bias: object = None,
    *,
    eps: float,
    residual: object = None,
    out: object = None,
    stream: object = None,
) -> object:
    """Return x[T C] centred and over its standard deviation, times weight[C], plus bias[C].

    Residual, `out` and stream are as for `rms_norm`.
    """
    form = Form("layer", residual=residual is not None, bias=bias is not None)
    arrays = {"x": x, "weight": weight, "bias": bias, "residual": residual}
    return _run(form, arrays, eps, 0.0, (out, None), stream)[0]


_prepared = lru_cache(maxsize=1024)(prepare)


def _run(
    form: Form,
    arrays: dict[str, object],
    eps: float,
    weight_offset: float,
    out: tuple[object, object],
    stream: object,
) -> tuple[object, object]:
    """Check the arguments, prepare or find what is prepared, launch; return result and scales."""
    views = {name: view_of(array) for name, array in arrays.items() if array is not None}
    axes = {"weight": "C", "bias": "C"}
    rows, channels = match(
        **{name: (v, axes.get(name, "T C")) for name, v in views.items()}
    ).values()
    dtype = views["x"].dtype
    vector = divide(channels, dtype.itemsize).vector
    check_dense(dtype, **views)
    gpu = gpu_of(**views)
    check_aligned(vector * dtype.itemsize, **views)
    step = _prepared(form, rows=rows, channels=channels, dtype=dtype, gpu=gpu)
    handle = stream_handle(stream, arrays["x"])
    kind = code_type(form.code).dtype if form.code else dtype
    alignment = vector * kind.itemsize
    result = result_array(out[0], (rows, channels), kind, gpu, handle, alignment=alignment)
    scales: object = 0
    if form.code:
        scales = result_array(out[1], (rows,), np.float32, gpu, handle, name="scales")
    inputs = (views[name].pointer if name in views else 0 for name in _INPUTS)
    places = (pointer_of(result), pointer_of(scales), *inputs)
    step.start(handle, (*places, channels, eps, weight_offset))
    return result, scales


_INPUTS = ("residual", "x", "weight", "bias")


def _forms() -> Iterator[Form]:
    for residual, code in product((False, True), (None, *CODES)):
        yield Form("rms", residual, code=code)
        for bias in (False, True):
            yield Form("layer", residual, bias, code)


VARIANTS: tuple[Variant, ...] = tuple(
    variant_for(form, channels, dtype)
    for form in _forms()
    for channels in (64, 1001, 3584, 8192, 16_384)
    for dtype in (np.float32, np.float16, ml_dtypes.bfloat16)
)
"""Every form and element type, with rows of every division that models need."""
