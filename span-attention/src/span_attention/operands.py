"""Arrays of a planned run: checked once per spec, or trusted where given as addresses."""

from __future__ import annotations

from typing import Protocol

import numpy as np
from spaninfer_kernel_launch import (
    ADDRESS,
    ArraySpec,
    DeviceError,
    Gpu,
    Result,
    ShapeError,
    View,
    check_dense,
    check_rows,
    gpu_of,
    match,
    new_results,
    numpy_dtype,
    view_at,
)

from span_attention.layout import SpanLayout
from span_attention.lse import results_of

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


def check_layout(wanted: SpanLayout, given: SpanLayout) -> None:
    """Raise ShapeError for spans of another layout than an attention was made for."""
    if given != wanted:
        raise ShapeError("spans have another layout than this attention was made for")


def check_operands(
    attention: Attention, num_rows: int, given: dict[str, ArraySpec]
) -> tuple[int, tuple[Result, ...]]:
    """Return the elements from row to row of queries, and the results to allocate.

    Raises ShapeError, DTypeError or DeviceError for arrays with specs that do not fit.
    """
    heads, layout, gpu = attention.heads, attention.layout, attention.gpu
    stride = heads * layout.key_size
    views = {
        name: view_at(spec)
        for name, spec in given.items()
        if spec != ADDRESS and name not in ("out", "lse")
    }
    if "query" in views:
        stride = check_query(views["query"], attention, num_rows)
    of_heads = {name: view for name, view in views.items() if name != "query"}
    match(**{name: (view, f"{heads}") for name, view in of_heads.items()})
    check_dense(np.float32, **of_heads)
    check_device(gpu, **views)
    results = results_of(
        (num_rows, heads, layout.value_size),
        numpy_dtype(attention.options.dtype),
        alignment=attention.result_alignment,
        lse=attention.options.lse,
    )
    unknown = [name for name, *_ in results if given.get(name) == ADDRESS]
    seen = [result for result in results if result[0] not in unknown]
    new = new_results(given, gpu, *seen)
    if new and unknown:
        raise ShapeError(f"out lacks {new[0][0]}; give an array for every result, or none")
    if new and given["query"] == ADDRESS:
        raise ShapeError("query is an address; give out=, too")
    return stride, new


def check_query(query: View, attention: Attention, num_rows: int) -> int:
    """Return the elements from row to row. Raises ShapeError or DTypeError for misfits."""
    match(query=(query, f"{num_rows} {attention.heads} {attention.layout.key_size}"))
    check_rows(attention.options.dtype, _QUERY_BYTES, query=query)
    return query.strides[0]


def check_device(gpu: Gpu, **views: View) -> None:
    """Raise DeviceError unless all arrays lie on the GPU that the step was planned for."""
    if views and (found := gpu_of(**views)).index != gpu.index:
        first = next(iter(views))
        raise DeviceError(f"{first} lies on cuda:{found.index}, but the plan on cuda:{gpu.index}")
