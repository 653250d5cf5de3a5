"""Arrays of a planned run: checked once per spec, or trusted where given as addresses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import numpy as np
from spaninfer_kernel_launch import (
    ArraySpec,
    DeviceError,
    Gpu,
    ShapeError,
    View,
    allocator,
    check_dense,
    check_results,
    check_rows,
    gpu_of,
    inspect_array,
    match,
    numpy_dtype,
    pointer_of,
    prepared_once,
    stream_handle,
    view_at,
)

from span_attention.layout import SpanLayout
from span_attention.lse import pair_of, results_of
from span_attention.spans import Spans

_QUERY_BYTES = 16  # bytes of a query that a lane loads at once


class Options(Protocol):
    """The element type of queries and results, and whether log-sum-exps are a second result."""

    @property
    def dtype(self) -> object:
        """A type, or its name."""

    @property
    def lse(self) -> bool:
        """True for log-sum-exps."""


class Attention(Protocol):
    """A prepared attention, as far as the arrays of a run depend on it."""

    @property
    def options(self) -> Options:
        """The request it was prepared for."""

    @property
    def layout(self) -> SpanLayout:
        """The layout of its spans."""

    @property
    def heads(self) -> int:
        """The number of query heads."""

    @property
    def gpu(self) -> Gpu:
        """The GPU it is loaded on."""

    @property
    def result_alignment(self) -> int:
        """The bytes of a result that are written at once."""


class Operands(NamedTuple):
    """Addresses of a run's arrays, 0 for those not given, and the value that the run returns.

    A tuple, because a frozen dataclass takes 2 µs to make, a fifth of a launch.
    """

    stream: int
    query: int
    query_stride: int  # elements from row to row
    alibi_slopes: int
    sinks: int
    out: int
    lse: int
    result: Any


def check_spans(attention: Attention, spans: Spans) -> None:
    """Raise ShapeError for spans of another layout than the attention was prepared for."""
    layout = attention.layout
    if spans.layout is not layout and spans.layout != layout:
        raise ShapeError("spans have another layout than this attention was made for")


def operands_of(
    attention: Attention,
    num_rows: int,
    query: object,
    per_head: tuple[object, object],
    out: Any,
    stream: object,
) -> Operands:
    """Return the operands of a run over `num_rows` queries; allocate results unless given.

    `per_head` are ALiBi slopes and sinks. Raises ShapeError, DTypeError or DeviceError for arrays
    that do not fit.
    """
    (to, lse), (slopes, sinks) = pair_of(out, lse=attention.options.lse), per_head
    at, spec = inspect_or_address(query)
    (to_at, to_spec), (lse_at, lse_spec) = inspect_or_address(to), inspect_or_address(lse)
    (slopes_at, slopes_spec), (sinks_at, sinks_spec) = inspect_array(slopes), inspect_array(sinks)
    stride, allocate = _checked(
        attention, num_rows, spec, (slopes_spec, sinks_spec), (to_spec, lse_spec)
    )
    handle = stream_handle(stream, query)
    if out is None:
        results = allocate(handle)
        to_at = pointer_of(results[0])
        out = results[0]
        if attention.options.lse:
            lse_at = pointer_of(results[1])
            out = results
    return Operands(handle, at, stride, slopes_at, sinks_at, to_at, lse_at, out)


def inspect_or_address(array: object) -> tuple[int, ArraySpec]:
    """Return address and spec; the spec of an address is empty, since it cannot be checked."""
    return (array, ()) if isinstance(array, int) else inspect_array(array)


@prepared_once(2048)
def _checked(
    attention: Attention,
    num_rows: int,
    query: ArraySpec,
    per_head: tuple[ArraySpec, ArraySpec],
    out: tuple[ArraySpec, ArraySpec],
) -> tuple[int, Callable[[int], tuple[Any, ...]]]:
    """Return the elements from row to row of queries, and the allocator of results."""
    heads, layout, gpu = attention.heads, attention.layout, attention.gpu
    stride, views = heads * layout.key_size, {}
    if query:
        views["query"] = view_at(query)
        stride = check_query(views["query"], attention, num_rows)
    given = zip(("alibi_slopes", "sinks"), per_head, strict=True)
    of_heads = {name: view_at(spec) for name, spec in given if spec}
    match(**{name: (view, f"{heads}") for name, view in of_heads.items()})
    check_dense(np.float32, **of_heads)
    check_device(gpu, **views, **of_heads)
    results = results_of(
        (num_rows, heads, layout.value_size),
        numpy_dtype(attention.options.dtype),
        alignment=attention.result_alignment,
        lse=attention.options.lse,
    )
    check_results(out[: len(results)], gpu, *results)
    return stride, allocator(query, gpu, *results) if query else no_result


def check_query(query: View, attention: Attention, num_rows: int) -> int:
    """Return the elements from row to row. Raises ShapeError or DTypeError for misfits."""
    match(query=(query, f"{num_rows} {attention.heads} {attention.layout.key_size}"))
    check_rows(attention.options.dtype, _QUERY_BYTES, query=query)
    return query.strides[0]


def no_result(stream: int) -> tuple[Any, ...]:  # noqa: ARG001
    """Raise ShapeError: an address does not say which framework's array a result should be."""
    raise ShapeError("query is an address; give out=, too")


def check_device(gpu: Gpu, **views: View) -> None:
    """Raise DeviceError unless all arrays lie on the GPU that the step was planned for."""
    if views and (found := gpu_of(**views)).index != gpu.index:
        first = next(iter(views))
        raise DeviceError(f"{first} lies on cuda:{found.index}, but the plan on cuda:{gpu.index}")
