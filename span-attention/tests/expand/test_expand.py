"""Expansion of codes against their definition; the tests that need no GPU come first."""

import ml_dtypes
import numpy as np
import pytest
from span_attention import Format, SpanLayout, Spans, expand
from spaninfer_kernel_launch import DTypeError, ShapeError, get_gpu

DTYPES = {"float16": np.dtype(np.float16), "bfloat16": np.dtype(ml_dtypes.bfloat16)}
LENGTHS = (75, 1, 0, 64)  # tokens of each sequence: with a part of a span, one, none, whole ones
SPAN_LEN, COLUMNS = 32, 3
POISON = 0xFF  # of it, every float is NaN


def layout_of(format, key_size=128, value_size=128, **sizes):
    return SpanLayout.contiguous(
        **{"span_len": SPAN_LEN, "kv_heads": 3, "num_layers": 2, **sizes},
        key_size=key_size,
        value_size=value_size,
        format=format,
    )


def test_the_variant_carries_the_code_and_the_sizes():
    variant = expand.variant_for("bfloat16", layout_of(Format.FP8, value_size=64))

    assert str(variant) == (
        "expand_spans[CODE=Fp8 KEY_SIZE=128 T=bfloat16 THREADS=256 VALUE_SIZE=64]"
    )
    assert "sm_75" not in variant.architectures


def test_only_codes_of_keys_and_values_apart_are_expanded():
    latents = layout_of(Format.FP8, 576, 512, values_in_keys=True)

    assert expand.takes(layout_of(Format.UINT4))
    assert not expand.takes(layout_of(Format.BFLOAT16))
    assert not expand.takes(latents)
    with pytest.raises(DTypeError, match="spans hold bfloat16; only codes are expanded"):
        expand.variant_for("bfloat16", layout_of(Format.BFLOAT16))
    with pytest.raises(ShapeError, match="values lie in the keys"):
        expand.variant_for("bfloat16", latents)


def test_expanded_spans_hold_one_layer_of_floats():
    floats = expand.expanded_layout("float16", layout_of(Format.UINT4, value_size=64))

    assert (floats.format, floats.num_layers, floats.layer_stride) == (
        Format.FLOAT16,
        1,
        floats.span_stride,
    )
    assert floats.span_bytes == SPAN_LEN * 3 * (128 + 64) * 2


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("format", [Format.FP8, Format.INT8, Format.UINT4])
@pytest.mark.parametrize("sizes", [(128, 128), (64, 96), (256, 128)], ids=str)
def test_spans_are_expanded_in_the_order_of_their_sequence(on_gpu, sizes, format, dtype):
    layout = layout_of(format, *sizes)
    draw = np.random.default_rng(sum(sizes))
    num_spans = 11
    cache = draw.integers(0, 255, num_spans * layout.span_stride, np.uint8)
    expected = {
        "keys": numbers(draw, cache, layout, layout.keys, layout.key_scales, sizes[0]),
        "values": numbers(draw, cache, layout, layout.values, layout.value_scales, sizes[1]),
    }
    tables = np.full((len(LENGTHS) + 2, COLUMNS + 2), 2**30, np.int32)  # no span
    rows = draw.permutation(len(tables))[: len(LENGTHS)].astype(np.int32)
    free = iter(draw.permutation(num_spans))
    counts = [-(-length // SPAN_LEN) for length in LENGTHS]
    for row, count in zip(rows, counts, strict=True):
        tables[row, :count] = [next(free) for _ in range(count)]
    prepared = expand.prepare(
        dtype,
        layout,
        sequences=len(LENGTHS),
        columns=COLUMNS,
        table_stride=tables.shape[1],
        gpu=get_gpu(),
    )
    out = on_gpu.put(np.full(prepared.num_bytes, POISON, np.uint8))

    spans = prepared.launch(
        Spans(on_gpu.put(cache), layout, 1),
        *map(on_gpu.put, (tables, rows, np.array(LENGTHS, np.int32))),
        out=out,
    )

    assert spans.layout == expand.expanded_layout(dtype, layout)
    made = on_gpu.get(out).reshape(len(LENGTHS), COLUMNS, -1)
    border = SPAN_LEN * layout.kv_heads * sizes[0]
    for sequence, (row, count) in enumerate(zip(rows, counts, strict=True)):
        assert (made[sequence, count:] == POISON).all()
        for column in range(count):
            span, floats = tables[row, column], made[sequence, column].view(DTYPES[dtype])
            for part, name in ((floats[:border], "keys"), (floats[border:], "values")):
                whole = expected[name][span]
                assert (part.reshape(whole.shape) == whole.astype(DTYPES[dtype])).all()


def numbers(draw, cache, layout, place, scales, size):
    """Write scales, and return the numbers [S K L size] of layer 1, in float32."""
    shape = (len(cache) // layout.span_stride, layout.kv_heads, layout.span_len)
    begin, step = layout.layer_stride, layout.span_stride

    def view(at, count, dtype):
        strides = (step, at.head_stride, at.token_stride, np.dtype(dtype).itemsize)
        return np.ndarray((*shape, count), dtype, cache.data, begin + at.offset, strides)

    scale = view(scales, layout.format.num_scales, np.float32)
    scale[...] = draw.uniform(0.001, 0.01, scale.shape)
    codes = view(place, size * layout.format.bits // 8, np.uint8)
    zero = np.float32(0.0)
    if layout.format is Format.FP8:
        codes[codes & 0x7F == 0x7F] = 0x38  # not a number: no kernel writes it
        code = codes.view(ml_dtypes.float8_e4m3fn).astype(np.float32)
    else:
        scale[..., 0] = draw.integers(0, 16, shape)
        zero = scale[..., :1]
        code = codes.view(np.int8) if layout.format is Format.INT8 else nibbles(codes)
    return (code.astype(np.float32) - zero) * scale[..., -1:]


def nibbles(codes):
    """Return the codes of bytes, the lower four bits first."""
    return np.stack([codes & 15, codes >> 4], -1).reshape(*codes.shape[:-1], -1)
