"""RMS norm and layer norm, with the residual added, and the result quantised, in the same pass.

Rows x[T C], weight[C], bias[C], residual[T C] (read, and replaced by the sum) and out[T C] have one
element type, 16-byte aligned and contiguous; sums are float32. With a residual, the norm is taken
of the sum as it was rounded, which is what the next layer adds to. Instead of elements, out[T C]
may hold 8-bit codes with scales[T], or scales[ceil(C/group) T] of groups, as `quantize` makes them
of the norm before it is rounded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache as once
from itertools import product
from typing import Any, Literal, NamedTuple

import ml_dtypes
import numpy as np
from spaninfer_kernel_launch import (
    ArraySpec,
    Call,
    FileCache,
    Float32,
    Gpu,
    Int32,
    Pointer,
    Result,
    Signature,
    Source,
    Variant,
    allocator,
    check_aligned,
    check_dense,
    check_results,
    compile_variant,
    element_of,
    gpu_of,
    inspect_arrays,
    load,
    match,
    pointer_of,
    prepared_once,
    renamed,
    stream_handle,
    user_cache,
    view_at,
)

from spaninfer_kernels_cuda.codes import CODES, Code, check_group, code_type, scales_shape
from spaninfer_kernels_cuda.rows import divide, launch


class NormArguments(NamedTuple):
    """Arguments of norm_rows; addresses of arrays that its variant does not have are 0."""

    out: Pointer
    scales: Pointer
    rounded: Pointer
    residual: Pointer
    x: Pointer
    weight: Pointer
    bias: Pointer
    channels: Int32
    eps: Float32
    weight_offset: Float32


NORM_ROWS = Signature("norm_rows", NormArguments)
_HEADERS = ("types.cuh", "math.cuh", "reduce.cuh", "overlap.cuh")
_SOURCE = Source("spaninfer_kernels_cuda", "norm/kernel.cu", _HEADERS, kernels=(NORM_ROWS,))
_CODING = replace(_SOURCE, headers=(*_HEADERS, "codes.cuh"), own=("coded_row.cuh",))


@dataclass(frozen=True, slots=True)
class NormOptions:
    """A request for a variant: the kind of norm, a residual added first, a bias last.

    With a `code`, the result is quantised, with a scale per row or per `group` of a row.
    """

    kind: Literal["rms", "layer"]
    residual: bool = False
    bias: bool = False
    code: Code | None = None
    group: int | None = None


@dataclass(frozen=True, slots=True)
class PreparedNorm:
    """A norm of one size.

    Pointers are multiples of 16 bytes wherever `channels` elements are.
    """

    rows: int
    channels: int
    workspace_bytes: int
    _call: Call[NormArguments] | None

    def launch(
        self,
        x: object,
        weight: object,
        *,
        out: object,
        eps: float,
        residual: object = None,
        bias: object = None,
        scales: object = None,
        rounded: object = None,
        weight_offset: float = 0.0,
        stream: object = None,
    ) -> None:
        """Write the norm of x, or of x + residual, to `out`, and the sum to `residual`.

        Where the result is quantised, `out` is for codes, `scales` for their scales, and `rounded`
        for the norm without codes, if it is wanted too.
        """
        handle = stream_handle(stream, x)
        arguments = NormArguments(
            out=pointer_of(out),
            scales=pointer_of(scales),
            rounded=pointer_of(rounded),
            residual=pointer_of(residual),
            x=pointer_of(x),
            weight=pointer_of(weight),
            bias=pointer_of(bias),
            channels=self.channels,
            eps=eps,
            weight_offset=weight_offset,
        )
        self.start(handle, arguments)

    def start(self, handle: int, arguments: NormArguments) -> None:
        """Launch on the stream with this handle, the default stream included."""
        if self._call is not None:
            self._call(handle, arguments)


def variant_for(options: NormOptions, channels: int, dtype: object) -> Variant:
    """Return the variant for rows of `channels` elements of `dtype` (float32, 16-bit floats)."""
    element = element_of(dtype)
    division = divide(channels, element.itemsize)
    macros: dict[str, str | int | bool] = {
        "T": element.name,
        "THREADS": division.threads,
        "VECTOR": division.vector,
        "PACKS": division.packs,
        "LAYER": options.kind == "layer",
        "RESIDUAL": options.residual,
        "BIAS": options.bias,
    }
    if options.code:
        check_group(options.group, division)
        macros |= {"CODE": code_type(options.code).name, "GROUP": options.group or 0}
    source = _CODING if options.code else _SOURCE
    return Variant.of("norm_rows", source, macros, element.architectures)


def prepare(
    options: NormOptions,
    *,
    rows: int,
    channels: int,
    dtype: object,
    gpu: Gpu,
    cache: FileCache | None = None,
) -> PreparedNorm:
    """Return the norm of x[rows channels] on `gpu`, compiled or cached.

    Raises ShapeError or DTypeError where no variant takes the sizes, CompileError where there is no
    compiler.
    """
    compiled = compile_variant(
        variant_for(options, channels, dtype), gpu.arch, cache or user_cache()
    )
    grid = launch(rows, divide(channels, element_of(dtype).itemsize))
    call = Call(load(compiled, gpu, NORM_ROWS), grid) if grid else None
    return PreparedNorm(rows, channels, workspace_bytes=0, _call=call)


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

    float32, float16 or bfloat16. With `residual`, x + residual takes the place of x and is written
    to `residual`. Without `out`, the result is a new array. Raises ShapeError, DTypeError or
    DeviceError for arguments that do not fit.
    """
    arrays = _Arrays(x, weight, None, residual, out)
    return _run(_RMS, arrays, (eps, float(plus_one)), stream)[0]


def rms_norm_quantized(
    x: object,
    weight: object,
    code: Code,
    *,
    eps: float,
    group: int | None = None,
    residual: object = None,
    plus_one: bool = False,
    out: tuple[object, object] | None = None,
    stream: object = None,
) -> tuple[object, object]:
    """Return codes[T C] and scales[T]: `rms_norm`, quantised before it is rounded.

    Codes are int8 or fp8 (e4m3), scales float32; with a `group`, scales[ceil(C/group) T]. `out` is
    the pair of both. The rest is as for `rms_norm`.
    """
    arrays = _Arrays(x, weight, None, residual, *(out or (None, None)))
    return _run(_quantized(code, group), arrays, (eps, float(plus_one)), stream)


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

    Types, residual, `out`, stream and errors are those of `rms_norm`.
    """
    arrays = _Arrays(x, weight, bias, residual, out)
    return _run(_LAYER, arrays, (eps, 0.0), stream)[0]


class _Arrays(NamedTuple):
    """The arrays of a norm, None for those it does not have; then their specs."""

    x: Any
    weight: Any
    bias: Any = None
    residual: Any = None
    out: Any = None
    scales: Any = None


# Options are found by identity: to make, hash and compare them takes 3 of a call's 12 us.
_RMS, _LAYER = NormOptions("rms"), NormOptions("layer")


@once
def _quantized(code: Code, group: int | None) -> NormOptions:
    return NormOptions("rms", code=code, group=group)


def _run(
    asked: NormOptions, arrays: _Arrays, numbers: tuple[float, float], stream: object
) -> tuple[object, object]:
    """Launch the norm prepared for the arrays' specs; return result and scales.

    The numbers are the epsilon and the offset of weights.
    """
    (x, weight, bias, residual, to, scales_at), specs = inspect_arrays(*arrays)
    step, allocate = _checked(asked, specs)
    handle = stream_handle(stream, arrays.x)
    out, scales = arrays.out, arrays.scales
    if out is None:
        out, *more = allocate(handle)
        to = pointer_of(out)
        for scales in more:
            scales_at = pointer_of(scales)
    rounded, (eps, offset) = 0, numbers
    read = residual, x, weight, bias, step.channels, eps, offset
    step.start(handle, NormArguments._make((to, scales_at, rounded, *read)))
    return out, scales


@prepared_once(1024)
def _checked(
    asked: NormOptions, each_spec: tuple[ArraySpec, ...]
) -> tuple[PreparedNorm, Callable[[int], tuple[Any, ...]]]:
    """Return the norm for arrays with these specs, and the allocator of its results."""
    specs = _Arrays(*each_spec)
    views = {name: view_at(spec) for name in _INPUTS if (spec := getattr(specs, name))}
    axes = {"weight": "C", "bias": "C"}
    rows, channels = match(
        **{name: (view, axes.get(name, "T C")) for name, view in views.items()}
    ).values()
    dtype = views["x"].dtype
    vector = divide(channels, dtype.itemsize).vector
    check_dense(dtype, **views)
    gpu = gpu_of(**views)
    check_aligned(vector * dtype.itemsize, **views)
    options = replace(asked, residual="residual" in views, bias="bias" in views)
    step = prepare(options, rows=rows, channels=channels, dtype=dtype, gpu=gpu)
    element = code_type(asked.code).dtype if asked.code else dtype
    results: tuple[Result, ...] = (
        ("out", (rows, channels), element, vector * element.itemsize),
        ("scales", scales_shape(rows, channels, asked.group), np.float32, 1),
    )
    if not asked.code:
        results = results[:1]
    check_results((specs.out, specs.scales)[: len(results)], gpu, *results)
    return step, allocator(specs.x, gpu, *results)


_INPUTS = ("x", "weight", "bias", "residual")


def _every_options() -> Iterator[NormOptions]:
    for residual, code in product((False, True), (None, *CODES)):
        yield NormOptions("rms", residual, code=code)
        for bias in (False, True):
            yield NormOptions("layer", residual, bias, code)


def _every_grouped() -> Iterator[NormOptions]:
    for residual, code in product((False, True), CODES):
        yield NormOptions("rms", residual, code=code, group=128)


VARIANTS: tuple[Variant, ...] = tuple(
    variant_for(options, channels, dtype)
    for options in _every_options()
    for channels in (64, 1001, 3584, 8192, 16_384)
    for dtype in (np.float32, np.float16, ml_dtypes.bfloat16)
) + tuple(
    variant_for(options, channels, ml_dtypes.bfloat16)
    for options in _every_grouped()
    for channels in (64, 3584, 8192, 16_384)
)
"""Every combination of options and element types, with every row division that models need."""

__getattr__ = renamed(__name__, Form=("NormOptions", NormOptions))
