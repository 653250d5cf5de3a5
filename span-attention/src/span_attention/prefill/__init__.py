"""Causal attention of new rows over keys and values in spans: prompts, chunks, single rows.

A step has R slices: slice r is the rows bounds[r] .. bounds[r + 1] of query[T H D], the last of
lengths[r] positions; its keys and values, its own rows' included, lie in the spans that row rows[r]
of tables[N M] names. rows[R], bounds[R + 1], lengths[R] and tables are int32 on the device: nothing
of them is read on the host, so that launches follow whatever the device makes of them.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Literal, overload

from spaninfer_kernel_launch import (
    Array,
    View,
    check_dense,
    check_rows,
    gpu_of,
    match,
    stream_handle,
    view_of,
)

from span_attention.layout import SpanLayout
from span_attention.lse import result_arrays
from span_attention.prefill.form import Form
from span_attention.prefill.prepared import Prepared, prepare
from span_attention.prefill.variants import VARIANTS
from span_attention.spans import Spans

__all__ = ["VARIANTS", "Form", "Prepared", "prefill", "prepare"]

_ROW_BYTES = 16  # what is read of a query, or written of a result, at once

_prepared = lru_cache(maxsize=256)(prepare)


@overload
def prefill(
    query: object,
    tables: object,
    rows: object,
    bounds: object,
    lengths: object,
    *,
    spans: Spans,
    scale: float,
    softcap: float = 0.0,
    window: int = 0,
    alibi: object = None,
    sinks: object = None,
    splits: bool = False,
    lse: Literal[False] = False,
    out: object = None,
    stream: object = None,
) -> object: ...
@overload
def prefill(
    query: object,
    tables: object,
    rows: object,
    bounds: object,
    lengths: object,
    *,
    spans: Spans,
    scale: float,
    softcap: float = 0.0,
    window: int = 0,
    alibi: object = None,
    sinks: object = None,
    splits: bool = False,
    lse: Literal[True],
    out: tuple[object, object] | None = None,
    stream: object = None,
) -> tuple[object, object]: ...
def prefill(
    query: object,
    tables: object,
    rows: object,
    bounds: object,
    lengths: object,
    *,
    spans: Spans,
    scale: float,
    softcap: float = 0.0,
    window: int = 0,
    alibi: object = None,
    sinks: object = None,
    splits: bool = False,
    lse: bool = False,
    out: object = None,
    stream: object = None,
) -> object | tuple[object, object]:
    """Return the attention of query[T H D] as [T H E]; rows outside of the slices are not written.

    With `lse`, return its log-sum-exps[T H], float32, too: what `merge` joins parts by (lse.py).
    `scale`, `softcap`, `window`, `alibi` and `sinks` as in `Prepared.launch`, `splits` as in
    `prepare`. Without `out`, a pair with `lse`, the result is a new array in the order of the
    stream, which torch.from_dlpack and cupy.from_dlpack take. Without a stream, the current one of
    query's framework. That the numbers in tables, rows, bounds and lengths fit together is the
    caller's word: reading them would wait for the GPU.
    """
    layout = spans.layout
    views = _check(query, tables, rows, bounds, lengths, alibi, sinks, layout)
    num_rows, heads, _ = views["query"].shape
    slices = views["rows"].shape[0]
    gpu = gpu_of(**views, cache=view_of(spans.cache))
    handle = stream_handle(stream, query)
    dtype = views["query"].dtype
    step = _prepared(Form(dtype.name, lse), layout, heads=heads, gpu=gpu, splits=splits)
    results = result_arrays(
        *(out, (num_rows, heads, layout.value_size), dtype, gpu, handle),
        alignment=_ROW_BYTES,
        lse=lse,
    )
    workspace = Array((step.workspace_bytes,), "uint8", gpu, handle)
    plan = Array((step.plan_bytes(num_rows, slices) // 4,), "int32", gpu, handle)
    sizes = {"num_rows": num_rows, "slices": slices, "window": window}
    step.plan(bounds, lengths, **sizes, out=plan, stream=stream)
    step.launch(
        *(query, tables, rows, plan),
        **sizes,
        table_len=views["tables"].strides[0],
        spans=spans,
        out=results[0],
        lse=results[1],
        scale=scale,
        softcap=softcap,
        alibi=views.get("alibi", 0),
        sinks=views.get("sinks", 0),
        workspace=workspace,
        query_stride=views["query"].strides[0],
        stream=stream,
    )
    return results if lse else results[0]


def _check(
    query: object,
    tables: object,
    rows: object,
    bounds: object,
    lengths: object,
    alibi: object,
    sinks: object,
    layout: SpanLayout,
) -> dict[str, View]:
    """Return a view of each argument. Raises ShapeError or DTypeError where one does not fit."""
    views = {
        "query": view_of(query),
        "tables": view_of(tables),
        "rows": view_of(rows),
        "bounds": view_of(bounds),
        "lengths": view_of(lengths),
        **({} if alibi is None else {"alibi": view_of(alibi)}),
        **({} if sinks is None else {"sinks": view_of(sinks)}),
    }
    slices = views["rows"].shape[0]
    axes = {"query": f"T H {layout.key_size}", "tables": "N M", "rows": "R", "lengths": "R"}
    axes |= {"bounds": str(slices + 1), "alibi": "H", "sinks": "H"}
    match(**{name: (view, axes[name]) for name, view in views.items()})
    floats = {name: view for name, view in views.items() if name in ("alibi", "sinks")}
    dense = {name: views[name] for name in ("rows", "bounds", "lengths")}
    check_dense("int32", **dense)
    check_dense("float32", **floats)
    check_rows("int32", 4, tables=views["tables"])
    check_rows(views["query"].dtype, _ROW_BYTES, query=views["query"])
    return views
