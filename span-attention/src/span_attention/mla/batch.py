"""Latent attention of a batch: an object that owns plan and workspace."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from spaninfer_kernel_launch import (
    Allocate,
    ArraySpec,
    Interned,
    Operator,
    Preparations,
    ShapeError,
    Step,
    allocator,
    gpu_of,
    interned,
    numpy_dtype,
    stream_handle,
    view_at,
)

from span_attention.decode import BatchDecode
from span_attention.kept_memory import KeptMemory
from span_attention.layout import SpanLayout
from span_attention.lse import pair_of
from span_attention.mla.prepared import RUN_VALUES, PreparedMLA
from span_attention.mla.step import Heads, check_queries, kernels_for, memory_of
from span_attention.mla.tuning import divide
from span_attention.mla.variant import MLAOptions, options_for, takes
from span_attention.operands import check_layout, check_operands
from span_attention.prefill import BatchPrefill
from span_attention.prefill.batch import check_step
from span_attention.spans import Spans

_ALL_LINES: Final = 2**30  # more than a step has
_ALL_TOKENS: Final = 2**31 - 1


class _Asked(NamedTuple):
    """What a batch is made for."""

    options: MLAOptions
    layout: SpanLayout
    heads: Heads


class _Key(NamedTuple):
    """What runs depend on, and the memory of plan and workspace."""

    prepared: PreparedMLA
    num_tokens: int
    slices: int
    causal: bool


class _Planned(NamedTuple):
    """What is prepared for the arrays of a plan."""

    slices: int
    table_stride: int
    key: _Key | None  # None where the general kernels are to compute it
    ends: int  # bytes of the plan in front of the ends of slices
    allocate: Allocate


class _Step(NamedTuple):
    """A planned step, as runs read it; its arrays are held as long as it is planned."""

    key: _Key
    numbers: tuple[int, ...]  # as runs name them, from `span_tables` to `parts`
    held: tuple[object, ...]


class BatchMLA:
    """Multi-head latent attention (MLA), absorbed: all heads read one cached latent per token.

    A key is the latent and the rotated part of a key that all heads share, 512 + 64 elements, and
    its first 512 elements are the value: spans with `values_in_keys`. Queries are
    [W_UK^T q_nope | q_rope], and W_UV is applied to what they read (DeepSeek-V2, 2024, 2.1.2).

    Any number of new tokens per sequence, one as in a decode, a few of speculation, or chunks of
    prompts; attention is causal among them, unless `causal` is False: then each query sees all
    `seq_lens` tokens, as a prompt's does of those before it. `dtype` is the element type of queries
    and results, float16 or bfloat16, and that of spans that hold floats. With `splits`, several
    thread blocks share the keys of one sequence where that fills the GPU; a row's last bits then
    depend on the rest of the step; without it, they do not. With `lse`, runs also give log-sum-exps
    (span_attention/lse.py).

    On GPUs other than Hopper, for other sizes and for codes other than fp8, `BatchDecode` and
    `BatchPrefill` compute the same.

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
        splits: bool = True,
        causal: bool = True,
        lse: bool = False,
    ) -> None:
        self._layout, self._num_heads, self._splits = layout, num_heads, splits
        self.causal = causal
        self._options = options_for(numpy_dtype(dtype).name, layout, lse=lse)
        self._asked = interned(_Asked(self._options, layout, Heads(num_heads, splits)))
        self._memory = KeptMemory()
        self._step: _Step | None = None
        self._general: BatchDecode | BatchPrefill | None = None

    def plan(
        self,
        query_start_loc: object,
        seq_lens: object,
        span_tables: object,
        *,
        table_rows: object,
        num_tokens: int,
        stream: object = None,
    ) -> None:
        """Divide the keys of a step among thread blocks, on the GPU.

        Arguments are those of `BatchPrefill.plan`. The results of a slice of length 0 (padding) are
        zeros. Nothing is read on the host: that the numbers are consistent is not checked; the
        caller must ensure it.

        Runs read the plan and the tables before they wait for the previous kernel: these must be
        complete when the step is planned, and must not change until its runs have finished.
        """
        given = (query_start_loc, seq_lens, span_tables, table_rows)
        addresses, planned = _plans.find((self._asked, num_tokens, self.causal), given)
        key = planned.key
        if key is None:
            self._plan_generally(given, planned.slices, num_tokens, stream)
            return
        handle = stream_handle(stream, seq_lens)
        plan, workspace = self._memory.at(key, planned.allocate, handle)
        starts, lens, tables, rows = addresses
        self._general = None
        self._step = _Step(key, (tables, planned.table_stride, plan, workspace), held=given)
        arrays = plan, plan + planned.ends, starts, lens, rows
        key.prepared.plan.start(handle, (*arrays, planned.slices, self.causal, _ALL_TOKENS))

    def run(
        self,
        query: object,
        spans: Spans,
        *,
        softmax_scale: float,
        out: Any = None,
        stream: object = None,
    ) -> Any:
        """Return the attention of query[T H D] over one layer's latents, [T H E].

        With `lse`, return a pair: that, and lse[T H] float32. Rows of no slice are not written.
        Without `out` (a pair with `lse`), results are new arrays. Query and `out` may be addresses
        of dense arrays. Runs that share a plan come one after another.
        """
        if self._general is not None:
            return self._general.run(
                query, spans, softmax_scale=softmax_scale, out=out, stream=stream
            )
        step = self._step
        if step is None:
            raise ShapeError("no step is planned; call plan(query_start_loc, …) before run")
        if spans.layout is not self._layout:
            check_layout(self._layout, spans.layout)
        to, lse = pair_of(out) if self._options.lse else (out, None)
        layer = spans.places[0], spans.scale_places[0], softmax_scale
        new = _run.start(step.key, (query, to, lse), (*step.numbers, *layer), stream)
        return out if out is not None else new if self._options.lse else new[0]

    def _plan_generally(
        self, given: tuple[object, ...], slices: int, num_tokens: int, stream: object
    ) -> None:
        """Plan with the kernels for all sizes and GPUs. Raises ShapeError where there are none."""
        if not self.causal:
            raise ShapeError(
                "latent attention that is not causal takes latents of 512 + 64 floats on Hopper; "
                "make each query a slice, or use causal=True"
            )
        starts, lens, tables, rows = given
        dtype, lse = self._options.dtype, self._options.lse
        is_decode = num_tokens == slices and self._splits
        if self._general is None or isinstance(self._general, BatchDecode) != is_decode:
            self._general = (
                BatchDecode(self._layout, num_heads=self._num_heads, dtype=dtype, lse=lse)
                if is_decode
                else BatchPrefill(
                    self._layout,
                    num_heads=self._num_heads,
                    dtype=dtype,
                    splits=self._splits,
                    lse=lse,
                )
            )
        if isinstance(self._general, BatchDecode):
            self._general.plan(lens, tables, table_rows=rows, stream=stream)
        else:
            self._general.plan(
                starts, lens, tables, table_rows=rows, num_tokens=num_tokens, stream=stream
            )


def _prepare_plan(
    asked: tuple[Interned[_Asked], int, bool], given: dict[str, ArraySpec]
) -> _Planned:
    """Return what a step of arrays with these specs needs; the last of what is asked are its
    tokens, and if attention is causal.
    """
    interned_asked, num_tokens, causal = asked
    options, layout, heads = interned_asked.value
    views = {name: view_at(spec) for name, spec in given.items()}
    slices = check_step(**views)
    gpu = gpu_of(**views)
    stride, like = views["span_tables"].strides[0], given["seq_lens"]
    if not takes(options, layout, gpu.arch) or not num_tokens or not slices:
        return _Planned(slices, stride, None, 0, allocator(like, gpu))
    lines = num_tokens * heads.number
    splits, widest = heads.splits, options.widest
    division = divide(lines, slices, gpu.sm_count, splits=splits, widest=widest)
    prepared = kernels_for(options, layout, heads, division, gpu.index)
    memory = memory_of(prepared, slices, lines, splits=splits)
    return _Planned(
        slices,
        stride,
        _Key(prepared, num_tokens, slices, causal),
        division.words_bytes(lines, slices),
        allocator(like, gpu, *memory),
    )


_plans = Preparations("query_start_loc seq_lens span_tables table_rows", _prepare_plan)


def _prepare_run(key: _Key, given: dict[str, ArraySpec]) -> Step:
    """Return a run over arrays with these specs."""
    prepared = key.prepared
    stride, new = check_operands(prepared, key.num_tokens, given)
    check_queries(prepared, stride)
    lines = prepared.heads if key.causal else _ALL_LINES
    calls, constants = prepared.attend(key.num_tokens, lines_of_position=lines)
    return Step(prepared.gpu, calls, new, constants=constants)


_run = Operator("query out lse", _prepare_run, numbers=RUN_VALUES, maxsize=2048, addresses=True)
