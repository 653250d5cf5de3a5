"""A decode, compiled and loaded for so many requests: what plans a step, and what launches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from spaninfer_kernel_launch import (
    Call,
    FileCache,
    Gpu,
    Launch,
    ShapeError,
    blocks_at_once,
    compile_variant,
    load,
    pointer_of,
    stream_handle,
    user_cache,
)

from span_attention.decode import tuning as sizes
from span_attention.decode.tuning import PLAN_THREADS, Tuning, tune
from span_attention.decode.variant import PLAN, Form, variant_for
from span_attention.layout import SpanLayout
from span_attention.lse import check_lse
from span_attention.spans import Spans

_ROW_BYTES: Final = 16  # what a lane loads of a query at once


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
    _lse: bool
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
            *(self.requests, items, window, self.tuning.tile_tokens),
            *(self._blocks * self.tuning.warps, self._blocks),
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
        lse: object = 0,
        query_stride: int | None = None,
        stream: object = None,
    ) -> None:
        """Write what each query of query[R H D] reads to out[R H E].

        Arrays may be given as addresses; `rows` may be 0: request r then has row r of the tables.
        `plan` is of the same lengths and window; `table_stride` and `query_stride` count elements
        from row to row. alibi[H] and sinks[H] are float32: slopes, and logits that take part in the
        softmax without a value. lse[R H], float32, is written too where Form.lse says so. Without a
        stream, the current one of query's framework.

        Rows of queries begin at multiples of 16 bytes; raises ShapeError for others, and for an lse
        that is missing, or that the kernel does not write.
        """
        check_lse(lse, self._lse)
        stride = query_stride or self.heads * self.layout.key_size
        if (pointer_of(query) | 2 * stride) % _ROW_BYTES:
            raise ShapeError(
                f"rows of {stride} queries from {pointer_of(query):#x} on; decode reads rows that "
                f"begin at multiples of {_ROW_BYTES} bytes"
            )
        self.start(
            stream_handle(stream, query),
            (out, query, tables, rows, lengths, plan, workspace),
            spans=spans,
            alibi=alibi,
            sinks=sinks,
            lse=lse,
            scale=scale,
            softcap=softcap,
            window=window,
            strides=(table_stride, stride),
        )

    def start(
        self,
        handle: int,
        arrays: tuple[object, ...],
        *,
        spans: Spans,
        alibi: object,
        sinks: object,
        lse: object,
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
            *(scale, softcap, window),
            *(self.requests, self.heads // layout.kv_heads, layout.kv_heads),
            *(layout.span_len.bit_length() - 1, *strides, layout.span_stride),
            *(place.head_stride if place else 0 for place in sizes.places(layout)),
            pointer_of(lse),
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
    tuning = tuning or tune(layout, heads, requests)
    variant = variant_for(form, layout, tuning)
    kept = cache or user_cache()
    blocks, plan, attend = 0, None, None
    if requests:
        planner = load(compile_variant(PLAN, gpu.arch, kept), gpu)
        once = Launch((1, 1, 1), (PLAN_THREADS, 1, 1), overlaps=True)
        plan = Call(planner, once, "PP iiiiii")
        kernel = load(compile_variant(variant, gpu.arch, kept), gpu)
        block = (32 * tuning.warps, 1, 1)
        blocks = blocks_at_once(kernel, Launch((1, 1, 1), block))
        grid = Launch((blocks, 1, 1), block, overlaps=True)
        attend = Call(kernel, grid, "PPPPPPP PPPP PP ff iiiii qq IIIII P")
    return Prepared(
        *(layout, requests, heads, tuning),
        plan_bytes=sizes.plan_bytes(requests, tuning, blocks),
        workspace_bytes=sizes.workspace_bytes(layout, tuning, blocks),
        _lse=form.lse,
        _blocks=blocks,
        _plan=plan,
        _attend=attend,
    )
