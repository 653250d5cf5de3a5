"""The memory layout of spans: sizes, strides, bytes. Pure.

A span holds `span_len` tokens of every layer of a cache group. Its default form is one contiguous
block, so that a span travels to host memory or disk as one copy:

    span      layer 0 | layer 1 | …
    layer     key codes [K L D] | value codes [K L E] | key scales [K L P] | value scales [K L P]

with K heads, L tokens, D and E elements per head, and P float32 numbers per token and head (0 for
floats; 1 for fp8, the scale; 2 for int8 and uint4, zero point and scale: see quantize.py). A head's
tokens lie together, because attention reads them together. All strides are free: any other order is
a `SpanLayout` too.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final, Literal

from spaninfer_kernel_launch import ShapeError

_ALIGNMENT: Final = 16  # bytes: one thread's load, and the least alignment of TMA
_SCALE_BYTES: Final = 4


class Format(Enum):
    """The format of stored keys and values: bits of an element, float32 scales per head."""

    FLOAT32 = ("float32", 32, 0)
    FLOAT16 = ("float16", 16, 0)
    BFLOAT16 = ("bfloat16", 16, 0)
    FP8 = ("fp8", 8, 1)
    INT8 = ("int8", 8, 2)
    UINT4 = ("uint4", 4, 2)

    def __init__(self, label: str, bits: int, num_scales: int) -> None:
        self.label = label
        self.bits = bits
        self.num_scales = num_scales


@dataclass(frozen=True, slots=True)
class ArrayStrides:
    """Strides of an array of a layer in its span: first byte, bytes to the next head, token.

    The elements of one token and head are contiguous.
    """

    offset: int
    head_stride: int
    token_stride: int


@dataclass(frozen=True, slots=True)
class SpanLayout:
    """Sizes and strides of the spans of one cache group, in bytes.

    Token t, head h of span s, layer n begins `place.offset + s * span_stride + n * layer_stride + h
    * place.head_stride + t * place.token_stride` bytes into the cache. Where values are the first
    elements of the keys (MLA), `values` equals `keys`.
    """

    span_len: int
    kv_heads: int
    key_size: int
    value_size: int
    format: Format
    num_layers: int
    span_stride: int
    layer_stride: int
    keys: ArrayStrides
    values: ArrayStrides
    key_scales: ArrayStrides | None
    value_scales: ArrayStrides | None

    def __hash__(self) -> int:
        """Return a hash of some sizes: all of them take 3 µs."""
        return hash(
            (self.span_len, self.kv_heads, self.key_size, self.value_size, self.span_stride)
        )

    @classmethod
    def contiguous(
        cls,
        *,
        span_len: int,
        kv_heads: int,
        key_size: int,
        value_size: int,
        format: Format,
        num_layers: int,
        values_in_keys: bool = False,
    ) -> SpanLayout:
        """Return the layout of the module's docstring: a span is one block without gaps.

        With `values_in_keys`, values take no memory of their own. Raises ShapeError for sizes that
        16-byte loads cannot read.
        """
        _check(span_len, kv_heads, num_layers)
        key_bytes = _bytes_per_head("key_size", key_size, format)
        value_bytes = _bytes_per_head("value_size", value_size, format)
        if values_in_keys and value_size > key_size:
            raise ShapeError(f"value_size {value_size} does not fit into key_size {key_size}")
        scale_bytes = format.num_scales * _SCALE_BYTES
        per_token = (key_bytes, 0 if values_in_keys else value_bytes, scale_bytes)
        ends = [0]
        for size in (*per_token, 0 if values_in_keys else scale_bytes):
            ends.append(ends[-1] + kv_heads * span_len * size)

        def place(offset: int, size: int) -> ArrayStrides:
            return ArrayStrides(offset, head_stride=span_len * size, token_stride=size)

        keys = place(0, key_bytes)
        values = keys if values_in_keys else place(ends[1], value_bytes)
        key_scales = place(ends[2], scale_bytes) if scale_bytes else None
        own_scales = place(ends[3], scale_bytes) if scale_bytes else None
        return cls(
            span_len,
            kv_heads,
            key_size,
            value_size,
            format,
            num_layers,
            span_stride=num_layers * ends[-1],
            layer_stride=ends[-1],
            keys=keys,
            values=values,
            key_scales=key_scales,
            value_scales=key_scales if values_in_keys else own_scales,
        )

    @classmethod
    def paged(
        cls,
        *,
        page_size: int,
        kv_heads: int,
        head_size: int,
        format: Format,
        order: Literal["NHD", "HND"] = "NHD",
    ) -> SpanLayout:
        """Return the layout of one layer's paged KV cache, as FlashInfer allocates it.

        "NHD" is an array [pages, 2, page_size, kv_heads, head_size], keys then values; "HND" is
        [pages, 2, kv_heads, page_size, head_size]. Layers are arrays of their own: the spans of a
        layer are `Spans(array, layout)`. Raises ShapeError for sizes that 16-byte loads cannot
        read, and for formats with scales, which such an array does not hold.
        """
        _check(page_size, kv_heads, num_layers=1)
        if format.num_scales:
            raise ShapeError(
                f"{format.label} needs scales, which a paged array does not hold; use a float "
                "format, or SpanLayout.contiguous"
            )
        head_bytes = _bytes_per_head("head_size", head_size, format)
        half = page_size * kv_heads * head_bytes
        head_stride, token_stride = {
            "NHD": (head_bytes, kv_heads * head_bytes),
            "HND": (page_size * head_bytes, head_bytes),
        }[order]
        return cls(
            page_size,
            kv_heads,
            head_size,
            head_size,
            format,
            num_layers=1,
            span_stride=2 * half,
            layer_stride=2 * half,
            keys=ArrayStrides(0, head_stride, token_stride),
            values=ArrayStrides(half, head_stride, token_stride),
            key_scales=None,
            value_scales=None,
        )

    @property
    def span_bytes(self) -> int:
        """Bytes that one span takes in the cache, of all layers."""
        return self.num_layers * self.layer_bytes

    @property
    def layer_bytes(self) -> int:
        """Bytes of codes and scales of one layer of a span."""
        parts = [(self.keys, self.key_size), (self.values, self.value_size)]
        codes = sum(size * self.format.bits // 8 for _, size in parts[: self._num_arrays])
        scales = self._num_arrays * self.format.num_scales * _SCALE_BYTES
        return self.span_len * self.kv_heads * (codes + scales)

    @property
    def _num_arrays(self) -> int:
        """2 for keys and values, 1 where the values lie in the keys."""
        return 1 if self.values == self.keys else 2


def _check(span_len: int, kv_heads: int, num_layers: int) -> None:
    for name, size in (("kv_heads", kv_heads), ("num_layers", num_layers)):
        if size < 1:
            raise ShapeError(f"{name} is {size}; at least 1")
    if span_len < 16 or span_len & (span_len - 1):
        raise ShapeError(f"span_len is {span_len}; a power of two of at least 16")


def _bytes_per_head(name: str, size: int, format: Format) -> int:
    """Return the bytes of `size` elements, which must be a positive multiple of 16."""
    num_bytes, rest = divmod(size * format.bits, 8)
    if size < 1 or rest or num_bytes % _ALIGNMENT:
        raise ShapeError(
            f"{name} {size} takes {size * format.bits / 8:g} bytes as {format.label}; "
            f"a multiple of {_ALIGNMENT} is needed"
        )
    return num_bytes
