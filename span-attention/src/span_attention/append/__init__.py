"""Append of new keys and values to spans: head norm, rotary embedding, write in one kernel.

query[T H D], key[T K D] and value[T K E] of one element type, heads of a row contiguous, rows
strided, each beginning at a multiple of 16 bytes; cosine[T R/2] and sine[T R/2] float32;
slot_mapping[T] int32 (span * span_len + offset, negative for padding rows). The spans hold the same
element type, or codes, which are quantised from the unrounded results of norm and rotary embedding
(quantize.py).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from spaninfer_kernel_launch import (
    ArraySpec,
    Call,
    FileCache,
    Gpu,
    Interned,
    NamedCalls,
    Operator,
    ShapeError,
    Step,
    compile_variant,
    divide_head,
    gpu_of,
    load,
    new_results,
    pointer_of,
    renamed,
    stream_handle,
    user_cache,
    view_at,
)

from span_attention.append.arguments import ALIGNMENT, HeadNorm, Rotary, check
from span_attention.append.signature import APPEND_ROWS, AppendArguments, AppendSizes
from span_attention.append.tuning import launch
from span_attention.append.variant import (
    VARIANTS,
    AppendOptions,
    element_for,
    rotary_len,
    variant_for,
)
from span_attention.layout import ArrayStrides, SpanLayout
from span_attention.spans import Spans

__all__ = [
    "VARIANTS",
    "AppendOptions",
    "HeadNorm",
    "PreparedAppend",
    "Rotary",
    "append",
    "prepare",
    "variant_for",
]


@dataclass(frozen=True, slots=True)
class PreparedAppend:
    """An append of one size."""

    layout: SpanLayout
    rows: int
    heads: int
    rotary_len: int
    workspace_bytes: int
    call: Call[AppendArguments] | None

    def launch(
        self,
        query: object,
        key: object,
        value: object,
        slot_mapping: object,
        *,
        spans: Spans,
        out: object,
        rotary: Rotary | None = None,
        head_norm: HeadNorm | None = None,
        stream: object = None,
    ) -> None:
        """Write keys and values into the spans and the rotated queries to `out`."""
        rotated, norm = rotary or _NO_ROTARY, head_norm or _NO_NORM
        if rotated.len != self.rotary_len:
            raise ShapeError(
                f"rope rotates {rotated.len} elements, but this append was prepared for "
                f"{self.rotary_len}; AppendOptions(rotary_len=...) says how many"
            )
        arrays = (
            *(query, key, value, slot_mapping, rotated.cosine, rotated.sine),
            *(norm.query_weight, norm.key_weight, out),
        )
        handle = stream_handle(stream, query)
        self.start(handle, _arguments(map(pointer_of, arrays), spans, norm))

    def start(self, handle: int, arguments: AppendArguments) -> None:
        """Launch on the stream with this handle, the default stream included."""
        if self.call is not None:
            self.call(handle, arguments)


def _arguments(addresses: Iterable[int], spans: Spans, norm: HeadNorm) -> AppendArguments:
    """Return the kernel's arguments; addresses of arrays as in `_NAMES`, then of the result."""
    query, key, value, slots, cosine, sine, query_weight, key_weight, out = addresses
    (keys, values), (key_scales, value_scales) = spans.places, spans.scale_places
    written = out, keys, values, key_scales, value_scales
    read = query, key, value, cosine, sine, slots, query_weight, key_weight
    return AppendArguments._make((*written, *read, norm.eps, norm.weight_offset))


_NO_ROTARY = Rotary(None, None, len=0)
_NO_NORM = HeadNorm(None, None, eps=0.0)


def _sizes(layout: SpanLayout, heads: int, row_strides: tuple[int, int, int]) -> AppendSizes:
    code_bytes = max(layout.format.bits // 8, 1)
    key_span, key_head, key_token = _in_units(code_bytes, layout, layout.keys)
    value_span, value_head, value_token = _in_units(code_bytes, layout, layout.values)
    scales_span, key_scales_head, key_scales_token = _in_units(
        _SCALE_BYTES, layout, layout.key_scales or _NOWHERE
    )
    _, value_scales_head, value_scales_token = _in_units(
        _SCALE_BYTES, layout, layout.value_scales or _NOWHERE
    )
    query_stride, key_stride, value_stride = row_strides
    return AppendSizes(
        heads=heads,
        kv_heads=layout.kv_heads,
        span_len=layout.span_len,
        query_stride=query_stride,
        key_stride=key_stride,
        value_stride=value_stride,
        key_span=key_span,
        key_head=key_head,
        key_token=key_token,
        value_span=value_span,
        value_head=value_head,
        value_token=value_token,
        scales_span=scales_span,
        key_scales_head=key_scales_head,
        key_scales_token=key_scales_token,
        value_scales_head=value_scales_head,
        value_scales_token=value_scales_token,
    )


_NOWHERE = ArrayStrides(0, 0, 0)
_SCALE_BYTES = 4


def _in_units(itemsize: int, layout: SpanLayout, place: ArrayStrides) -> tuple[int, int, int]:
    """Return the strides from span to span, head, token in items of that many bytes."""
    strides = (layout.span_stride, place.head_stride, place.token_stride)
    assert not any(stride % itemsize for stride in strides), (place, itemsize)
    span, head, token = (stride // itemsize for stride in strides)
    return span, head, token


def prepare(
    options: AppendOptions,
    layout: SpanLayout,
    *,
    rows: int,
    heads: int,
    gpu: Gpu,
    row_strides: tuple[int, int, int] | None = None,
    cache: FileCache | None = None,
) -> PreparedAppend:
    """Return the append of `rows` tokens with `heads` query heads on `gpu`, compiled or cached.

    `row_strides` count elements from one row of query, key and value to the next; contiguous rows
    unless given. Raises ShapeError or DTypeError for unsupported sizes or types.
    """
    if heads < 1 or heads % layout.kv_heads:
        raise ShapeError(f"{heads} query heads are not a multiple of {layout.kv_heads} key heads")
    compiled = compile_variant(variant_for(options, layout), gpu.arch, cache or user_cache())
    rotated, kv_heads = rotary_len(options, layout), layout.kv_heads
    division = divide_head(element_for(options, layout).itemsize, layout.key_size, rotated)
    tasks = heads + kv_heads * (1 if layout.values == layout.keys else 2)
    grid = launch(rows, tasks, division.lanes, gpu.sm_count)
    dense = (heads * layout.key_size, kv_heads * layout.key_size, kv_heads * layout.value_size)
    sizes = _sizes(layout, heads, row_strides or dense)
    call = Call(load(compiled, gpu, APPEND_ROWS), grid, sizes) if grid else None
    return PreparedAppend(layout, rows, heads, rotated, workspace_bytes=0, call=call)


def append(
    query: object,
    key: object,
    value: object,
    slot_mapping: object,
    *,
    spans: Spans,
    rotary: Rotary | None = None,
    head_norm: HeadNorm | None = None,
    out: object = None,
    stream: object = None,
) -> object:
    """Return query[T H D] rotated; write key[T K D] and value[T K E] where slot_mapping[T] says.

    `value` is None where values lie in the keys. Without `out`, the result is a new array. That
    slots lie inside the cache is not checked, since reading them would wait for the GPU; the caller
    must ensure it. Raises ShapeError, DTypeError or DeviceError for arguments that do not fit.
    """
    rotated, norm = rotary or _NO_ROTARY, head_norm or _NO_NORM
    arrays = (
        *(query, key, value, slot_mapping, rotated.cosine, rotated.sine),
        *(norm.query_weight, norm.key_weight, out),
    )
    options = spans.interned_layout, rotated.len, rotated.interleaved, spans.interned_spec
    numbers = *spans.places, *spans.scale_places, norm.eps, norm.weight_offset
    new = _append.start(options, arrays, numbers, stream)
    return new[0] if out is None else out


def _prepare_call(
    options: tuple[Interned[SpanLayout], int, bool, Interned[ArraySpec]],
    given: dict[str, ArraySpec],
) -> Step:
    """Return the append of arrays with these specs.

    Options are the layout, how many elements are rotated and if interleaved, the cache's spec.
    """
    interned_layout, length, interleaved, cache = options
    layout = interned_layout.value
    views = check({name: view_at(given[name]) for name in given if name != "out"}, layout, length)
    num_rows, heads, _ = views["query"].shape
    gpu = gpu_of(**views, cache=view_at(cache.value))
    asked = AppendOptions("query_weight" in views, interleaved, length, views["query"].dtype)
    values = views.get("value", views["key"])
    strides = (views["query"].strides[0], views["key"].strides[0], values.strides[0])
    step = prepare(asked, layout, rows=num_rows, heads=heads, gpu=gpu, row_strides=strides)
    result = ("out", (num_rows, heads, layout.key_size), views["query"].dtype, ALIGNMENT)
    calls = ((step.call, {"query_out": "out"}),) if step.call else ()
    return Step(gpu, NamedCalls(calls), new_results(given, gpu, result))


_append = Operator(
    "query key value slot_mapping cosine sine query_weight key_weight out",
    _prepare_call,
    numbers="keys values key_scales value_scales eps weight_offset",
)

__getattr__ = renamed(__name__, Form=("AppendOptions", AppendOptions))
