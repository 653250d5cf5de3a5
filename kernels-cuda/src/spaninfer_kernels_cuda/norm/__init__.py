"""RMS norm and layer norm, with the residual added in the same pass.

Rows x[T C], weight[C], bias[C], residual[T C] (read, and replaced by the sum) and out[T C] have one
element type, 16-byte aligned and contiguous; sums are float32. With a residual, the norm is taken
of the sum as it was rounded, which is what the next layer adds to.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import ml_dtypes
import numpy as np
from spaninfer_kernel_launch import (
    Array,
    Call,
    FileCache,
    Gpu,
    ShapeError,
    Source,
    Variant,
    check_dense,
    compile_variant,
    element_of,
    gpu_of,
    load,
    match,
    pointer_of,
    stream_handle,
    user_cache,
    view_of,
)

from spaninfer_kernels_cuda.norm.tuning import divide, launch

SOURCE = Source(
    "spaninfer_kernels_cuda", "norm/kernel.cu", headers=("types.cuh", "math.cuh", "reduce.cuh")
)


@dataclass(frozen=True, slots=True)
class Form:
    """What is computed: the kind of norm, whether a residual is added first, a bias last."""

    kind: Literal["rms", "layer"]
    residual: bool = False
    bias: bool = False


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
        weight_offset: float = 0.0,
        stream: object = None,
    ) -> None:
        """Write the norm of x, or of x + residual, to `out`, and the sum to `residual`.

        Arrays may be given as addresses. Without a stream, the current one of x's framework.
        """
        handle = stream_handle(stream, x)
        pointers = map(pointer_of, (out, residual, x, weight, bias))
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
    return Variant.of("norm_rows", SOURCE, macros, element.architectures)


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
    call = Call(load(compiled, gpu), grid, "PPPPP iff") if grid else None
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
    return _run(form, x, weight, None, residual, eps, float(plus_one), out, stream)


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
    return _run(form, x, weight, bias, residual, eps, 0.0, out, stream)


_prepared = lru_cache(maxsize=1024)(prepare)


def _run(
    form: Form,
    x: object,
    weight: object,
    bias: object,
    residual: object,
    eps: float,
    weight_offset: float,
    out: object,
    stream: object,
) -> object:
    """Check the arguments, prepare or find what is prepared, launch."""
    given = {"x": x, "weight": weight, "bias": bias, "residual": residual, "out": out}
    views = {name: view_of(array) for name, array in given.items() if array is not None}
    axes = {"weight": "C", "bias": "C"}
    rows, channels = match(
        **{name: (v, axes.get(name, "T C")) for name, v in views.items()}
    ).values()
    dtype = views["x"].dtype
    check_dense(dtype, **views)
    step = _prepared(form, rows=rows, channels=channels, dtype=dtype, gpu=gpu_of(**views))
    handle = stream_handle(stream, x)
    if out is None:
        out = Array((rows, channels), dtype, gpu_of(**views), handle)
    pointers = {name: view.pointer for name, view in views.items()} | {"out": pointer_of(out)}
    vector_bytes = divide(channels, dtype.itemsize).vector * dtype.itemsize
    for name, pointer in pointers.items():
        if pointer % vector_bytes:
            raise ShapeError(f"{name} must begin at a multiple of {vector_bytes} bytes")
    order = ("out", "residual", "x", "weight", "bias")
    places = (pointers.get(name, 0) for name in order)
    step.start(handle, (*places, channels, eps, weight_offset))
    return out


VARIANTS: tuple[Variant, ...] = (
    variant_for(Form("rms"), 64, np.float32),
    variant_for(Form("rms"), 128, np.float16),
    variant_for(Form("rms", residual=True), 896, ml_dtypes.bfloat16),
    variant_for(Form("rms", residual=True), 4096, ml_dtypes.bfloat16),
    variant_for(Form("rms"), 16_384, np.float16),
    variant_for(Form("rms", residual=True), 32_768, np.float16),
    variant_for(Form("rms", residual=True), 16_384, np.float32),
    variant_for(Form("layer", bias=True), 1024, np.float16),
    variant_for(Form("layer", residual=True, bias=True), 8192, ml_dtypes.bfloat16),
    variant_for(Form("layer"), 1001, ml_dtypes.bfloat16),
    variant_for(Form("layer", residual=True), 32_768, ml_dtypes.bfloat16),
)
"""A cover: every element type, form and extreme of the division occurs."""
