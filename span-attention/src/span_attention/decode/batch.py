"""Decode attention of a batch: an object that owns plan and workspace."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from spaninfer_kernel_launch import (
    ArraySpec,
    Result,
    ShapeError,
    View,
    allocator,
    check_dense,
    check_rows,
    get_gpu,
    gpu_of,
    inspect_array,
    match,
    numpy_dtype,
    pointer_of,
    prepared_once,
    stream_handle,
    view_at,
)

from span_attention.decode.kernels import AttendArguments
from span_attention.decode.prepared import PreparedDecode, prepare
from span_attention.decode.tuning import Tuning, places
from span_attention.decode.variant import DecodeOptions
from span_attention.layout import SpanLayout
from span_attention.operands import check_spans, operands_of
from span_attention.spans import Spans


class _Step(NamedTuple):
    """A planned step, as runs read it; its arrays are held as long as it is planned."""

    prepared: PreparedDecode
    addresses: tuple[int, ...]  # as AttendArguments has them, from `span_tables` to `parts`
    sizes: tuple[int, ...]  # likewise, from `window` to `table_stride`
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
        self._layout, self._num_heads, self._tuning = layout, num_heads, tuning
        self._options = DecodeOptions(numpy_dtype(dtype), lse)
        self._sizes = num_heads // layout.kv_heads, layout.kv_heads, _shift(layout.span_len)
        self._strides = layout.span_stride, *_head_strides(layout)
        self._memory: tuple[Any, ...] = ()
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
        (lens_at, lens), (tables_at, tables) = inspect_array(seq_lens), inspect_array(span_tables)
        rows_at, rows = inspect_array(table_rows)
        specs = (lens, tables, rows)
        key = (self._options, self._layout, self._num_heads, self._tuning, specs)
        prepared, table_stride, allocate = _prepared_for(*key)
        handle = stream_handle(stream, seq_lens)
        if self._step is None or self._step.prepared is not prepared:
            self._memory = allocate(handle)
        plan, workspace = map(pointer_of, self._memory)
        window = window or 0
        self._step = _Step(
            prepared=prepared,
            addresses=(tables_at, rows_at, lens_at, plan, workspace),
            sizes=(window, prepared.requests, *self._sizes, table_stride),
            held=(seq_lens, span_tables, table_rows),
        )
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
        prepared = step.prepared
        check_spans(prepared, spans)
        at = operands_of(prepared, prepared.requests, query, (alibi_slopes, sinks), out, stream)
        caches = *spans.places, *spans.scale_places, at.alibi_slopes, at.sinks
        numbers = softmax_scale, softcap or 0.0, *step.sizes
        strides = at.query_stride, *self._strides
        # In the kernel's order: 28 keywords would take 2 of a call's 15 us.
        arguments = AttendArguments._make(
            (at.out, at.query, *step.addresses, *caches, *numbers, *strides, at.lse)
        )
        prepared.attend(at.stream, arguments)
        return at.result


def _shift(size: int) -> int:
    """Return log2 of a power of two."""
    return size.bit_length() - 1


def _head_strides(layout: SpanLayout) -> tuple[int, int, int, int]:
    """Return the bytes from head to head of keys, values, and the scales of both."""
    keys, values, key_scales, value_scales = places(layout)
    return (
        keys.head_stride,
        values.head_stride,
        key_scales.head_stride if key_scales else 0,
        value_scales.head_stride if value_scales else 0,
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


@prepared_once(1024)
def _prepared_for(
    options: DecodeOptions,
    layout: SpanLayout,
    num_heads: int,
    tuning: Tuning | None,
    specs: tuple[ArraySpec, ArraySpec, ArraySpec],
) -> tuple[PreparedDecode, int, Callable[[int], tuple[Any, ...]]]:
    """Return the decode of a step with these specs, and the allocator of its memory."""
    given = zip(("seq_lens", "span_tables", "table_rows"), specs, strict=True)
    views = {name: view_at(spec) for name, spec in given if spec}
    requests = check_step(**views)
    gpu = gpu_of(**views)
    prepared = _kernel_for(options, layout, requests, num_heads, gpu.index, tuning)
    plan: Result = ("plan", (prepared.plan_bytes,), np.uint8, 16)
    workspace: Result = ("workspace", (prepared.workspace_bytes,), np.uint8, 16)
    allocate = allocator(specs[0], gpu, plan, workspace)
    return prepared, views["span_tables"].strides[0], allocate


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
