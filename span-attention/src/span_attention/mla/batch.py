"""Latent attention of a batch: an object that owns plan and workspace."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

from spaninfer_kernel_launch import (
    ArraySpec,
    ShapeError,
    allocator,
    gpu_of,
    inspect_array,
    numpy_dtype,
    pointer_of,
    prepared_once,
    stream_handle,
    view_at,
)

from span_attention.decode import BatchDecode
from span_attention.layout import SpanLayout
from span_attention.mla.kernels import PlanArguments
from span_attention.mla.prepared import PreparedMLA, Run
from span_attention.mla.step import Heads, check_queries, kernels_for, memory_of
from span_attention.mla.tuning import divide
from span_attention.mla.variant import MLAOptions, options_for, takes
from span_attention.operands import check_spans, operands_of
from span_attention.prefill import BatchPrefill
from span_attention.prefill.batch import check_step
from span_attention.spans import Spans

_ALL_LINES: Final = 2**30  # more than a step has
_ALL_TOKENS: Final = 2**31 - 1


class _Step(NamedTuple):
    """A planned step, as runs read it; its arrays are held as long as it is planned."""

    prepared: PreparedMLA
    num_tokens: int
    span_tables: int
    table_stride: int
    plan: int
    workspace: int
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
        self._memory: tuple[Any, ...] = ()
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
        addresses, specs = zip(*map(inspect_array, given), strict=True)
        sizes = self._num_heads, num_tokens, self._splits
        prepared, slices, table_stride, allocate = _prepared_for(
            self._options, self._layout, sizes, specs
        )
        if prepared is None:
            self._plan_generally(given, slices, num_tokens, stream)
            return
        handle = stream_handle(stream, seq_lens)
        step = self._step
        if step is None or step.prepared is not prepared or step.num_tokens != num_tokens:
            self._memory = allocate(handle)
        plan, workspace = map(pointer_of, self._memory)
        starts, lens, tables, rows = addresses
        self._general = None
        self._step = _Step(prepared, num_tokens, tables, table_stride, plan, workspace, held=given)
        division = prepared.division
        arguments = PlanArguments(
            words=plan,
            ends=plan + division.words_bytes(num_tokens * self._num_heads, slices),
            query_start_loc=starts,
            seq_lens=lens,
            table_rows=rows,
            slices=slices,
            heads=self._num_heads,
            lanes=division.lanes,
            parts=division.parts,
            splits=self._splits,
            causal=self.causal,
            most=_ALL_TOKENS,
        )
        prepared.plan(handle, arguments)

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
        prepared = step.prepared
        check_spans(prepared, spans)
        at = operands_of(prepared, step.num_tokens, query, (None, None), out, stream)
        check_queries(prepared, at.query_stride)
        run = Run(
            out=at.out,
            lse=at.lse,
            query=at.query,
            num_tokens=step.num_tokens,
            spans=spans,
            span_tables=step.span_tables,
            table_stride=step.table_stride,
            plan=step.plan,
            workspace=step.workspace,
            softmax_scale=softmax_scale,
            lines_of_position=self._num_heads if self.causal else _ALL_LINES,
        )
        prepared.attend(at.stream, run)
        return at.result

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


@prepared_once(1024)
def _prepared_for(
    options: MLAOptions,
    layout: SpanLayout,
    sizes: tuple[int, int, bool],
    specs: tuple[ArraySpec, ...],
) -> tuple[PreparedMLA | None, int, int, Callable[[int], tuple[Any, ...]]]:
    """Return the attention of a step with these specs, its slices, the stride of tables, and the
    allocator of its memory; no attention where the general kernels are to compute it.
    """
    heads, num_tokens, splits = sizes
    names = ("query_start_loc", "seq_lens", "span_tables", "table_rows")
    views = {name: view_at(spec) for name, spec in zip(names, specs, strict=True)}
    slices = check_step(**views)
    gpu = gpu_of(**views)
    stride = views["span_tables"].strides[0]
    if not takes(options, layout, gpu.arch) or not num_tokens or not slices:
        return None, slices, stride, allocator(specs[1], gpu)
    lines = num_tokens * heads
    division = divide(lines, slices, gpu.sm_count, splits=splits, widest=options.widest)
    prepared = kernels_for(options, layout, Heads(heads, splits), division, gpu.index)
    memory = memory_of(prepared, slices, lines, splits=splits)
    return prepared, slices, stride, allocator(specs[1], gpu, *memory)
