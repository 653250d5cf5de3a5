"""New keys and values into spans: head norm, rotary embedding and the write, in one kernel.

query[T H D], key[T K D] and value[T K E] of one element type, heads of a row contiguous, rows
strided, each beginning at a multiple of 16 bytes; cosine[T R/2] and sine[T R/2] float32; slot[T]
int32 (span * span_len + offset, negative for padding rows). The spans hold the same element type,
or codes, which are made of what norm and rotary embedding give before it is rounded (quantize.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from spaninfer_kernel_launch import (
    Call,
    FileCache,
    Gpu,
    ShapeError,
    compile_variant,
    divide_head,
    gpu_of,
    load,
    pointer_of,
    result_array,
    stream_handle,
    user_cache,
    view_of,
)

from span_attention.append.arguments import ALIGNMENT, HeadNorm, Rotary, check
from span_attention.append.tuning import launch
from span_attention.append.variant import VARIANTS, Form, element_for, rotary_len, variant_for
from span_attention.layout import ArrayStrides, SpanLayout
from span_attention.spans import Spans

__all__ = ["VARIANTS", "Form", "HeadNorm", "Prepared", "Rotary", "append", "prepare", "variant_for"]


@dataclass(frozen=True, slots=True)
class Prepared:
    """An append of one size, compiled and loaded: `launch` passes pointers, and nothing else."""

    layout: SpanLayout
    rows: int
    heads: int
    rotary_len: int
    workspace_bytes: int
    _call: Call | None

    def launch(
        self,
        query: object,
        key: object,
        value: object,
        slot: object,
        *,
        spans: Spans,
        out: object,
        rotary: Rotary | None = None,
        head_norm: HeadNorm | None = None,
        stream: object = None,
    ) -> None:
        """Write keys and values into the spans and the rotated queries to `out`.

        Arrays may be given as addresses. Without a stream, the current one of query's framework.
        """
        self.start(
            *(stream_handle(stream, query), query, key, value, slot),
            *(spans, out, rotary, head_norm),
        )

    def start(
        self,
        handle: int,
        query: object,
        key: object,
        value: object,
        slot: object,
        spans: Spans,
        out: object,
        rotary: Rotary | None,
        head_norm: HeadNorm | None,
    ) -> None:
        """Do what `launch` does, on the stream with this handle, whichever it is."""
        rotated = rotary or _NO_ROTARY
        if rotated.len != self.rotary_len:
            raise ShapeError(
                f"rope rotates {rotated.len} elements, but this append was prepared for "
                f"{self.rotary_len}; Form(rotary_len=...) says how many"
            )
        if self._call is None:
            return
        norm = head_norm or _NO_NORM
        self._call(
            *(handle, pointer_of(out), *spans.places, *spans.scale_places),
            *map(pointer_of, (query, key, value, rotated.cosine, rotated.sine, slot)),
            *(pointer_of(norm.query_weight), pointer_of(norm.key_weight)),
            *(norm.eps, norm.weight_offset),
        )


_NO_ROTARY = Rotary(0, 0, len=0)
_NO_NORM = HeadNorm(0, 0, eps=0.0)
_PARAMETERS = "PPPPP PPP PPP PP ff iii qqq qqq qqq qqqqq"


def _strides(layout: SpanLayout) -> tuple[int, ...]:
    """Return the strides of keys and values from span to span, head, token; then of the scales.

    Those of codes count bytes, others elements; scales share their stride from span to span.
    """
    code_bytes = max(layout.format.bits // 8, 1)
    keys, values = layout.key_scales or _NOWHERE, layout.value_scales or _NOWHERE
    strides = (
        *_in_units(code_bytes, layout.span_stride, layout.keys),
        *_in_units(code_bytes, layout.span_stride, layout.values),
        *_in_units(_SCALE_BYTES, layout.span_stride, keys),
        *_in_units(_SCALE_BYTES, layout.span_stride, values)[1:],
    )
    return strides


_NOWHERE = ArrayStrides(0, 0, 0)
_SCALE_BYTES = 4


def _in_units(itemsize: int, span_stride: int, place: ArrayStrides) -> tuple[int, int, int]:
    strides = (span_stride, place.head_stride, place.token_stride)
    assert not any(stride % itemsize for stride in strides), (place, itemsize)
    span, head, token = (stride // itemsize for stride in strides)
    return span, head, token


def prepare(
    form: Form,
    layout: SpanLayout,
    *,
    rows: int,
    heads: int,
    gpu: Gpu,
    row_strides: tuple[int, int, int] | None = None,
    cache: FileCache | None = None,
) -> Prepared:
    """Return the append of `rows` tokens with `heads` query heads on `gpu`, compiled or cached.

    `row_strides` count elements from one row of query, key and value to the next; contiguous rows
    unless given. Raises ShapeError or DTypeError for what no variant takes.
    """
    if heads < 1 or heads % layout.kv_heads:
        raise ShapeError(f"{heads} query heads are not a multiple of {layout.kv_heads} key heads")
    compiled = compile_variant(variant_for(form, layout), gpu.arch, cache or user_cache())
    rotated, kv_heads = rotary_len(form, layout), layout.kv_heads
    division = divide_head(element_for(form, layout).itemsize, layout.key_size, rotated)
    tasks = heads + kv_heads * (1 if layout.values == layout.keys else 2)
    grid = launch(rows, tasks, division.lanes, gpu.sm_count)
    dense = (heads * layout.key_size, kv_heads * layout.key_size, kv_heads * layout.value_size)
    sizes = (heads, kv_heads, layout.span_len, *(row_strides or dense), *_strides(layout))
    call = Call(load(compiled, gpu), grid, _PARAMETERS, always=sizes) if grid else None
    return Prepared(layout, rows, heads, rotated, workspace_bytes=0, _call=call)


_prepared = lru_cache(maxsize=1024)(prepare)


def append(
    query: object,
    key: object,
    value: object,
    slot: object,
    *,
    spans: Spans,
    rotary: Rotary | None = None,
    head_norm: HeadNorm | None = None,
    out: object = None,
    stream: object = None,
) -> object:
    """Return query[T H D] rotated; write key[T K D] and value[T K E] where slot[T] says.

    `value` is None where values lie in the keys. Without `out`, the result is a new array in the
    order of the stream, which torch.from_dlpack and cupy.from_dlpack take. Without a stream, the
    current one of query's framework. That slots lie inside the cache is the caller's word: reading
    them would wait for the GPU.
    """
    layout = spans.layout
    views = check(query, key, value, slot, rotary, head_norm, layout)
    rows, heads, _ = views["query"].shape
    gpu = gpu_of(**views, cache=view_of(spans.cache))
    handle = stream_handle(stream, query)
    rotated, dtype = rotary or _NO_ROTARY, views["query"].dtype
    form = Form(head_norm is not None, rotated.interleaved, rotated.len, dtype)
    values = views.get("value", views["key"])
    strides = (views["query"].strides[0], views["key"].strides[0], values.strides[0])
    step = _prepared(form, layout, rows=rows, heads=heads, gpu=gpu, row_strides=strides)
    shape = (rows, heads, layout.key_size)
    out = result_array(out, shape, dtype, gpu, handle, alignment=ALIGNMENT)
    step.start(
        *(handle, views["query"], views["key"], values, views["slot"]),
        *(spans, out, rotary, head_norm),
    )
    return out
