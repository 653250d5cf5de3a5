"""New keys and values into spans: head norm, rotary embedding and the write, in one kernel.

query[T H D], key[T K D] and value[T K E] of one element type, heads of a row contiguous, rows
strided; cosine[T R/2] and sine[T R/2] float32; slot[T] int32 (span * span_len + offset, negative
for padding rows). The cache has the same element type; quantised formats follow later.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import ml_dtypes
import numpy as np
from spaninfer_kernel_launch import (
    Array,
    Call,
    DTypeError,
    FileCache,
    Gpu,
    ShapeError,
    Source,
    Variant,
    View,
    check_dense,
    compile_variant,
    element_of,
    gpu_of,
    load,
    match,
    pointer_of,
    stream_handle,
    user_cache,
    view_of,
)

from span_attention.append.tuning import WARPS, launch
from span_attention.layout import Format, SpanLayout

SOURCE = Source(
    "span_attention", "append/kernel.cu", headers=("types.cuh", "math.cuh", "reduce.cuh")
)

_DTYPES = {
    Format.FLOAT32: np.float32,
    Format.FLOAT16: np.float16,
    Format.BFLOAT16: ml_dtypes.bfloat16,
}


@dataclass(frozen=True, slots=True)
class Form:
    """What happens on the way into the spans: a norm over each head, and which pairs rope turns."""

    head_norm: bool = False
    interleaved: bool = False


@dataclass(frozen=True, slots=True)
class Spans:
    """The spans of one layer: the memory of all of them, its layout, the number of the layer."""

    cache: object
    layout: SpanLayout
    layer: int = 0

    @property
    def places(self) -> tuple[int, int]:
        """Addresses of the first key and the first value of the layer."""
        base = pointer_of(self.cache) + self.layer * self.layout.layer_stride
        return base + self.layout.keys.offset, base + self.layout.values.offset


@dataclass(frozen=True, slots=True)
class Rotary:
    """The rotary embedding of each row: cosine[T R/2], sine[T R/2] float32; `len` is R."""

    cosine: object
    sine: object
    len: int
    interleaved: bool = False


@dataclass(frozen=True, slots=True)
class HeadNorm:
    """The RMS norm of each head: query_weight[D] and key_weight[D], and what keeps it finite."""

    query_weight: object
    key_weight: object
    eps: float


@dataclass(frozen=True, slots=True)
class Prepared:
    """An append of one size, compiled and loaded: `launch` passes pointers, and nothing else."""

    layout: SpanLayout
    rows: int
    heads: int
    workspace_bytes: int
    _row_strides: tuple[int, int, int]
    _call: Call | None

    def launch(
        self,
        query: object,
        key: object,
        value: object,
        slot: object,
        *,
        spans: Spans,
        rotary: Rotary,
        out: object,
        head_norm: HeadNorm | None = None,
        stream: object = None,
    ) -> None:
        """Write keys and values into the spans and the turned queries to `out`.

        Arrays may be given as addresses. Without a stream, the current one of query's framework.
        """
        self.start(
            *(stream_handle(stream, query), query, key, value, slot),
            *(spans, rotary, out, head_norm),
        )

    def start(
        self,
        handle: int,
        query: object,
        key: object,
        value: object,
        slot: object,
        spans: Spans,
        rotary: Rotary,
        out: object,
        head_norm: HeadNorm | None,
    ) -> None:
        """Do what `launch` does, on the stream with this handle, whichever it is."""
        if self._call is None:
            return
        norm = head_norm or HeadNorm(0, 0, 0.0)
        self._call(
            *(handle, pointer_of(out), *spans.places),
            *map(pointer_of, (query, key, value, rotary.cosine, rotary.sine, slot)),
            *(pointer_of(norm.query_weight), pointer_of(norm.key_weight), norm.eps),
            *(self.heads, self.layout.kv_heads, rotary.len, self.layout.span_len),
            *self._row_strides,
            *_strides(self.layout),
        )


def _strides(layout: SpanLayout) -> tuple[int, ...]:
    """Return the strides of keys and values from span to span, head, token, in elements."""
    strides = (
        *(layout.span_stride, layout.keys.head_stride, layout.keys.token_stride),
        *(layout.span_stride, layout.values.head_stride, layout.values.token_stride),
    )
    itemsize = layout.format.bits // 8
    assert not any(stride % itemsize for stride in strides), layout
    return tuple(stride // itemsize for stride in strides)


def variant_for(form: Form, layout: SpanLayout) -> Variant:
    """Return the variant that writes into spans of this layout.

    Raises DTypeError for formats that are not floats, ShapeError for odd head sizes.
    """
    if layout.format not in _DTYPES:
        raise DTypeError(f"append writes floats for now, not {layout.format.label}")
    if layout.key_size % 2:
        raise ShapeError(f"key_size is {layout.key_size}; rope turns pairs, so it must be even")
    element = element_of(_DTYPES[layout.format])
    macros: dict[str, str | int | bool] = {
        "T": element.name,
        "KEY_SIZE": layout.key_size,
        "VALUE_SIZE": 0 if layout.values == layout.keys else layout.value_size,
        "WARPS": WARPS,
        "HEAD_NORM": form.head_norm,
        "INTERLEAVED": form.interleaved,
    }
    return Variant.of("append_rows", SOURCE, macros, element.architectures)


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
    with_values = layout.values != layout.keys
    grid = launch(rows, heads, layout.kv_heads, with_values=with_values)
    parameters = "PPP PPP PPP PP f iiii qqq qqq qqq"
    kv_heads = layout.kv_heads
    dense = (heads * layout.key_size, kv_heads * layout.key_size, kv_heads * layout.value_size)
    return Prepared(
        *(layout, rows, heads),
        workspace_bytes=0,
        _row_strides=row_strides or dense,
        _call=Call(load(compiled, gpu), grid, parameters) if grid else None,
    )


_prepared = lru_cache(maxsize=1024)(prepare)


def append(
    query: object,
    key: object,
    value: object,
    slot: object,
    *,
    spans: Spans,
    rotary: Rotary,
    head_norm: HeadNorm | None = None,
    out: object = None,
    stream: object = None,
) -> object:
    """Return query[T H D] turned; write key[T K D] and value[T K E] where slot[T] says.

    `value` is None where values lie in the keys. Without `out`, the result is a new array in the
    order of the stream, which torch.from_dlpack and cupy.from_dlpack take. Without a stream, the
    current one of query's framework. That slots lie inside the cache is the caller's word: reading
    them would wait for the GPU.
    """
    layout = spans.layout
    views = _check(query, key, value, slot, rotary, head_norm, layout)
    rows, heads, _ = views["query"].shape
    gpu = gpu_of(**views, cache=view_of(spans.cache))
    handle = stream_handle(stream, query)
    form = Form(head_norm=head_norm is not None, interleaved=rotary.interleaved)
    values = views.get("value", views["key"])
    strides = (views["query"].strides[0], views["key"].strides[0], values.strides[0])
    step = _prepared(form, layout, rows=rows, heads=heads, gpu=gpu, row_strides=strides)
    if out is None:
        out = Array((rows, heads, layout.key_size), views["query"].dtype, gpu, handle)
    else:
        check_dense(views["query"].dtype, out=view_of(out))
        match(query=(views["query"], "T H D"), out=(view_of(out), "T H D"))
    step.start(
        *(handle, views["query"], views["key"], values, views["slot"]),
        *(spans, rotary, out, head_norm),
    )
    return out


def _check(
    query: object,
    key: object,
    value: object,
    slot: object,
    rotary: Rotary,
    head_norm: HeadNorm | None,
    layout: SpanLayout,
) -> dict[str, View]:
    """Return a view of each argument. Raises ShapeError or DTypeError where one does not fit."""
    axes = {
        "query": (query, f"T H {layout.key_size}"),
        "key": (key, f"T {layout.kv_heads} {layout.key_size}"),
        "slot": (slot, "T"),
        "cosine": (rotary.cosine, f"T {rotary.len // 2}"),
        "sine": (rotary.sine, f"T {rotary.len // 2}"),
    }
    if layout.values != layout.keys:
        axes["value"] = (value, f"T {layout.kv_heads} {layout.value_size}")
    if head_norm is not None:
        axes["query_weight"] = (head_norm.query_weight, f"{layout.key_size}")
        axes["key_weight"] = (head_norm.key_weight, f"{layout.key_size}")
    views = {name: view_of(array) for name, (array, _) in axes.items()}
    match(**{name: (view, axes[name][1]) for name, view in views.items()})
    if rotary.len % 2 or rotary.len > layout.key_size:
        raise ShapeError(f"rope turns {rotary.len} elements; even, at most {layout.key_size}")
    check_dense(np.int32, slot=views["slot"])
    check_dense(np.float32, cosine=views["cosine"], sine=views["sine"])
    for name in {"query", "key", "value", "query_weight", "key_weight"} & views.keys():
        _check_rows(name, views[name], _DTYPES[layout.format])
    return views


def _check_rows(name: str, view: View, dtype: object) -> None:
    """Raise unless the heads of a row lie one after another; rows may be apart."""
    row = View(view.pointer, view.shape[1:], view.strides[1:], view.dtype, view.device, view.owner)
    check_dense(dtype, **{name: row})


def _layout(format: Format, key_size: int, value_size: int, *, mla: bool = False) -> SpanLayout:
    return SpanLayout.contiguous(
        span_len=32,
        kv_heads=1,
        key_size=key_size,
        value_size=value_size,
        format=format,
        num_layers=1,
        values_in_keys=mla,
    )


VARIANTS: tuple[Variant, ...] = (
    variant_for(Form(), _layout(Format.FLOAT32, 64, 64)),
    variant_for(Form(interleaved=True), _layout(Format.FLOAT16, 96, 96)),
    variant_for(Form(head_norm=True), _layout(Format.BFLOAT16, 128, 128)),
    variant_for(Form(head_norm=True), _layout(Format.FLOAT16, 256, 256)),
    variant_for(Form(), _layout(Format.BFLOAT16, 192, 128)),
    variant_for(Form(interleaved=True), _layout(Format.BFLOAT16, 576, 512, mla=True)),
)
"""A cover: every element type, form and class of head size occurs."""
