"""One query per request over its keys and values in spans: the attention of a decode step.

query[R H D], lengths[R] int32: how many tokens each request attends to, its new one included; 0 for
padding rows, whose result is zero. tables[N M] int32 names the spans of a request in order; rows[R]
int32 says which row of it is a request's. The result is out[R H E], of query's type.

What a step needs is planned once on the GPU (`Prepared.plan`), for all of its layers: a plan serves
any number of launches one after another on one stream. Lengths and tables are read on the GPU
alone, so that both kernels may be captured into CUDA graphs and replayed for other lengths.

What launches read before they wait for the kernel in front must be there when the step is planned:
lengths, tables, rows, and the keys and values of all tokens but the last of each request. Steps
that append several tokens of one request belong to `prefill`.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Literal, overload

import numpy as np
from spaninfer_kernel_launch import (
    Array,
    ShapeError,
    View,
    check_dense,
    check_rows,
    gpu_of,
    match,
    stream_handle,
    view_of,
)

from span_attention.decode.prepared import Prepared, prepare
from span_attention.decode.tuning import Tuning, tune
from span_attention.decode.variant import VARIANTS, Form, variant_for
from span_attention.layout import SpanLayout
from span_attention.lse import result_arrays
from span_attention.spans import Spans

__all__ = ["VARIANTS", "Form", "Prepared", "Tuning", "decode", "prepare", "tune", "variant_for"]

_prepared = lru_cache(maxsize=256)(prepare)


@overload
def decode(
    query: object,
    tables: object,
    lengths: object,
    *,
    spans: Spans,
    scale: float,
    rows: object = None,
    softcap: float = 0.0,
    window: int = 0,
    alibi: object = None,
    sinks: object = None,
    lse: Literal[False] = False,
    out: object = None,
    stream: object = None,
) -> object: ...
@overload
def decode(
    query: object,
    tables: object,
    lengths: object,
    *,
    spans: Spans,
    scale: float,
    rows: object = None,
    softcap: float = 0.0,
    window: int = 0,
    alibi: object = None,
    sinks: object = None,
    lse: Literal[True],
    out: tuple[object, object] | None = None,
    stream: object = None,
) -> tuple[object, object]: ...
def decode(
    query: object,
    tables: object,
    lengths: object,
    *,
    spans: Spans,
    scale: float,
    rows: object = None,
    softcap: float = 0.0,
    window: int = 0,
    alibi: object = None,
    sinks: object = None,
    lse: bool = False,
    out: object = None,
    stream: object = None,
) -> object | tuple[object, object]:
    """Return what each query of query[R H D] reads of its keys and values, [R H E].

    With `lse`, return its log-sum-exps[R H], float32, too: what `merge` joins parts by (lse.py).
    Options are those of `Prepared.launch`; without `rows`, request r has row r of tables[N M].
    Without `out`, a pair with `lse`, the result is a new array in the order of the stream, which
    torch.from_dlpack and cupy.from_dlpack take. Without a stream, the current one of query's
    framework. That lengths and tables fit the cache is the caller's word: reading them would wait
    for the GPU.
    """
    layout = spans.layout
    optional = {"rows": (rows, "R"), "alibi": (alibi, "H"), "sinks": (sinks, "H")}
    present = {name: pair for name, pair in optional.items() if pair[0] is not None}
    views = _check(query, tables, lengths, present, layout)
    requests, heads, _ = views["query"].shape
    gpu = gpu_of(**views, cache=view_of(spans.cache))
    handle = stream_handle(stream, query)
    dtype = views["query"].dtype
    step = _prepared(Form(dtype, lse), layout, requests=requests, heads=heads, gpu=gpu)
    shape = (requests, heads, layout.value_size)
    results = result_arrays(out, shape, dtype, gpu, handle, alignment=8, lse=lse)
    plan = Array((step.plan_bytes,), np.uint8, gpu, handle)
    workspace = Array((step.workspace_bytes,), np.uint8, gpu, handle)
    step.start_plan(handle, views["lengths"], plan, window)
    given = (views.get(name, 0) for name in ("query", "tables", "rows", "lengths"))
    step.start(
        handle,
        (results[0], *given, plan, workspace),
        spans=spans,
        alibi=views.get("alibi", 0),
        sinks=views.get("sinks", 0),
        lse=results[1],
        scale=scale,
        softcap=softcap,
        window=window,
        strides=(views["tables"].strides[0], views["query"].strides[0]),
    )
    return results if lse else results[0]


def _check(
    query: object,
    tables: object,
    lengths: object,
    given: dict[str, tuple[object, str]],
    layout: SpanLayout,
) -> dict[str, View]:
    """Return a view of each argument. Raises ShapeError or DTypeError where one does not fit."""
    axes = {
        "query": (query, f"R H {layout.key_size}"),
        "tables": (tables, "N M"),
        "lengths": (lengths, "R"),
        **given,
    }
    views = {name: view_of(array) for name, (array, _) in axes.items()}
    match(**{name: (view, axes[name][1]) for name, view in views.items()})
    if "rows" not in given and views["tables"].shape[0] < views["query"].shape[0]:
        raise ShapeError(
            f"tables has {views['tables'].shape[0]} rows for {views['query'].shape[0]} requests; "
            "pass rows= where requests share a row"
        )
    for name in {"lengths", "rows"} & views.keys():
        check_dense(np.int32, **{name: views[name]})
    for name in {"alibi", "sinks"} & views.keys():
        check_dense(np.float32, **{name: views[name]})
    check_rows(np.int32, 4, tables=views["tables"])
    check_rows(views["query"].dtype, 16, query=views["query"])
    return views
