"""Append against its definition; the tests that need no GPU come first."""

import ml_dtypes
import numpy as np
import pytest
from span_attention import Format, SpanLayout, Spans, append
from spaninfer_kernel_launch import (
    DeviceError,
    DTypeError,
    Gpu,
    ShapeError,
    captured,
    get_gpu,
    new_stream,
)
from spaninfer_op_reference import (
    CodeRange,
    quantize_cache,
    quantize_fp8,
    relative_error,
    rms_norm,
    rotate,
    tolerance,
    unpack_nibbles,
)

SIZES = dict(span_len=32, kv_heads=2, key_size=128, value_size=128, num_layers=1)
GPU = Gpu(0, "none", "sm_90a", sm_count=132, shared_bytes=0, l2_bytes=0, context=0)
EPS = 1e-6


def test_the_variant_carries_layout_and_form():
    layout = SpanLayout.contiguous(**SIZES, format=Format.BFLOAT16)

    variant = append.variant_for(append.AppendOptions(head_norm=True), layout)

    assert str(variant) == (
        "append_rows[HEAD_NORM=1 INTERLEAVED=0 KEY_SIZE=128 LANES=8 ROTARY=128 T=bfloat16 "
        "THREADS=128 VALUES_IN_KEYS=0 VALUE_SIZE=128 VALUE_VECTOR=8 VECTOR=8]"
    )
    assert "sm_75" not in variant.architectures


def test_spans_of_codes_take_any_float_but_must_be_told_which():
    layout = SpanLayout.contiguous(**SIZES, format=Format.INT8)

    variant = append.variant_for(append.AppendOptions(dtype=np.float16), layout)

    assert {"CODE": "Int8", "T": "half"}.items() <= dict(variant.macros).items()
    with pytest.raises(DTypeError, match=r"int8 take .* several types; AppendOptions\(dtype=...\)"):
        append.variant_for(append.AppendOptions(), layout)


def test_spans_of_floats_take_their_own_type_only():
    layout = SpanLayout.contiguous(**SIZES, format=Format.BFLOAT16)

    with pytest.raises(DTypeError, match="values are half, but the spans hold bfloat16"):
        append.variant_for(append.AppendOptions(dtype=np.float16), layout)


@pytest.mark.parametrize("rotary_len", [130, -2, 63])
def test_rope_turns_pairs_of_the_head(rotary_len):
    layout = SpanLayout.contiguous(**SIZES, format=Format.BFLOAT16)

    with pytest.raises(ShapeError, match=f"pairs: {rotary_len} elements of a head of 128"):
        append.variant_for(append.AppendOptions(rotary_len=rotary_len), layout)


def test_pairs_that_would_split_a_byte_are_refused():
    layout = SpanLayout.contiguous(**SIZES, format=Format.UINT4)

    with pytest.raises(ShapeError, match="rope over 10 elements splits bytes of uint4"):
        append.variant_for(append.AppendOptions(rotary_len=10, dtype=np.float16), layout)


def test_query_heads_must_share_key_heads_evenly():
    layout = SpanLayout.contiguous(**SIZES, format=Format.FLOAT16)

    with pytest.raises(ShapeError, match="7 query heads are not a multiple of 2"):
        append.prepare(append.AppendOptions(), layout, rows=1, heads=7, gpu=GPU)


def test_arguments_that_do_not_fit_are_named():
    case = Case(rows=3)
    case.slot = case.slot.astype(np.int64)

    with pytest.raises(DTypeError, match="slot_mapping holds int64, but the kernel needs int32"):
        case.run(in_host_memory)
    case.slot = case.slot[:2].astype(np.int32)
    with pytest.raises(ShapeError, match="slot_mapping: T is 2, but query has T = 3"):
        case.run(in_host_memory)


def test_rows_that_begin_in_the_middle_of_a_load_are_refused():
    case = Case(rows=3)
    case.row = np.zeros((3, case.row.shape[1] + 1), np.float16)

    with pytest.raises(ShapeError, match="query: every row must begin at a multiple of 16 bytes"):
        case.run(in_host_memory)


def test_angles_that_begin_in_the_middle_of_a_load_are_refused():
    case = Case(rows=3)
    case.sine = np.zeros(case.sine.size + 1, np.float32)[1:].reshape(case.sine.shape)

    with pytest.raises(ShapeError, match="sine must begin at a multiple of 16 bytes"):
        case.run(in_host_memory)


def test_arrays_in_host_memory_are_refused():
    with pytest.raises(DeviceError, match="query lies in cpu memory"):
        Case(rows=3).run(in_host_memory)


MANY = [
    dict(rows=1),
    dict(rows=257, heads=16, kv_heads=16, key_size=128, value_size=128, span_len=32),
    dict(rows=31, heads=7, kv_heads=1, key_size=96, value_size=96, interleaved=True),
    dict(rows=5, heads=4, kv_heads=4, key_size=256, value_size=256, head_norm=True, rotary=64),
    dict(rows=64, heads=28, kv_heads=4, key_size=192, value_size=128, head_norm=True),
    dict(rows=13, heads=16, kv_heads=1, key_size=576, value_size=512, rotary=64, in_keys=True),
    dict(rows=6, heads=6, kv_heads=3, key_size=192, value_size=128, rotary=20, head_norm=True),
    dict(rows=6, heads=6, kv_heads=3, rotary=0),
    dict(rows=4099, heads=8, kv_heads=2, head_norm=True, span_len=128),
]
CODED = [
    dict(rows=1),
    dict(rows=257, heads=16, kv_heads=16, key_size=128, value_size=128, span_len=32),
    dict(rows=31, heads=7, kv_heads=1, key_size=96, value_size=64, interleaved=True),
    dict(rows=5, heads=4, kv_heads=4, key_size=256, value_size=256, head_norm=True, rotary=64),
    dict(rows=13, heads=16, kv_heads=1, key_size=576, value_size=512, rotary=64, in_keys=True),
    dict(rows=1009, heads=28, kv_heads=4, rotary=20, span_len=128),
]


@pytest.mark.gpu
@pytest.mark.parametrize(
    "format", [Format.FLOAT32, Format.FLOAT16, Format.BFLOAT16], ids=lambda format: format.label
)
@pytest.mark.parametrize("sizes", MANY, ids=lambda sizes: f"{sizes['rows']} rows")
def test_queries_keys_and_values_are_their_definition(on_gpu, format, sizes):
    case = Case(format=format, **sizes)

    out, cache = case.run(on_gpu.put)

    case.check(on_gpu.get(out), on_gpu.get(cache))


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize(
    "format", [Format.FP8, Format.INT8, Format.UINT4], ids=lambda format: format.label
)
@pytest.mark.parametrize("sizes", CODED, ids=lambda sizes: f"{sizes['rows']} rows")
def test_codes_scales_and_zeros_are_their_definition(on_gpu, format, dtype, sizes):
    case = Case(format=format, dtype=dtype, **sizes)

    out, cache = case.run(on_gpu.put)

    case.check(on_gpu.get(out), on_gpu.get(cache))


@pytest.mark.gpu
@pytest.mark.parametrize(
    "format", [Format.FP8, Format.INT8, Format.UINT4], ids=lambda format: format.label
)
def test_heads_of_zeros_of_one_sign_and_of_tiny_numbers_have_codes_too(on_gpu, format):
    case = Case(format=format, dtype=np.float32, rows=32, head_norm=False, rotary=0)
    case.key[0::4] = case.value[0::4] = 0
    np.abs(case.key[1::4], out=case.key[1::4])
    np.abs(case.value[2::4], out=case.value[2::4])
    case.value[3::4] *= 1e-30

    out, cache = case.run(on_gpu.put)

    case.check(on_gpu.get(out), on_gpu.get(cache))


@pytest.mark.gpu
def test_padding_rows_leave_even_the_queries_alone(on_gpu):
    case = Case(rows=6)
    out = on_gpu.put(np.full(case.query.shape, np.nan, np.float16))

    case.run(on_gpu.put, out=out)

    assert (np.isnan(on_gpu.get(out)).all(axis=(1, 2)) == (case.slot < 0)).all()


@pytest.mark.gpu
def test_no_rows_are_no_launch(on_gpu):
    case = Case(rows=0)

    out, cache = case.run(on_gpu.put)

    assert on_gpu.get(out).shape == (0, 14, 64)
    assert (on_gpu.get(cache) == MARK).all()


@pytest.mark.gpu
def test_prepared_and_captured_it_runs_on_whatever_the_input_then_holds(on_gpu):
    first, gpu = Case(rows=9, seed=0), get_gpu()
    step = append.prepare(append.AppendOptions(), first.layout, rows=9, heads=14, gpu=gpu)
    given = [np.ascontiguousarray(part) for part in (first.query, first.key, first.value)]
    held = [on_gpu.put(array) for array in (*given, first.slot, first.cosine, first.sine)]
    out, cache = on_gpu.put(np.zeros_like(given[0])), on_gpu.put(first.cache)

    def launch(stream, _):
        spans = Spans(cache, first.layout, layer=1)
        rotary = append.Rotary(*held[4:], first.rotary)
        step.launch(*held[:4], spans=spans, rotary=rotary, out=out, stream=stream)

    with gpu.current(), new_stream() as stream, captured(stream, launch) as replay:
        for seed in (1, 2):
            case = Case(rows=9, seed=seed)
            now = (case.query, case.key, case.value, case.slot, case.cosine, case.sine, case.cache)
            for array, values in zip((*held, cache), now, strict=True):
                array[:] = on_gpu.put(np.ascontiguousarray(values))
            on_gpu.wait()
            replay()
            on_gpu.wait()

            case.check(on_gpu.get(out), on_gpu.get(cache))


def in_host_memory(array):
    return array


MARK = 0x5A
DTYPES = {
    Format.FLOAT32: np.float32,
    Format.FLOAT16: np.float16,
    Format.BFLOAT16: ml_dtypes.bfloat16,
}


class Case:
    """Arguments of an append to layer 1 of 3, into a cache full of marks."""

    def __init__(
        self,
        *,
        rows,
        heads=14,
        kv_heads=2,
        key_size=64,
        value_size=64,
        rotary=None,
        format=Format.FLOAT16,
        dtype=None,
        span_len=16,
        head_norm=False,
        interleaved=False,
        in_keys=False,
        seed=0,
    ):
        draw = np.random.default_rng(seed)
        self.dtype, self.interleaved = np.dtype(dtype or DTYPES[format]), interleaved
        self.rotary = key_size if rotary is None else rotary
        self.layout = SpanLayout.contiguous(
            span_len=span_len,
            kv_heads=kv_heads,
            key_size=key_size,
            value_size=value_size,
            format=format,
            num_layers=3,
            values_in_keys=in_keys,
        )
        shapes = ((heads, key_size), (kv_heads, key_size), (kv_heads, value_size))
        self.ends = np.cumsum([0, *(heads * size for heads, size in shapes)])
        self.shapes = [(rows, *shape) for shape in shapes]
        self.row = draw.standard_normal((rows, self.ends[-1])).astype(self.dtype)
        self.query, self.key, self.value = self.split(self.row)
        angles = draw.uniform(0, 6, (rows, self.rotary // 2))
        self.cosine, self.sine = np.cos(angles, dtype="f4"), np.sin(angles, dtype="f4")
        self.weights = draw.standard_normal((2, key_size)).astype(self.dtype) if head_norm else None
        num_spans = rows // span_len + 3
        self.slot = draw.permutation(num_spans * span_len)[:rows].astype(np.int32)
        self.slot[1::5] = -1
        self.cache = np.full(num_spans * self.layout.span_bytes, MARK, np.uint8)

    def split(self, row):
        """Queries, keys and values as one projection gives them: side by side in a row."""
        parts = (row[:, a:b] for a, b in zip(self.ends, self.ends[1:], strict=False))
        return [part.reshape(shape) for part, shape in zip(parts, self.shapes, strict=True)]

    def run(self, put, out=None):
        """Append; return the queries and the cache."""
        query, key, value = self.split(put(self.row))
        cache, weights = put(self.cache), self.weights
        queries = append.append(
            *(query, key, value, put(self.slot)),
            spans=Spans(cache, self.layout, layer=1),
            rotary=append.Rotary(put(self.cosine), put(self.sine), self.rotary, self.interleaved),
            head_norm=None if weights is None else append.HeadNorm(*map(put, weights), EPS),
            out=out,
        )
        return queries, cache

    def check(self, queries, cache):
        """Compare with the definition in float64; what is not of these rows must be untouched."""
        kept, layout = self.slot >= 0, self.layout
        self.near(queries[kept], self.rotated(self.query, 0)[kept])
        where = (*np.divmod(self.slot[kept], layout.span_len),)
        untouched = self.cache.copy()
        parts = [(layout.keys, layout.key_scales, self.rotated(self.key, 1))]
        if layout.values != layout.keys:
            parts.append((layout.values, layout.value_scales, self.value.astype(np.float64)))
        for place, scales, expected in parts:
            size = expected.shape[-1] * layout.format.bits // 8
            written = self.layer(cache, place, size)[where]
            self.layer(untouched, place, size)[where] = written
            if scales is None:
                self.near(written.view(self.dtype), expected[kept])
                continue
            numbers = self.layer(cache, scales, 4 * layout.format.num_scales)[where]
            self.layer(untouched, scales, 4 * layout.format.num_scales)[where] = numbers
            check_codes(layout.format, written, numbers.view(np.float32), expected[kept])
        np.testing.assert_array_equal(cache, untouched)

    def rotated(self, x, which):
        """Heads after norm and rotary embedding, in float64."""
        x = x.astype(np.float64)
        if self.weights is not None:
            x = rms_norm(x, self.weights[which].astype(np.float64), EPS)
        style = "interleaved" if self.interleaved else "half"
        return rotate(x, self.cosine.astype(np.float64), self.sine.astype(np.float64), style)

    def layer(self, cache, place, num_bytes):
        """Layer 1 of a cache in host memory, as bytes [S L K num_bytes]."""
        layout = self.layout
        begin = layout.layer_stride + place.offset
        shape = (cache.size // layout.span_stride, layout.span_len, layout.kv_heads, num_bytes)
        strides = (layout.span_stride, place.token_stride, place.head_stride, 1)
        return np.ndarray(shape, np.uint8, cache.data, begin, strides)

    def near(self, actual, expected):
        wide = actual.astype(np.float64)
        assert relative_error(wide, expected) <= tolerance(self.dtype.name)


def check_codes(format, written, numbers, x):
    """Codes and their numbers against the definition in float32 of x[N K D], given in float64.

    Rounding before a code was made may move it to a neighbour: of few, and by no more.
    """
    x = x.astype(np.float32)
    if format == Format.FP8:
        codes = written.view(ml_dtypes.float8_e4m3fn).astype(np.float32)
        expected, scale = quantize_fp8(x)
        step = np.maximum(np.abs(expected) / 8, 2.0**-9)
    else:
        kind = CodeRange.INT8 if format == Format.INT8 else CodeRange.UINT4
        codes = (written.view(np.int8) if format == Format.INT8 else unpack_nibbles(written)) * 1.0
        expected, scale, zero = quantize_cache(x, kind)
        moved = numbers[..., :1] - zero
        assert (np.abs(moved) <= 1).all()
        assert (moved != 0).mean() < FEW
        codes -= moved
        step = 1
    np.testing.assert_allclose(numbers[..., -1:], scale, rtol=1e-5)
    assert (np.abs(codes - expected) <= 1.001 * step).all()
    assert (codes != expected).mean() < FEW


FEW = 0.01


def test_form_is_the_old_name_of_append_options():
    with pytest.warns(DeprecationWarning, match=r"append\.Form is now .*append\.AppendOptions"):
        assert append.Form is append.AppendOptions
