"""Prefill attention of a batch: an object that owns plan and workspace."""

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

from span_attention.kept_memory import KeptMemory
from span_attention.layout import SpanLayout
from span_attention.lse import pair_of
from span_attention.operands import check_layout, check_operands
from span_attention.prefill.division import Division
from span_attention.prefill.options import PrefillOptions
from span_attention.prefill.prepared import PreparedPrefill, prepare
from span_attention.spans import Spans


class _Asked(NamedTuple):
    """What a batch is made for."""

    options: PrefillOptions
    layout: SpanLayout
    num_heads: int
    splits: bool
    causal: bool


class _Step(NamedTuple):
    """A planned step, as runs read it; its arrays are held as long as it is planned."""

    key: tuple[PreparedPrefill, Division]
    numbers: tuple[int, ...]  # as runs name them, from `span_tables` to `pack`
    held: tuple[object, ...]


class BatchPrefill:
    """Attention of new tokens of several sequences: planned once per step, run per layer.

    Slices of any length may meet: prompts, chunks of them, single tokens. `num_heads` query heads
    read spans of this layout; `dtype` is the element type of queries and results, float16 or
    bfloat16, and that of the spans where these hold floats. Attention is causal, unless `causal` is
    False: then each query sees all seq_lens[r] keys, such as a part of what was cached before its
    slice. With `splits`, few rows of a long context are shared among all multiprocessors where the
    kernel can; a row's last bits then depend on the rest of the step; without it, they do not. With
    `lse`, runs also give log-sum-exps (span_attention/lse.py).

    Nothing is compiled before the first plan. Plan and workspace are kept as long as a step has as
    many tokens and slices, so that runs that were captured into a CUDA graph read each new plan;
    plans may be captured, too. All of it belongs to one stream.
    """

    def __init__(
        self,
        layout: SpanLayout,
        *,
        num_heads: int,
        dtype: object,
        splits: bool = False,
        lse: bool = False,
        causal: bool = True,
    ) -> None:
        options = PrefillOptions(numpy_dtype(dtype).name, lse)
        self._asked = interned(_Asked(options, layout, num_heads, splits, causal))
        self._causal, self._lse = causal, lse
        self._memory = KeptMemory()
        self._step: _Step | None = None

    def plan(
        self,
        query_start_loc: object,
        seq_lens: object,
        span_tables: object,
        *,
        table_rows: object,
        num_tokens: int,
        window: int | None = None,
        stream: object = None,
    ) -> None:
        """Divide a step into tiles, on the GPU.

        Slice r of R is the rows query_start_loc[r] .. query_start_loc[r + 1] of a query with
        `num_tokens` rows, the last of seq_lens[r] positions. Its keys and values, its own tokens'
        included, lie in the spans that row table_rows[r] of span_tables[N M] names. All are int32,
        query_start_loc has R + 1. A slice of length 0 is padding, whose rows are left alone; so are
        rows of no slice. With a window, each row sees only the last `window` positions, its own
        included. Nothing is read on the host: that the numbers are consistent is not checked; the
        caller must ensure it.

        Runs read arrays and plan before they wait for the previous kernel: tables and rows must be
        complete when the step is planned, and must not change until its runs have finished. Raises
        ShapeError for a window where attention is not causal.
        """
        if window and not self._causal:
            raise ShapeError(f"window is {window}; attention that is not causal takes none")
        given = (query_start_loc, seq_lens, span_tables, table_rows)
        addresses, found = _plans.find((self._asked, num_tokens), given)
        key, sizes, table_stride, allocate = found
        prepared, division = key
        handle = stream_handle(stream, seq_lens)
        plan, workspace = self._memory.at(key, allocate, handle)
        starts_at, lens_at, tables_at, rows_at = addresses
        window = window or 0
        tables = tables_at, rows_at, table_stride
        numbers = *tables, plan, workspace, window, division.slices, division.pack
        self._step = _Step(key, numbers, held=given)
        if sizes is not None:
            prepared.plan.start(handle, (plan, starts_at, lens_at, window, *sizes))

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
        """Return the attention of query[T H D] over one layer's keys and values, [T H E].

        With `lse`, return a pair: that, and lse[T H] float32. Rows of no slice are not written.
        alibi_slopes[H] and sinks[H] are float32; sinks are logits that take part in the softmax
        without a value. Without `out` (a pair with `lse`), results are new arrays. Query and `out`
        may be addresses of dense arrays. Runs that share a plan come one after another.
        """
        step = self._step
        if step is None:
            raise ShapeError("no step is planned; call plan(query_start_loc, …) before run")
        prepared, _ = step.key
        if spans.layout is not prepared.layout:
            check_layout(prepared.layout, spans.layout)
        to, lse = pair_of(out) if self._lse else (out, None)
        layer = *spans.places, *spans.scale_places, softmax_scale, softcap or 0.0
        arrays = query, alibi_slopes, sinks, to, lse
        new = _run.start(step.key, arrays, (*step.numbers, *layer), stream)
        return out if out is not None else new if self._lse else new[0]


class _Planned(NamedTuple):
    """What is prepared for the arrays of a plan."""

    key: tuple[PreparedPrefill, Division]
    sizes: tuple[int, ...] | None  # that the plan is made from; None where there is none to make
    table_stride: int
    allocate: Allocate


def _prepare_plan(options: tuple[Interned[_Asked], int], given: dict[str, ArraySpec]) -> _Planned:
    """Return the prefill of a step with these specs and so many tokens."""
    interned_asked, num_tokens = options
    asked = interned_asked.value
    views = {name: view_at(spec) for name, spec in given.items()}
    slices = check_step(**views)
    gpu = gpu_of(**views)
    prepared = _kernel_for(asked.options, asked.layout, asked.num_heads, gpu.index, asked.splits)
    plan: Result = ("plan", (prepared.plan_bytes(num_tokens, slices),), np.uint8, 16)
    workspace: Result = ("workspace", (prepared.workspace_bytes,), np.uint8, 16)
    key = _key_for(prepared, num_tokens, slices)
    return _Planned(
        key,
        prepared.sizes_of_plan(key[1], causal=asked.causal),
        views["span_tables"].strides[0],
        allocator(given["seq_lens"], gpu, plan, workspace),
    )


_plans = Preparations("query_start_loc seq_lens span_tables table_rows", _prepare_plan)


def _prepare_run(key: tuple[PreparedPrefill, Division], given: dict[str, ArraySpec]) -> Step:
    """Return a run over arrays with these specs."""
    prepared, division = key
    stride, new = check_operands(prepared, division.num_rows, given)
    calls, constants = prepared.attend(division, stride)
    return Step(prepared.gpu, calls, new, constants=constants)


_run = Operator(
    "query alibi_slopes sinks out lse",
    _prepare_run,
    numbers="span_tables table_rows table_stride plan workspace window num_slices pack "
    "keys values key_scales value_scales softmax_scale softcap",
    maxsize=2048,
    addresses=True,
)


@prepared_once(256)
def _kernel_for(
    options: PrefillOptions, layout: SpanLayout, num_heads: int, gpu: int, splits: bool
) -> PreparedPrefill:
    """Return the attention of steps of any size on a GPU, compiled or cached."""
    return prepare(options, layout, heads=num_heads, gpu=get_gpu(gpu), splits=splits)


@prepared_once(1024)
def _key_for(
    prepared: PreparedPrefill, num_rows: int, slices: int
) -> tuple[PreparedPrefill, Division]:
    """Return what runs of steps with as many rows and slices have in common."""
    if num_rows and slices:
        return prepared, prepared.divide(num_rows, slices)
    return prepared, Division(num_rows, slices=0, pack=1, sharers=0)


def check_step(query_start_loc: View, seq_lens: View, span_tables: View, table_rows: View) -> int:
    """Return the number of slices. Raises ShapeError or DTypeError for arrays that misfit."""
    slices = match(
        table_rows=(table_rows, "R"), seq_lens=(seq_lens, "R"), span_tables=(span_tables, "N M")
    )["R"]
    match(query_start_loc=(query_start_loc, f"{slices + 1}"))
    dense = {"query_start_loc": query_start_loc, "seq_lens": seq_lens, "table_rows": table_rows}
    check_dense(np.int32, **dense)
    check_rows(np.int32, 4, span_tables=span_tables)
    return slices
