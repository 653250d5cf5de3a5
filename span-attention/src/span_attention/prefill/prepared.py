"""A prefill, compiled and loaded: what plans a step, and what launches."""

from __future__ import annotations

from dataclasses import dataclass

from spaninfer_kernel_launch import (
    Call,
    FileCache,
    Gpu,
    Launch,
    ShapeError,
    compile_variant,
    load,
    pointer_of,
    stream_handle,
    user_cache,
)

from span_attention.layout import SpanLayout
from span_attention.lse import check_lse
from span_attention.prefill import general, hopper
from span_attention.prefill.arguments import Arguments
from span_attention.prefill.form import Form
from span_attention.prefill.tuning import heads_of_tile, plan_bytes
from span_attention.prefill.variants import PLAN
from span_attention.spans import Spans

_PLAN_LAUNCH = Launch((1, 1, 1), (1024, 1, 1))


@dataclass(frozen=True, slots=True)
class Prepared:
    """An attention of one layout, compiled and loaded: `launch` passes pointers, and nothing else.

    It serves steps of any size; `heads` is the number of query heads, `sm_count` that of the GPU's
    multiprocessors. Where bounds and lengths are made on the GPU, `num_rows` and `slices` may be
    upper bounds.
    """

    layout: SpanLayout
    heads: int
    sm_count: int
    _lse: bool
    _kernel: general.General | hopper.Hopper
    _plan: Call

    def plan_bytes(self, rows: int, slices: int) -> int:
        """Return the bytes of the plan of at most so many rows and slices."""
        ratio = self.heads // self.layout.kv_heads
        return plan_bytes(rows, slices, self._kernel.lines, ratio, self._kernel.most_sharers)

    @property
    def workspace_bytes(self) -> int:
        """Bytes of the workspace of any launch, 0 unless prepared with `splits`."""
        return self._kernel.workspace_bytes

    def plan(
        self,
        bounds: object,
        lengths: object,
        *,
        num_rows: int,
        slices: int,
        out: object,
        window: int = 0,
        stream: object = None,
    ) -> None:
        """Write to `out` (int32, aligned to 16 bytes) how the step is cut into tiles.

        Every launch for this step with the same `num_rows`, `slices` and `window` reads it. Tables
        and rows must be what they are when it is planned: launches read all three before they wait
        for the kernel in front. A slice of length 0 is padding, whose rows are left alone.
        """
        if not slices or not num_rows:
            return
        pack, sharers = self._pack(num_rows, slices), self._sharers(num_rows)
        self._plan(
            *(stream_handle(stream, bounds), pointer_of(out), pointer_of(bounds)),
            *(pointer_of(lengths), slices, self._kernel.lines // pack, self._kernel.block),
            *(window, self.heads // pack, sharers),
        )

    def launch(
        self,
        query: object,
        tables: object,
        rows: object,
        plan: object,
        *,
        num_rows: int,
        slices: int,
        table_len: int,
        spans: Spans,
        out: object,
        scale: float,
        softcap: float = 0.0,
        window: int = 0,
        alibi: object = 0,
        sinks: object = 0,
        workspace: object = 0,
        lse: object = 0,
        query_stride: int | None = None,
        stream: object = None,
    ) -> None:
        """Write the attention of query[T H D] to out[T H E]; rows of no slice are left alone.

        `num_rows` is T, `slices` R. `table_len` and `query_stride` count elements from row to row
        of tables and query (dense unless given). Softcap 0 caps nothing, window 0 is none. alibi[H]
        are slopes, sinks[H] scores of a key without value that every row sees; float32, 0 where
        there are none. lse[T H], float32, is written too where Form.lse says so: raises ShapeError
        where it is missing, or given without that. Arrays may be given as addresses. Without a
        stream, the current one of query's framework. Launches that share a plan or a workspace come
        one after another.
        """
        if not slices or not num_rows:
            return
        check_lse(lse, self._lse)
        addresses = tuple(map(pointer_of, (tables, rows, plan)))
        given = Arguments(
            pointer_of(out),
            pointer_of(query),
            query_stride or self.heads * self.layout.key_size,
            num_rows,
            addresses,
            slices,
            self._pack(num_rows, slices),
            self._sharers(num_rows),
            table_len,
            spans,
            (scale, softcap, window),
            *map(pointer_of, (workspace, alibi, sinks, lse)),
        )
        self._kernel.start(stream_handle(stream, query), given)

    def _pack(self, num_rows: int, slices: int) -> int:
        """Return how many heads share a tile."""
        return heads_of_tile(
            *(self.heads // self.layout.kv_heads, self._kernel.lines),
            rows=num_rows,
            slices=slices,
            kv_heads=self.layout.kv_heads,
            sm_count=self.sm_count,
            splits=self._sharers(num_rows) > 0,
        )

    def _sharers(self, num_rows: int) -> int:
        """Return how many thread blocks may share tasks: 0 where tasks are more than half as many.

        A task has at most a tile full of lines.
        """
        few = 2 * num_rows * self.heads <= self._kernel.most_sharers * self._kernel.lines
        return self._kernel.most_sharers if few else 0


def prepare(
    form: Form,
    layout: SpanLayout,
    *,
    heads: int,
    gpu: Gpu,
    splits: bool = False,
    cache: FileCache | None = None,
) -> Prepared:
    """Return the attention of `heads` query heads over such spans on `gpu`, compiled or cached.

    With `splits`, few rows of a long context are shared among all multiprocessors where the kernel
    can; a row's last bits then depend on what else is in the step, and otherwise do not. Raises
    ShapeError or DTypeError for what no variant takes.
    """
    if heads < 1 or heads % layout.kv_heads:
        raise ShapeError(f"{heads} query heads are not a multiple of {layout.kv_heads} key heads")
    given = (form, layout, heads, gpu, cache or user_cache())
    kernel = hopper.prepare(*given, splits=splits) or general.prepare(*given)
    plan = compile_variant(PLAN, gpu.arch, cache or user_cache())
    call = Call(load(plan, gpu), _PLAN_LAUNCH, "PPP iii iii")
    return Prepared(layout, heads, gpu.sm_count, form.lse, kernel, call)
