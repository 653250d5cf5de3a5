"""Expansion of codes against their definition; the tests that need no GPU come first."""

from contextlib import ExitStack

import ml_dtypes
import numpy as np
import pytest
from span_attention import Format, SpanLayout, Spans, expand
from spaninfer_kernel_launch import DTypeError, ShapeError, captured, get_gpu, new_stream

DTYPES = {"float16": np.dtype(np.float16), "bfloat16": np.dtype(ml_dtypes.bfloat16)}
# Tokens of each sequence: with a part of a span, one, none, whole ones; and more than threads.
LENGTHS = {"few": (75, 1, 0, 64), "none": (0, 0), "many": (*(32, 0, 1) * 400, 40 * 32 + 5)}
SPAN_LEN = 32
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
    step = Step(on_gpu, layout, LENGTHS["few"], num_spans=11)
    expected = step.expected(dtype)
    prepared = expand.prepare(dtype, layout, gpu=get_gpu())

    begins, spans, made = step.expand(prepared, capacity=9)

    assert begins == [0, 3, 4, 4]
    assert spans.layout == expand.expanded_layout(dtype, layout)
    assert (made[6:] == POISON).all()
    for place, span in enumerate(step.spans):
        assert (made[place].view(DTYPES[dtype]) == expected[span]).all()


@pytest.mark.gpu
@pytest.mark.parametrize("lengths", LENGTHS)
@pytest.mark.parametrize("spare", [3, 0, -2])
def test_a_plan_has_the_spans_of_all_sequences_as_far_as_there_is_room(on_gpu, lengths, spare):
    layout = layout_of(Format.FP8, kv_heads=1)
    counts = [-(-length // SPAN_LEN) for length in LENGTHS[lengths]]
    step = Step(on_gpu, layout, LENGTHS[lengths], num_spans=sum(counts) + 1)
    expected = step.expected("bfloat16")
    capacity = max(sum(counts) + spare, 0)
    prepared = expand.prepare("bfloat16", layout, gpu=get_gpu())

    begins, _, made = step.expand(prepared, capacity)

    assert begins == np.cumsum([0, *counts])[:-1].tolist()
    there = min(capacity, sum(counts))
    assert (made[there:] == POISON).all()
    for place, span in enumerate(step.spans[:there]):
        assert (made[place].view(DTYPES["bfloat16"]) == expected[span]).all()


@pytest.mark.gpu
def test_captured_it_expands_whatever_spans_a_step_then_has(on_gpu):
    layout = layout_of(Format.FP8)
    step = Step(on_gpu, layout, (96, 96), num_spans=6)
    expected = step.expected("bfloat16")
    prepared = expand.prepare("bfloat16", layout, gpu=get_gpu())
    cache, tables, rows = map(on_gpu.put, (step.cache, step.tables, step.rows))
    lens, begins = (on_gpu.put(np.zeros(2, np.int32)) for _ in range(2))
    plan = on_gpu.put(np.zeros(7, np.int32))
    out = on_gpu.put(np.zeros((6, prepared.floats.span_stride), np.uint8))

    def launch(stream, _=None):
        sequences = expand.Sequences(tables, rows, lens, 2, step.tables.shape[1])
        prepared.plan(sequences, capacity=6, out=(plan, begins), stream=stream)
        prepared.launch(Spans(cache, layout, 1), plan, out=out, stream=stream)

    with ExitStack() as stack:
        stack.enter_context(get_gpu().current())
        stream = stack.enter_context(new_stream())
        replay = stack.enter_context(captured(stream, launch))
        for counts in ((2, 2), (0, 3), (3, 0), (0, 0), (3, 3)):
            order = [*step.spans[: counts[0]], *step.spans[3 : 3 + counts[1]]]
            lens[:] = on_gpu.put(np.array(counts, np.int32) * SPAN_LEN)
            out[:] = on_gpu.put(np.full_like(on_gpu.get(out), POISON))
            on_gpu.wait()
            replay()
            on_gpu.wait()

            made = on_gpu.get(out)
            assert on_gpu.get(plan).tolist()[: len(order) + 1] == [len(order), *order]
            assert (made[len(order) :] == POISON).all()
            for place, span in enumerate(order):
                assert (made[place].view(DTYPES["bfloat16"]) == expected[span]).all()


class Step:
    """Sequences with spans of a random cache on the GPU, in random rows of the tables."""

    def __init__(self, on_gpu, layout, lengths, num_spans):
        self._on_gpu, self._layout, self._lengths = on_gpu, layout, lengths
        self._draw = draw = np.random.default_rng(len(lengths) + layout.key_size)
        self.cache = draw.integers(0, 255, num_spans * layout.span_stride, np.uint8)
        counts = [-(-length // SPAN_LEN) for length in lengths]
        self.spans = draw.permutation(num_spans)[: sum(counts)].tolist()
        self.tables = np.full((len(lengths) + 2, max(counts) + 2), 2**30, np.int32)  # no span
        self.rows = draw.permutation(len(self.tables))[: len(lengths)].astype(np.int32)
        begin = 0
        for row, count in zip(self.rows, counts, strict=True):
            self.tables[row, :count] = self.spans[begin : begin + count]
            begin += count
        self.rows[np.equal(lengths, 0)] = -1

    def expected(self, dtype):
        """Write scales, and return the floats of each span of the cache."""
        layout = self._layout
        parts = [
            numbers(self._draw, self.cache, layout, *place)
            for place in (
                (layout.keys, layout.key_scales, layout.key_size),
                (layout.values, layout.value_scales, layout.value_size),
            )
        ]
        return np.concatenate(
            [part.astype(DTYPES[dtype]).reshape(len(part), -1) for part in parts], axis=1
        )

    def expand(self, prepared, capacity):
        """Return where sequences begin, the spans, and their bytes and those of three behind."""
        put = self._on_gpu.put
        plan = put(np.zeros(1 + capacity, np.int32))
        begins = put(np.zeros(len(self._lengths), np.int32))
        shape = capacity + 3, prepared.floats.span_stride
        out = put(np.full(shape, POISON, np.uint8))
        arrays = map(put, (self.tables, self.rows, np.array(self._lengths, np.int32)))
        sequences = expand.Sequences(*arrays, len(self._lengths), self.tables.shape[1])
        prepared.plan(sequences, capacity=capacity, out=(plan, begins))
        spans = prepared.launch(Spans(put(self.cache), self._layout, 1), plan, out=out)
        return self._on_gpu.get(begins).tolist(), spans, self._on_gpu.get(out)


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
