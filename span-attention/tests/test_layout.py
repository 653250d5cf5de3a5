"""Sizes and offsets of spans."""

from dataclasses import replace

import numpy as np
import pytest
from span_attention import ArrayStrides, Format, SpanLayout
from spaninfer_kernel_launch import ShapeError

SIZES = dict(
    span_len=32, kv_heads=2, key_size=128, value_size=64, format=Format.BFLOAT16, num_layers=3
)


def test_a_span_of_floats_is_keys_then_values_of_every_layer():
    layout = SpanLayout.contiguous(**SIZES)

    assert layout.keys == ArrayStrides(offset=0, head_stride=32 * 256, token_stride=256)
    assert layout.values == ArrayStrides(
        offset=2 * 32 * 256, head_stride=32 * 128, token_stride=128
    )
    assert layout.key_scales is layout.value_scales is None
    assert layout.layer_stride == layout.layer_bytes == 2 * 32 * (256 + 128)
    assert layout.span_stride == layout.span_bytes == 3 * layout.layer_bytes


@pytest.mark.parametrize(
    ("format", "bytes_per_token_and_head"),
    [
        (Format.FLOAT32, 768),
        (Format.FLOAT16, 384),
        (Format.BFLOAT16, 384),
        (Format.FP8, 192 + 2 * 4),
        (Format.INT8, 192 + 2 * 8),
        (Format.UINT4, 96 + 2 * 8),
    ],
)
def test_every_format_takes_its_codes_and_scales(format, bytes_per_token_and_head):
    layout = SpanLayout.contiguous(**SIZES | dict(format=format))

    assert layout.span_bytes == 3 * 2 * 32 * bytes_per_token_and_head


@pytest.mark.parametrize("format", Format, ids=lambda format: format.label)
@pytest.mark.parametrize("values_in_keys", [False, True])
def test_the_places_of_a_span_fill_it_without_gap_or_overlap(format, values_in_keys):
    layout = SpanLayout.contiguous(**SIZES | dict(format=format, values_in_keys=values_in_keys))
    used = np.zeros(2 * layout.span_stride, np.int32)
    sizes = {
        layout.values: layout.value_size * format.bits // 8,
        layout.keys: layout.key_size * format.bits // 8,  # the same place where they are shared
        layout.key_scales: format.num_scales * 4,
        layout.value_scales: format.num_scales * 4,
    }

    for place, size in sizes.items():
        for index in np.ndindex(2, layout.num_layers, layout.kv_heads, layout.span_len):
            if place is not None:
                strides = layout.span_stride, layout.layer_stride
                strides += place.head_stride, place.token_stride
                first = place.offset + np.dot(index, strides)
                used[first : first + size] += 1

    assert (used == 1).all()


def test_values_in_keys_take_no_memory():
    latent = dict(kv_heads=1, key_size=576, value_size=512, values_in_keys=True)

    layout = SpanLayout.contiguous(**SIZES | latent)

    assert layout.values == layout.keys
    assert layout.layer_bytes == 32 * 576 * 2


def test_strides_are_free():
    """Keys and values of all layers in one array, token after token."""
    dense = SpanLayout.contiguous(**SIZES)

    other = replace(dense, keys=ArrayStrides(0, head_stride=256, token_stride=768))

    assert other.span_bytes == dense.span_bytes


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (dict(span_len=24), "span_len is 24; a power of two of at least 16"),
        (dict(span_len=8), "span_len is 8"),
        (dict(kv_heads=0), "kv_heads is 0; at least 1"),
        (dict(num_layers=0), "num_layers is 0"),
        (dict(key_size=100), "key_size 100 takes 200 bytes as bfloat16; a multiple of 16"),
        (dict(key_size=16, format=Format.UINT4), "key_size 16 takes 8 bytes as uint4"),
        (dict(value_size=0), "value_size 0"),
        (dict(value_size=256, values_in_keys=True), "256 does not fit into key_size 128"),
    ],
)
def test_sizes_that_kernels_cannot_read_are_refused(wrong, message):
    with pytest.raises(ShapeError, match=message):
        SpanLayout.contiguous(**SIZES | wrong)


@pytest.mark.parametrize("order", ["NHD", "HND"])
@pytest.mark.parametrize("format", [Format.FLOAT32, Format.FLOAT16], ids=lambda it: it.label)
def test_a_paged_cache_has_the_strides_of_numpy(order, format):
    pages, page_size, kv_heads, head_size = 5, 16, 3, 8
    shape = (pages, 2, page_size, kv_heads, head_size)
    cache = np.zeros(shape if order == "NHD" else (pages, 2, kv_heads, page_size, 8), format.label)
    page, half, *rest = cache.strides[:4]
    token, head = rest if order == "NHD" else reversed(rest)

    layout = SpanLayout.paged(
        page_size=page_size, kv_heads=kv_heads, head_size=head_size, format=format, order=order
    )

    assert (layout.span_stride, layout.span_bytes) == (page, page)
    assert layout.keys == ArrayStrides(offset=0, head_stride=head, token_stride=token)
    assert layout.values == ArrayStrides(offset=half, head_stride=head, token_stride=token)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (dict(format=Format.FP8), "fp8 needs scales, which a paged array does not hold; use a flo"),
        (dict(page_size=24), "span_len is 24; a power of two of at least 16"),
        (dict(head_size=4), "head_size 4 takes 8 bytes as float16; a multiple of 16 is needed"),
    ],
)
def test_a_paged_cache_that_kernels_cannot_read_is_refused(changed, message):
    sizes = dict(page_size=16, kv_heads=3, head_size=8, format=Format.FLOAT16)

    with pytest.raises(ShapeError, match=message):
        SpanLayout.paged(**sizes | changed)
