"""Latent attention to selected keys: an object that owns plan and workspace, and one call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from spaninfer_kernel_launch import (
    ArraySpec,
    Gpu,
    ShapeError,
    allocator,
    check_dense,
    inspect_array,
    match,
    numpy_dtype,
    pointer_of,
    prepared_once,
    stream_handle,
    view_at,
)

from span_attention.layout import SpanLayout
from span_attention.mla import MLAOptions, PreparedMLA, takes
from span_attention.mla.kernels import PlanArguments
from span_attention.mla.prepared import Run
from span_attention.mla.step import Heads, check_queries, kernels_for, memory_of
from span_attention.mla.tuning import divide_selected
from span_attention.operands import check_spans, inspect_or_address, operands_of
from span_attention.spans import Spans
from span_attention.sparse.readers import Readers, check_readers

_ALL_LINES = 2**30  # of a token: each sees all that are selected


class _Step(NamedTuple):
    """A planned step, as runs read it; its arrays are held as long as it is planned."""

    prepared: PreparedMLA
    tokens: int
    top_k: int
    span_tables: int
    table_stride: int
    plan: int
    workspace: int
    held: tuple[object, ...]


class BatchSelected:
    """Absorbed latent attention (see `BatchMLA`) of tokens to keys that an indexer selected.

    On Hopper, over latents of 512 + 64 floats of the queries' type, float16 or bfloat16. Planned
    once per step, run per layer. With `splits`, several thread blocks share the keys of one token
    where that fills the GPU; a row's last bits then depend on the rest of the step.

    Plan and workspace are kept as long as a step has as many tokens, so that runs that were
    captured into a CUDA graph read each new plan. All of it belongs to one stream.
    """

    def __init__(
        self, layout: SpanLayout, *, num_heads: int, dtype: object, splits: bool = True
    ) -> None:
        self._layout, self._num_heads, self._splits = layout, num_heads, splits
        self._options = MLAOptions(numpy_dtype(dtype).name, selected=True)
        self._memory: tuple[Any, ...] = ()
        self._step: _Step | None = None

    def plan(self, readers: Readers, *, top_k: int, stream: object = None) -> None:
        """Divide the keys of a step among thread blocks, on the GPU.

        Runs read the plan and the tables before they wait for the previous kernel: these must be
        complete when the step is planned, and must not change until its runs have finished.
        """
        given = (readers.span_tables, readers.table_rows, readers.lengths)
        (tables, rows, lengths), specs = zip(*map(inspect_array, given), strict=True)
        heads = Heads(self._num_heads, self._splits)
        prepared, tokens, stride, allocate = _prepared_for(
            self._options, self._layout, heads, specs
        )
        handle = stream_handle(stream, readers.lengths)
        step = self._step
        if step is None or step.prepared is not prepared or step.tokens != tokens:
            self._memory = allocate(handle)
        plan, workspace = map(pointer_of, self._memory)
        held = (*given, *self._memory)
        self._step = _Step(prepared, tokens, top_k, tables, stride, plan, workspace, held)
        if not tokens:
            return
        division = prepared.division
        arguments = PlanArguments(
            words=plan,
            ends=plan + division.words_bytes(tokens * self._num_heads, tokens),
            query_start_loc=0,
            seq_lens=lengths,
            table_rows=rows,
            slices=tokens,
            heads=self._num_heads,
            lanes=division.lanes,
            parts=division.parts,
            splits=self._splits,
            causal=False,
            most=top_k,
        )
        prepared.plan(handle, arguments)

    def run(
        self,
        query: object,
        spans: Spans,
        selected: object,
        *,
        softmax_scale: float,
        out: Any = None,
        stream: object = None,
    ) -> Any:
        """Return the attention of query[T H D] to the positions selected[T k], [T H E].

        k is the plan's `top_k`. Token t reads the first min(k, lengths[t]) of its row, which must
        be positions that it has. Query, `selected` and `out` may be addresses of dense arrays.
        """
        step = self._step
        if step is None:
            raise ShapeError("no step is planned; call plan(readers, …) before run")
        prepared = step.prepared
        check_spans(prepared, spans)
        at = operands_of(prepared, step.tokens, query, (None, None), out, stream)
        check_queries(prepared, at.query_stride)
        positions, spec = inspect_or_address(selected)
        _check_selected(spec, step.tokens, step.top_k)
        run = Run(
            out=at.out,
            lse=0,
            query=at.query,
            num_tokens=step.tokens,
            spans=spans,
            span_tables=step.span_tables,
            table_stride=step.table_stride,
            plan=step.plan,
            workspace=step.workspace,
            softmax_scale=softmax_scale,
            lines_of_position=_ALL_LINES,
            selected=(positions, step.top_k),
        )
        if step.tokens:
            prepared.attend(at.stream, run)
        return at.result


def attend_selected(
    query: object,
    spans: Spans,
    selected: object,
    readers: Readers,
    *,
    softmax_scale: float,
    out: Any = None,
    stream: object = None,
) -> Any:
    """Return the attention of query[T H D] to the positions selected[T k] of its tokens, [T H E].

    `selected` is what `select_keys` returned for the same readers; see `BatchSelected`, which plans
    once where several layers read.
    """
    _, spec = inspect_array(query)
    view = view_at(spec)
    heads = match(query=(view, f"T H {spans.layout.key_size}"))["H"]
    top_k = match(selected=(view_at(inspect_array(selected)[1]), "T k"))["k"]
    batch = BatchSelected(spans.layout, num_heads=heads, dtype=view.dtype)
    batch.plan(readers, top_k=top_k, stream=stream)
    return batch.run(query, spans, selected, softmax_scale=softmax_scale, out=out, stream=stream)


def has_attention(dtype: str, layout: SpanLayout, arch: str) -> bool:
    """Return True on Hopper for latents of 512 + 64 floats of the queries' type."""
    return takes(MLAOptions(dtype, selected=True), layout, arch)


def prepare_attention(
    dtype: str, layout: SpanLayout, *, heads: int, gpu: Gpu, splits: bool
) -> None:
    """Compile and load the kernels that steps of any size need on `gpu`."""
    division = divide_selected(1, heads, gpu.sm_count, splits=splits)
    kernels_for(MLAOptions(dtype, selected=True), layout, Heads(heads, splits), division, gpu.index)


@prepared_once(1024)
def _check_selected(spec: ArraySpec, tokens: int, top_k: int) -> None:
    if spec:
        view = view_at(spec)
        match(selected=(view, f"{tokens} {top_k}"))
        check_dense(np.int32, selected=view)


@prepared_once(1024)
def _prepared_for(
    options: MLAOptions,
    layout: SpanLayout,
    heads: Heads,
    specs: tuple[ArraySpec, ...],
) -> tuple[PreparedMLA, int, int, Callable[[int], tuple[Any, ...]]]:
    """Return the attention of readers with these specs, their number, the stride of tables, and the
    allocator of its memory.
    """
    tokens, _, stride, gpu = check_readers(specs)
    if not takes(options, layout, gpu.arch):
        raise ShapeError(
            f"{options.dtype} queries over {layout.key_size} and {layout.value_size} "
            f"{layout.format.label} on {gpu.arch}; selected latents are read on Hopper, of "
            "512 + 64 floats of the queries' type"
        )
    division = divide_selected(tokens, heads.number, gpu.sm_count, splits=heads.splits)
    prepared = kernels_for(options, layout, heads, division, gpu.index)
    memory = memory_of(prepared, tokens, tokens * heads.number, splits=heads.splits)
    return prepared, tokens, stride, allocator(specs[2], gpu, *memory)
