"""One query per request over its keys and values in spans: the attention of a decode step.

query[R H D], lengths[R] int32: how many tokens each request attends to, its new one included; 0 for
padding rows, whose result is zero. tables[N M] int32 names the spans of a request in order; rows[R]
int32 says which row of it is a request's. The result is out[R H E], of query's type.

What a step needs is planned once on the GPU (`Prepared.plan`), for all of its layers: a plan serves
any number of launches one after another on one stream. Lengths and tables are read on the GPU
alone, so that both kernels may be captured into CUDA graphs and replayed for other lengths. They
must be what they are when the step is planned: launches read them before they wait for the kernel
in front.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from spaninfer_kernel_launch import (
    Array,
    Call,
    FileCache,
    Gpu,
    Launch,
    ShapeError,
    View,
    check_dense,
    check_rows,
    compile_variant,
    gpu_of,
    load,
    match,
    pointer_of,
    result_array,
    stream_handle,
    user_cache,
    view_of,
)

from span_attention.decode import tuning as sizes
from span_attention.decode.tuning import PLAN_THREADS, Tuning, tune
from span_attention.decode.variant import PLAN, VARIANTS, Form, variant_for
from span_attention.layout import Place, SpanLayout
from span_attention.spans import Spans

__all__ = ["VARIANTS", "Form", "Prepared", "Tuning", "decode", "prepare", "tune", "variant_for"]


@dataclass(frozen=True, slots=True)
class Prepared:
    """A decode of up to so many requests, compiled and loaded.

    `plan_bytes` and `workspace_bytes` are what `plan` and `launch` need of 16-byte aligned memory,
    whatever is in it. One workspace serves all layers, one plan those of one window.
    """

    layout: SpanLayout
    requests: int
    heads: int
    tuning: Tuning
    plan_bytes: int
    workspace_bytes: int
    _blocks: int
    _plan: Call | None
    _attend: Call | None

    def plan(self, lengths: object, *, out: object, window: int = 0, stream: object = None) -> None:
        """Divide the tokens of lengths[R] among the blocks of the launches to come, into `out`.

        With a window, only the last `window` tokens of each request are attended to.
        """
        self.start_plan(stream_handle(stream, lengths), lengths, out, window)

    def start_plan(self, handle: int, lengths: object, out: object, window: int) -> None:
        """Do what `plan` does, on the stream with this handle, whichever it is."""
        if self._plan is None:
            return
        items = sizes.items(self.layout, self.heads, self.tuning)
        self._plan(
            *(handle, pointer_of(out), pointer_of(lengths)),
            *(self.requests, items, window, self.tuning.unit, self._blocks),
        )

    def launch(
        self,
        query: object,
        tables: object,
        rows: object,
        lengths: object,
        plan: object,
        *,
        table_stride: int,
        spans: Spans,
        out: object,
        workspace: object,
        scale: float,
        softcap: float = 0.0,
        window: int = 0,
        alibi: object = 0,
        sinks: object = 0,
        query_stride: int | None = None,
        stream: object = None,
    ) -> None:
        """Write what each query of query[R H D] reads to out[R H E].

        Arrays may be given as addresses; `rows` may be 0: request r then has row r of the tables.
        `plan` is of the same lengths and window; `table_stride` and `query_stride` count elements
        from row to row. alibi[H] and sinks[H] are float32: slopes, and logits that take part in the
        softmax without a value. Without a stream, the current one of query's framework.
        """
        self.start(
            stream_handle(stream, query),
            (out, query, tables, rows, lengths, plan, workspace),
            spans=spans,
            alibi=alibi,
            sinks=sinks,
            scale=scale,
            softcap=softcap,
            window=window,
            strides=(table_stride, query_stride or self.heads * self.layout.key_size),
        )

    def start(
        self,
        handle: int,
        arrays: tuple[object, ...],
        *,
        spans: Spans,
        alibi: object,
        sinks: object,
        scale: float,
        softcap: float,
        window: int,
        strides: tuple[int, int],
    ) -> None:
        """Do what `launch` does, on the stream with this handle, whichever it is.

        `arrays` are out, query, tables, rows, lengths, plan and workspace, `strides` those of the
        rows of tables and query.
        """
        if self._attend is None:
            return
        layout = self.layout
        self._attend(
            *(handle, *map(pointer_of, arrays)),
            *(*spans.places, *spans.scale_places, pointer_of(alibi), pointer_of(sinks)),
            *(scale, softcap, window, self.requests, self.heads, layout.kv_heads),
            *(layout.span_len.bit_length() - 1, *strides, layout.span_stride),
            *_strides(layout.keys, layout.values, layout.key_scales, layout.value_scales),
        )


def _strides(*places: Place | None) -> tuple[int, ...]:
    """Return the bytes from head to head and from token to token of each place."""
    return tuple(
        stride
        for place in places
        for stride in ((place.head_stride, place.token_stride) if place else (0, 0))
    )


def prepare(
    form: Form,
    layout: SpanLayout,
    *,
    requests: int,
    heads: int,
    gpu: Gpu,
    cache: FileCache | None = None,
    tuning: Tuning | None = None,
) -> Prepared:
    """Return the decode of `requests` requests with `heads` query heads, compiled or cached.

    Raises ShapeError or DTypeError for what no variant takes.
    """
    tuning = tuning or tune(layout, heads)
    variant = variant_for(form, layout, tuning)
    kept = cache or user_cache()
    blocks = gpu.sm_count * tuning.blocks_per_sm
    items = sizes.items(layout, heads, tuning)
    plan = attend = None
    if requests:
        planner = load(compile_variant(PLAN, gpu.arch, kept), gpu)
        once = Launch((1, 1, 1), (PLAN_THREADS, 1, 1), overlaps=True)
        plan = Call(planner, once, "PP iiiii")
        kernel = load(compile_variant(variant, gpu.arch, kept), gpu)
        grid = Launch((blocks, 1, 1), (32 * tuning.warps, 1, 1), overlaps=True)
        attend = Call(kernel, grid, "PPPPPPP PPPP PP ff iiiii qqq qi qi qi qi")
    return Prepared(
        *(layout, requests, heads, tuning),
        plan_bytes=sizes.plan_bytes(requests, items, blocks),
        workspace_bytes=sizes.workspace_bytes(tuning, blocks),
        _blocks=blocks,
        _plan=plan,
        _attend=attend,
    )


_prepared = lru_cache(maxsize=256)(prepare)


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
    out: object = None,
    stream: object = None,
) -> object:
    """Return what each query of query[R H D] reads of its keys and values, [R H E].

    Options are those of `Prepared.launch`; without `rows`, request r has row r of tables[N M].
    Without `out`, the result is a new array in the order of the stream, which torch.from_dlpack and
    cupy.from_dlpack take. Without a stream, the current one of query's framework. That lengths and
    tables fit the cache is the caller's word: reading them would wait for the GPU.
    """
    layout = spans.layout
    optional = {"rows": (rows, "R"), "alibi": (alibi, "H"), "sinks": (sinks, "H")}
    present = {name: pair for name, pair in optional.items() if pair[0] is not None}
    views = _check(query, tables, lengths, present, layout)
    requests, heads, _ = views["query"].shape
    gpu = gpu_of(**views, cache=view_of(spans.cache))
    handle = stream_handle(stream, query)
    dtype = views["query"].dtype
    step = _prepared(Form(dtype), layout, requests=requests, heads=heads, gpu=gpu)
    shape = (requests, heads, layout.value_size)
    out = result_array(out, shape, dtype, gpu, handle, alignment=8)
    plan = Array((step.plan_bytes,), np.uint8, gpu, handle)
    workspace = Array((step.workspace_bytes,), np.uint8, gpu, handle)
    step.start_plan(handle, views["lengths"], plan, window)
    given = (views.get(name, 0) for name in ("query", "tables", "rows", "lengths"))
    step.start(
        handle,
        (out, *given, plan, workspace),
        spans=spans,
        alibi=views.get("alibi", 0),
        sinks=views.get("sinks", 0),
        scale=scale,
        softcap=softcap,
        window=window,
        strides=(views["tables"].strides[0], views["query"].strides[0]),
    )
    return out


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
    check_rows(views["query"].dtype, 2, query=views["query"])
    return views
