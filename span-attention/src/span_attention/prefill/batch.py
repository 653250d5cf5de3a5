"""Prefill attention of a batch: an object that owns plan and workspace."""

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

from span_attention.layout import SpanLayout
from span_attention.operands import check_spans, operands_of
from span_attention.prefill.arguments import Arguments
from span_attention.prefill.options import PrefillOptions
from span_attention.prefill.prepared import Division, PreparedPrefill, prepare
from span_attention.spans import Spans


class _Step(NamedTuple):
    """A planned step, as runs read it; its arrays are held as long as it is planned."""

    prepared: PreparedPrefill
    division: Division
    span_tables: int
    table_rows: int
    table_stride: int
    plan: int
    workspace: int
    window: int
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
        self._layout, self._num_heads, self._splits = layout, num_heads, splits
        self._causal = causal
        self._options = PrefillOptions(numpy_dtype(dtype).name, lse)
        self._memory: tuple[Any, ...] = ()
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
        (starts_at, starts), (lens_at, lens) = (
            inspect_array(query_start_loc),
            inspect_array(seq_lens),
        )
        (tables_at, tables), (rows_at, rows) = inspect_array(span_tables), inspect_array(table_rows)
        prepared, division, table_stride, allocate = _prepared_for(
            self._options,
            self._layout,
            (self._num_heads, num_tokens, self._splits),
            (starts, lens, tables, rows),
        )
        handle = stream_handle(stream, seq_lens)
        step = self._step
        if step is None or step.prepared is not prepared or step.division is not division:
            self._memory = allocate(handle)
        plan, workspace = map(pointer_of, self._memory)
        self._step = _Step(
            prepared=prepared,
            division=division,
            span_tables=tables_at,
            table_rows=rows_at,
            table_stride=table_stride,
            plan=plan,
            workspace=workspace,
            window=window or 0,
            held=given,
        )
        if division.num_rows and division.slices:
            arguments = prepared.plan_arguments(
                plan, starts_at, lens_at, division, window=window or 0, causal=self._causal
            )
            prepared.plan(handle, arguments)

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
        prepared, division = step.prepared, step.division
        check_spans(prepared, spans)
        at = operands_of(prepared, division.num_rows, query, (alibi_slopes, sinks), out, stream)
        if division.num_rows and division.slices:
            arguments = Arguments(
                out=at.out,
                query=at.query,
                query_stride=at.query_stride,
                num_rows=division.num_rows,
                span_tables=step.span_tables,
                table_rows=step.table_rows,
                plan=step.plan,
                slices=division.slices,
                pack=division.pack,
                sharers=division.sharers,
                table_stride=step.table_stride,
                spans=spans,
                softmax_scale=softmax_scale,
                softcap=softcap or 0.0,
                window=step.window,
                workspace=step.workspace,
                alibi_slopes=at.alibi_slopes,
                sinks=at.sinks,
                lse=at.lse,
            )
            prepared.attend(at.stream, arguments)
        return at.result


@prepared_once(256)
def _kernel_for(
    options: PrefillOptions, layout: SpanLayout, num_heads: int, gpu: int, splits: bool
) -> PreparedPrefill:
    """Return the attention of steps of any size on a GPU, compiled or cached."""
    return prepare(options, layout, heads=num_heads, gpu=get_gpu(gpu), splits=splits)


@prepared_once(1024)
def _prepared_for(
    options: PrefillOptions,
    layout: SpanLayout,
    sizes: tuple[int, int, bool],
    specs: tuple[ArraySpec, ...],
) -> tuple[PreparedPrefill, Division, int, Callable[[int], tuple[Any, ...]]]:
    """Return the prefill of a step with these specs, and the allocator of its memory."""
    num_heads, num_rows, splits = sizes
    views = {name: view_at(spec) for name, spec in zip(_STEP, specs, strict=True)}
    slices = check_step(**views)
    gpu = gpu_of(**views)
    prepared = _kernel_for(options, layout, num_heads, gpu.index, splits)
    plan: Result = ("plan", (prepared.plan_bytes(num_rows, slices),), np.uint8, 16)
    workspace: Result = ("workspace", (prepared.workspace_bytes,), np.uint8, 16)
    allocate = allocator(specs[1], gpu, plan, workspace)
    division = prepared.divide(num_rows, slices) if num_rows and slices else _nothing(num_rows)
    return prepared, division, views["span_tables"].strides[0], allocate


_STEP = ("query_start_loc", "seq_lens", "span_tables", "table_rows")


def _nothing(num_rows: int) -> Division:
    return Division(num_rows, slices=0, pack=1, sharers=0)


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
