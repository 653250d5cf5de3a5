"""RMS norm and layer norm, with the residual added, and the result quantised, in the same pass.

Rows x[T C], weight[C], bias[C], residual[T C] (read, and replaced by the sum) and out[T C] have one
element type, 16-byte aligned and contiguous; sums are float32. With a residual, the norm is taken
of the sum as it was rounded, which is what the next layer adds to. Instead of elements, out[T C]
may hold 8-bit codes with scales[T], or scales[ceil(C/group) T] of groups, as `quantize` makes them
of the norm before it is rounded.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from typing import Literal, NamedTuple, TypeAlias

import ml_dtypes
import numpy as np
from spaninfer_kernel_launch import (
    ArraySpec,
    Call,
    FileCache,
    Float32,
    Gpu,
    Int32,
    NamedCalls,
    Operator,
    Pointer,
    Result,
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
    renamed,
    stream_handle,
    user_cache,
    view_at,
)

from spaninfer_kernels_cuda.codes import CODES, Code, check_group, code_type, scales_shape
from spaninfer_kernels_cuda.rows import MANY_ROWS, Division, divide, divide_for, launch

ROWS_OF_DIVISIONS = (1, MANY_ROWS)
"""Numbers of rows that have both divisions of a row among threads, where it becomes codes."""


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
    call: Call[NormArguments] | None

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
        if self.call is not None:
            self.call(handle, arguments)


def variant_for(options: NormOptions, channels: int, dtype: object, rows: int = 1) -> Variant:
    """Return the variant for rows of `channels` elements of `dtype` (float32, 16-bit floats)."""
    element = element_of(dtype)
    division = _divide(options, rows, channels, element.itemsize)
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
    batch_invariant: bool = False,
) -> PreparedNorm:
    """Return the norm of x[rows channels] on `gpu`, compiled or cached.

    With `batch_invariant` the bits of a row do not depend on `rows`, which else choose the order in
    which rows in codes are added up.

    Raises ShapeError or DTypeError where no variant takes the sizes, CompileError where there is no
    compiler.
    """
    order = 1 if batch_invariant else rows
    variant = variant_for(options, channels, dtype, order)
    compiled = compile_variant(variant, gpu.arch, cache or user_cache())
    grid = launch(rows, _divide(options, order, channels, element_of(dtype).itemsize))
    call = Call(load(compiled, gpu, NORM_ROWS), grid) if grid else None
    return PreparedNorm(rows, channels, workspace_bytes=0, call=call)


def _divide(options: NormOptions, rows: int, channels: int, itemsize: int) -> Division:
    """Return the division of each row: floats are at the rate of memory with that of few rows."""
    return divide_for(rows if options.code else 1, channels, itemsize)


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
    arrays = x, weight, None, residual, out, None
    new = _norm.start(("rms", None, None), arrays, (eps, plus_one), stream)
    return new[0] if out is None else out


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
    arrays = x, weight, None, residual, *(out or (None, None))
    new = _norm.start(("rms", code, group), arrays, (eps, plus_one), stream)
    return out or new


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
    arrays = x, weight, bias, residual, out, None
    new = _norm.start(("layer", None, None), arrays, (eps, 0.0), stream)
    return new[0] if out is None else out


def _prepare_call(asked: _Asked, given: dict[str, ArraySpec]) -> Step:
    """Return the norm of arrays with these specs."""
    kind, code, group = asked
    views = {name: view_at(given[name]) for name in _INPUTS if name in given}
    axes = {"weight": "C", "bias": "C"}
    rows, channels = match(
        **{name: (view, axes.get(name, "T C")) for name, view in views.items()}
    ).values()
    dtype = views["x"].dtype
    vector = divide(channels, dtype.itemsize).vector
    check_dense(dtype, **views)
    gpu = gpu_of(**views)
    check_aligned(vector * dtype.itemsize, **views)
    options = NormOptions(kind, "residual" in views, "bias" in views, code, group)
    norm = prepare(options, rows=rows, channels=channels, dtype=dtype, gpu=gpu)
    element = code_type(code).dtype if code else dtype
    results: tuple[Result, ...] = (
        ("out", (rows, channels), element, vector * element.itemsize),
        ("scales", scales_shape(rows, channels, group), np.float32, 1),
    )
    new = new_results(given, gpu, *(results if code else results[:1]))
    return Step(gpu, NamedCalls.of(norm.call), new, constants={"channels": channels, "rounded": 0})


_INPUTS = ("x", "weight", "bias", "residual")
_Asked: TypeAlias = tuple[Literal["rms", "layer"], Code | None, int | None]
"""The kind of norm, the code that it is quantised to, and elements that share a scale."""

_norm = Operator("x weight bias residual out scales", _prepare_call, numbers="eps weight_offset")


def _every_options() -> Iterator[NormOptions]:
    for residual, code in product((False, True), (None, *CODES)):
        yield NormOptions("rms", residual, code=code)
        for bias in (False, True):
            yield NormOptions("layer", residual, bias, code)


def _every_grouped() -> Iterator[NormOptions]:
    for residual, code in product((False, True), CODES):
        yield NormOptions("rms", residual, code=code, group=128)


VARIANTS: tuple[Variant, ...] = (
    tuple(
        variant_for(options, channels, dtype)
        for options in _every_options()
        for channels in (64, 1001, 3584, 8192, 16_384)
        for dtype in (np.float32, np.float16, ml_dtypes.bfloat16)
    )
    + tuple(
        variant_for(options, channels, ml_dtypes.bfloat16)
        for options in _every_grouped()
        for channels in (64, 3584, 8192, 16_384)
    )
    + tuple(
        variant_for(options, channels, dtype, MANY_ROWS)
        for options in (*_every_options(), *_every_grouped())
        for channels in (64, 3584, 8192, 16_384)
        for dtype in (np.float32, np.float16, ml_dtypes.bfloat16)
        if options.code
    )
)
"""Every combination of options and element types, with every row division that models need."""

__getattr__ = renamed(__name__, Form=("NormOptions", NormOptions))
