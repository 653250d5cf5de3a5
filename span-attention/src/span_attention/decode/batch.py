"""Decode attention of a batch: an object that owns plan and workspace."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from spaninfer_kernel_launch import (
    Allocate,
    ArraySpec,
    Interned,
    Operator,
    Preparations,
    Result,
    ShapeError,
    Step,
    View,
    allocator,
    check_dense,
    check_rows,
    get_gpu,
    gpu_of,
    interned,
    match,
    numpy_dtype,
    prepared_once,
    stream_handle,
    view_at,
)

from span_attention.decode.prepared import PreparedDecode, prepare
from span_attention.decode.tuning import Tuning, places
from span_attention.decode.variant import DecodeOptions
from span_attention.kept_memory import KeptMemory
from span_attention.layout import SpanLayout
from span_attention.lse import pair_of
from span_attention.operands import check_layout, check_operands
from span_attention.spans import Spans


class _Asked(NamedTuple):
    """What a batch is made for."""

    options: DecodeOptions
    layout: SpanLayout
    num_heads: int
    tuning: Tuning | None


class _Step(NamedTuple):
    """A planned step, as runs read it; its arrays are held as long as it is planned."""

    prepared: PreparedDecode
    numbers: tuple[int, ...]  # as runs name them, from `span_tables` to `table_stride`
    held: tuple[object, ...]


class BatchDecode:
    """Attention of one query per sequence: planned once per step, run once per layer.

    `num_heads` query heads read spans of this layout; `dtype` is the element type of queries and
    results, float16 or bfloat16, and that of the spans where these hold floats. With `lse`, runs
    also give log-sum-exps (span_attention/lse.py). `tuning` is chosen for the sizes unless given.

    >>> from span_attention import Format, SpanLayout
    >>> layout = SpanLayout.contiguous(
    ...     span_len=32, kv_heads=8, key_size=128, value_size=128, format=Format.INT8, num_layers=36
    ... )
    >>> attention = BatchDecode(layout, num_heads=32, dtype="bfloat16")

    Nothing is compiled before the first plan. Plan and workspace are kept as long as the numbers of
    sequences are equal, so that runs that were captured into a CUDA graph read each new plan; plans
    may be captured, too. All of it belongs to one stream.
    """

    def __init__(
        self,
        layout: SpanLayout,
        *,
        num_heads: int,
        dtype: object,
        lse: bool = False,
        tuning: Tuning | None = None,
    ) -> None:
        options = DecodeOptions(numpy_dtype(dtype), lse)
        self._asked = interned(_Asked(options, layout, num_heads, tuning))
        self._lse = lse
        self._memory = KeptMemory()
        self._step: _Step | None = None

    def plan(
        self,
        seq_lens: object,
        span_tables: object,
        *,
        table_rows: object = None,
        window: int | None = None,
        stream: object = None,
    ) -> None:
        """Divide the tokens of a step among the blocks of the runs to come, on the GPU.

        seq_lens[R] int32 says how many tokens each sequence attends to, its new one included; 0 for
        padding, whose result is zero. Row table_rows[r] of span_tables[N M] names the spans of
        sequence r in order, row r without table_rows[R]; all int32. With a window, only the last
        `window` tokens are attended to. Nothing is read on the host: that lengths and tables fit
        the cache is not checked; the caller must ensure it.

        Runs read some arrays before they wait for the previous kernel, so these must be complete
        when the step is planned: seq_lens, tables, and keys and values of all tokens but the last
        of each sequence. Steps that append several tokens of one sequence belong to `BatchPrefill`.
        """
        given = seq_lens, span_tables, table_rows
        addresses, (prepared, table_stride, allocate) = _plans.find(self._asked, given)
        handle = stream_handle(stream, seq_lens)
        plan, workspace = self._memory.at(prepared, allocate, handle)
        lens_at, tables_at, rows_at = addresses if len(addresses) == 3 else (*addresses, 0)
        window = window or 0
        numbers = tables_at, rows_at, lens_at, plan, workspace, window, table_stride
        self._step = _Step(prepared, numbers, held=given)
        prepared.plan(handle, plan, lens_at, window)

    def run(
        self,
        query: object,
        spans: Spans,
        *,
        softmax_scale: float,
        softcap: float | None = None,
        alibi_slopes: object = None,
        sinks: object = None,
        out: Any = None,
        stream: object = None,
    ) -> Any:
        """Return the attention of query[R H D] over one layer's keys and values, [R H E].

        With `lse`, return a pair: that, and lse[R H] float32. alibi_slopes[H] and sinks[H] are
        float32; sinks are logits that take part in the softmax without a value. Without `out` (a
        pair with `lse`), results are new arrays. Query and `out` may be addresses of dense arrays.
        """
        step = self._step
        if step is None:
            raise ShapeError("no step is planned; call plan(seq_lens, span_tables) before run")
        if spans.layout is not step.prepared.layout:
            check_layout(step.prepared.layout, spans.layout)
        to, lse = pair_of(out) if self._lse else (out, None)
        layer = *spans.places, *spans.scale_places, softmax_scale, softcap or 0.0
        arrays = query, alibi_slopes, sinks, to, lse
        new = _run.start(step.prepared, arrays, (*step.numbers, *layer), stream)
        return out if out is not None else new if self._lse else new[0]


def _prepare_plan(
    options: Interned[_Asked], given: dict[str, ArraySpec]
) -> tuple[PreparedDecode, int, Allocate]:
    """Return the decode of a step with these specs, the stride of tables, and the allocator of its
    memory.
    """
    asked = options.value
    views = {name: view_at(spec) for name, spec in given.items()}
    requests = check_step(**views)
    gpu = gpu_of(**views)
    prepared = _kernel_for(
        asked.options, asked.layout, requests, asked.num_heads, gpu.index, asked.tuning
    )
    plan: Result = ("plan", (prepared.plan_bytes,), np.uint8, 16)
    workspace: Result = ("workspace", (prepared.workspace_bytes,), np.uint8, 16)
    allocate = allocator(given["seq_lens"], gpu, plan, workspace)
    return prepared, views["span_tables"].strides[0], allocate


_plans = Preparations("seq_lens span_tables table_rows", _prepare_plan)


def _prepare_run(prepared: PreparedDecode, given: dict[str, ArraySpec]) -> Step:
    """Return a run over arrays with these specs."""
    stride, new = check_operands(prepared, prepared.requests, given)
    layout = prepared.layout
    keys, values, key_scales, value_scales = places(layout)
    constants = {
        "requests": prepared.requests,
        "group": prepared.heads // layout.kv_heads,
        "kv_heads": layout.kv_heads,
        "span_shift": layout.span_len.bit_length() - 1,
        "query_stride": stride,
        "span_stride": layout.span_stride,
        "key_head": keys.head_stride,
        "value_head": values.head_stride,
        "key_scale_head": key_scales.head_stride if key_scales else 0,
        "value_scale_head": value_scales.head_stride if value_scales else 0,
    }
    return Step(prepared.gpu, prepared.attend, new, constants=constants)


_run = Operator(
    "query alibi_slopes sinks out lse",
    _prepare_run,
    numbers="span_tables table_rows seq_lens plan parts window table_stride "
    "keys values key_scales value_scales softmax_scale softcap",
    maxsize=2048,
    addresses=True,
)


@prepared_once(256)
def _kernel_for(
    options: DecodeOptions,
    layout: SpanLayout,
    requests: int,
    num_heads: int,
    gpu: int,
    tuning: Tuning | None,
) -> PreparedDecode:
    """Return the decode of that many sequences on a GPU, compiled or cached."""
    return prepare(
        options, layout, requests=requests, heads=num_heads, gpu=get_gpu(gpu), tuning=tuning
    )


def check_step(seq_lens: View, span_tables: View, table_rows: View | None = None) -> int:
    """Return the number of sequences. Raises ShapeError or DTypeError for arrays that misfit."""
    lists = {"seq_lens": seq_lens} | ({"table_rows": table_rows} if table_rows else {})
    requests = match(
        span_tables=(span_tables, "N M"), **{name: (view, "R") for name, view in lists.items()}
    )["R"]
    if table_rows is None and span_tables.shape[0] < requests:
        raise ShapeError(
            f"span_tables has {span_tables.shape[0]} rows for {requests} sequences; "
            "pass table_rows= where sequences share a row"
        )
    check_dense(np.int32, **lists)
    check_rows(np.int32, 4, span_tables=span_tables)
    return requests
