"""Causal attention of new rows over keys and values in spans: prompts, chunks, single rows.

A step has R slices: slice r is the rows bounds[r] .. bounds[r + 1] of query[T H D], the last of
lengths[r] positions; its keys and values, its own rows' included, lie in the spans that row rows[r]
of tables[N M] names. rows[R], bounds[R + 1], lengths[R] and tables are int32 on the device: nothing
of them is read on the host, so that launches follow whatever the device makes of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from spaninfer_kernel_launch import (
    Array,
    Call,
    FileCache,
    Gpu,
    Launch,
    ShapeError,
    View,
    check_dense,
    check_rows,
    compile_variant,
    gpu_of,
    load,
    match,
    pointer_of,
    result_array,
    stream_handle,
    user_cache,
    view_of,
)

from span_attention.layout import SpanLayout
from span_attention.prefill import general, hopper
from span_attention.prefill.arguments import Arguments
from span_attention.prefill.form import Form
from span_attention.prefill.tuning import heads_of_tile, plan_bytes
from span_attention.prefill.variants import PLAN, VARIANTS
from span_attention.spans import Spans

__all__ = ["VARIANTS", "Form", "Prepared", "prefill", "prepare"]

_PLAN_LAUNCH = Launch((1, 1, 1), (1024, 1, 1))
_ROW_BYTES = 16  # what is read of a query, or written of a result, at once


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
        query_stride: int | None = None,
        stream: object = None,
    ) -> None:
        """Write the attention of query[T H D] to out[T H E]; rows of no slice are left alone.

        `num_rows` is T, `slices` R. `table_len` and `query_stride` count elements from row to row
        of tables and query (dense unless given). Softcap 0 caps nothing, window 0 is none. alibi[H]
        are slopes, sinks[H] scores of a key without value that every row sees; float32, 0 where
        there are none. Arrays may be given as addresses. Without a stream, the current one of
        query's framework. Launches that share a plan or a workspace come one after another.
        """
        if not slices or not num_rows:
            return
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
            *map(pointer_of, (workspace, alibi, sinks)),
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
    return Prepared(layout, heads, gpu.sm_count, kernel, call)


_prepared = lru_cache(maxsize=256)(prepare)


def prefill(
    query: object,
    tables: object,
    rows: object,
    bounds: object,
    lengths: object,
    *,
    spans: Spans,
    scale: float,
    softcap: float = 0.0,
    window: int = 0,
    alibi: object = None,
    sinks: object = None,
    splits: bool = False,
    out: object = None,
    stream: object = None,
) -> object:
    """Return the attention of query[T H D] as [T H E]; rows outside of the slices are not written.

    `scale`, `softcap`, `window`, `alibi` and `sinks` as in `Prepared.launch`, `splits` as in
    `prepare`. Without `out`, the result is a new array in the order of the stream, which
    torch.from_dlpack and cupy.from_dlpack take. Without a stream, the current one of query's
    framework. That the numbers in tables, rows, bounds and lengths fit together is the caller's
    word: reading them would wait for the GPU.
    """
    layout = spans.layout
    views = _check(query, tables, rows, bounds, lengths, alibi, sinks, layout)
    num_rows, heads, _ = views["query"].shape
    slices = views["rows"].shape[0]
    gpu = gpu_of(**views, cache=view_of(spans.cache))
    handle = stream_handle(stream, query)
    dtype = views["query"].dtype
    step = _prepared(Form(dtype.name), layout, heads=heads, gpu=gpu, splits=splits)
    shape = (num_rows, heads, layout.value_size)
    out = result_array(out, shape, dtype, gpu, handle, alignment=_ROW_BYTES)
    workspace = Array((step.workspace_bytes,), "uint8", gpu, handle)
    plan = Array((step.plan_bytes(num_rows, slices) // 4,), "int32", gpu, handle)
    sizes = {"num_rows": num_rows, "slices": slices, "window": window}
    step.plan(bounds, lengths, **sizes, out=plan, stream=stream)
    step.launch(
        *(query, tables, rows, plan),
        **sizes,
        table_len=views["tables"].strides[0],
        spans=spans,
        out=out,
        scale=scale,
        softcap=softcap,
        alibi=views.get("alibi", 0),
        sinks=views.get("sinks", 0),
        workspace=workspace,
        query_stride=views["query"].strides[0],
        stream=stream,
    )
    return out


def _check(
    query: object,
    tables: object,
    rows: object,
    bounds: object,
    lengths: object,
    alibi: object,
    sinks: object,
    layout: SpanLayout,
) -> dict[str, View]:
    """Return a view of each argument. Raises ShapeError or DTypeError where one does not fit."""
    views = {
        "query": view_of(query),
        "tables": view_of(tables),
        "rows": view_of(rows),
        "bounds": view_of(bounds),
        "lengths": view_of(lengths),
        **({} if alibi is None else {"alibi": view_of(alibi)}),
        **({} if sinks is None else {"sinks": view_of(sinks)}),
    }
    slices = views["rows"].shape[0]
    axes = {"query": f"T H {layout.key_size}", "tables": "N M", "rows": "R", "lengths": "R"}
    axes |= {"bounds": str(slices + 1), "alibi": "H", "sinks": "H"}
    match(**{name: (view, axes[name]) for name, view in views.items()})
    floats = {name: view for name, view in views.items() if name in ("alibi", "sinks")}
    dense = {name: views[name] for name in ("rows", "bounds", "lengths")}
    check_dense("int32", **dense)
    check_dense("float32", **floats)
    check_rows("int32", 4, tables=views["tables"])
    check_rows(views["query"].dtype, _ROW_BYTES, query=views["query"])
    return views
