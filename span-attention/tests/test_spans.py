"""Offsets of the arrays of a layer."""

import pytest
from span_attention import Format, SpanLayout, Spans

CACHE = 0x10000


def spans(format, layer, **more):
    layout = SpanLayout.contiguous(
        span_len=16, kv_heads=2, key_size=64, value_size=32, format=format, num_layers=3, **more
    )
    return Spans(CACHE, layout, layer)


def test_keys_and_values_of_a_layer_follow_those_of_the_layers_before():
    layer = spans(Format.FLOAT16, 2)

    first = CACHE + 2 * 16 * 2 * (64 + 32) * 2
    assert layer.places == (first, first + 16 * 2 * 64 * 2)
    assert layer.scale_places == (0, 0)


@pytest.mark.parametrize(("format", "num_scales"), [(Format.FP8, 1), (Format.INT8, 2)])
def test_scales_follow_codes(format, num_scales):
    layer = spans(format, 1)

    first = CACHE + 16 * 2 * (64 + 32 + 2 * num_scales * 4)
    assert layer.places == (first, first + 16 * 2 * 64)
    scales = first + 16 * 2 * 96
    assert layer.scale_places == (scales, scales + 16 * 2 * num_scales * 4)


def test_values_in_keys_share_codes_and_scales():
    layer = spans(Format.INT8, 1, values_in_keys=True)

    assert layer.places[0] == layer.places[1]
    assert layer.scale_places[0] == layer.scale_places[1]
