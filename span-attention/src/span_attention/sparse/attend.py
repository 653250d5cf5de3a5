"""Latent attention to selected keys: an object that owns plan and workspace, and one call."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from spaninfer_kernel_launch import (
    ADDRESS,
    Allocate,
    ArraySpec,
    Gpu,
    Interned,
    NamedCalls,
    Operator,
    Preparations,
    ShapeError,
    Step,
    allocator,
    check_dense,
    inspect_array,
    interned,
    match,
    numpy_dtype,
    stream_handle,
    view_at,
)

from span_attention.kept_memory import KeptMemory
from span_attention.layout import SpanLayout
from span_attention.mla import MLAOptions, PreparedMLA, takes
from span_attention.mla.prepared import RUN_VALUES
from span_attention.mla.step import Heads, check_queries, kernels_for, memory_of
from span_attention.mla.tuning import divide_selected
from span_attention.operands import check_device, check_layout, check_operands
from span_attention.spans import Spans
from span_attention.sparse.readers import Readers, check_readers

_ALL_LINES = 2**30  # of a token: each sees all that are selected


class _Asked(NamedTuple):
    """What a batch is made for."""

    options: MLAOptions
    layout: SpanLayout
    heads: Heads


class _Key(NamedTuple):
    """What runs depend on."""

    prepared: PreparedMLA
    tokens: int
    top_k: int


class _Planned(NamedTuple):
    """What is prepared for the arrays of a plan."""

    key: _Key
    table_stride: int
    ends: int  # bytes of the plan in front of the ends of tokens
    allocate: Allocate


class _Step(NamedTuple):
    """A planned step, as runs read it; its arrays are held as long as it is planned."""

    key: _Key
    numbers: tuple[int, ...]  # as runs name them, from `span_tables` to `parts`
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
        options = MLAOptions(numpy_dtype(dtype).name, selected=True)
        self._asked = interned(_Asked(options, layout, Heads(num_heads, splits)))
        self._memory = KeptMemory()
        self._step: _Step | None = None

    def plan(self, readers: Readers, *, top_k: int, stream: object = None) -> None:
        """Divide the keys of a step among thread blocks, on the GPU.

        Runs read the plan and the tables before they wait for the previous kernel: these must be
        complete when the step is planned, and must not change until its runs have finished.
        """
        given = (readers.span_tables, readers.table_rows, readers.lengths)
        (tables, rows, lengths), planned = _plans.find((self._asked, top_k), given)
        key = planned.key
        handle = stream_handle(stream, readers.lengths)
        plan, workspace = self._memory.at(key[:2], planned.allocate, handle)
        self._step = _Step(key, (tables, planned.table_stride, plan, workspace), held=given)
        if key.tokens:
            arrays = plan, plan + planned.ends, 0, lengths, rows
            key.prepared.plan.start(handle, (*arrays, key.tokens, False, top_k))

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
        if spans.layout is not step.key.prepared.layout:
            check_layout(step.key.prepared.layout, spans.layout)
        layer = spans.places[0], spans.scale_places[0], softmax_scale
        new = _run.start(step.key, (query, selected, out), (*step.numbers, *layer), stream)
        return new[0] if out is None else out


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


def _prepare_plan(options: tuple[Interned[_Asked], int], given: dict[str, ArraySpec]) -> _Planned:
    """Return what a step of readers with these specs needs; the last option is `top_k`."""
    interned_asked, top_k = options
    asked, layout, heads = interned_asked.value
    tokens, _, stride, gpu = check_readers((*given.values(),))
    if not takes(asked, layout, gpu.arch):
        raise ShapeError(
            f"{asked.dtype} queries over {layout.key_size} and {layout.value_size} "
            f"{layout.format.label} on {gpu.arch}; selected latents are read on Hopper, of "
            "512 + 64 floats of the queries' type"
        )
    division = divide_selected(tokens, heads.number, gpu.sm_count, splits=heads.splits)
    prepared = kernels_for(asked, layout, heads, division, gpu.index)
    lines = tokens * heads.number
    memory = memory_of(prepared, tokens, lines, splits=heads.splits)
    return _Planned(
        _Key(prepared, tokens, top_k),
        stride,
        division.words_bytes(lines, tokens),
        allocator(given["lengths"], gpu, *memory),
    )


_plans = Preparations("span_tables table_rows lengths", _prepare_plan)


def _prepare_run(key: _Key, given: dict[str, ArraySpec]) -> Step:
    """Return a run over arrays with these specs."""
    prepared, tokens, top_k = key
    if given["selected"] != ADDRESS:
        view = view_at(given["selected"])
        match(selected=(view, f"{tokens} {top_k}"))
        check_dense(np.int32, selected=view)
        check_device(prepared.gpu, selected=view)
    others = {name: spec for name, spec in given.items() if name != "selected"}
    stride, new = check_operands(prepared, tokens, others)
    check_queries(prepared, stride)
    if not tokens:
        return Step(prepared.gpu, NamedCalls(), new)
    calls, constants = prepared.attend(tokens, lines_of_position=_ALL_LINES)
    return Step(prepared.gpu, calls, new, constants=constants | {"most": top_k, "lse": 0})


_run = Operator(
    "query selected out", _prepare_run, numbers=RUN_VALUES, maxsize=2048, addresses=True
)
