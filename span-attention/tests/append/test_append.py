"""Append against its definition; the tests that need no GPU come first."""

import ml_dtypes
import numpy as np
import pytest
from span_attention import Format, SpanLayout, append
from spaninfer_kernel_launch import (
    DeviceError,
    DTypeError,
    Gpu,
    Launch,
    ShapeError,
    captured,
    get_gpu,
    new_stream,
)
from spaninfer_op_reference import relative_error, rms_norm, rotate, tolerance

SIZES = dict(span_len=32, kv_heads=2, key_size=128, value_size=128, num_layers=1)
GPU = Gpu(0, "none", "sm_90a", sm_count=132, shared_bytes=0, l2_bytes=0, context=0)
EPS = 1e-6


def test_the_variant_carries_layout_and_form():
    layout = SpanLayout.contiguous(**SIZES, format=Format.BFLOAT16)

    variant = append.variant_for(append.Form(head_norm=True), layout)

    assert str(variant) == (
        "append_rows[HEAD_NORM=1 INTERLEAVED=0 KEY_SIZE=128 T=bfloat16 VALUE_SIZE=128 WARPS=4]"
    )
    assert "sm_75" not in variant.architectures


def test_quantised_spans_are_refused_by_name():
    layout = SpanLayout.contiguous(**SIZES, format=Format.INT8)

    with pytest.raises(DTypeError, match="floats for now, not int8"):
        append.variant_for(append.Form(), layout)


def test_query_heads_must_share_key_heads_evenly():
    layout = SpanLayout.contiguous(**SIZES, format=Format.FLOAT16)

    with pytest.raises(ShapeError, match="7 query heads are not a multiple of 2"):
        append.prepare(append.Form(), layout, rows=1, heads=7, gpu=GPU)


@pytest.mark.parametrize(
    ("rows", "with_values", "grid"),
    [(1, True, (1, 5, 1)), (300, True, (300, 5, 1)), (1, False, (1, 4, 1))],
)
def test_every_head_of_every_row_has_a_warp(rows, with_values, grid):
    launch = append.launch(rows, heads=14, kv_heads=2, with_values=with_values)

    assert launch == Launch(grid, (32, 4, 1))


def test_no_rows_have_no_grid():
    assert append.launch(0, heads=14, kv_heads=2, with_values=True) is None


def test_arguments_that_do_not_fit_are_named():
    case = Case(rows=3)
    case.slot = case.slot.astype(np.int64)

    with pytest.raises(DTypeError, match="slot holds int64, but the kernel needs int32"):
        case.run(in_host_memory)
    case.slot = case.slot[:2].astype(np.int32)
    with pytest.raises(ShapeError, match="slot: T is 2, but query has T = 3"):
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
    dict(rows=4099, heads=8, kv_heads=2, head_norm=True, span_len=128),
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
    step = append.prepare(append.Form(), first.layout, rows=9, heads=14, gpu=gpu)
    given = [np.ascontiguousarray(part) for part in (first.query, first.key, first.value)]
    held = [on_gpu.put(array) for array in (*given, first.slot, first.cosine, first.sine)]
    out, cache = on_gpu.put(np.zeros_like(given[0])), on_gpu.put(first.cache)

    def launch(stream, _):
        spans = append.Spans(cache, first.layout, layer=1)
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
        span_len=16,
        head_norm=False,
        interleaved=False,
        in_keys=False,
        seed=0,
    ):
        draw = np.random.default_rng(seed)
        self.dtype, self.interleaved = np.dtype(DTYPES[format]), interleaved
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
            spans=append.Spans(cache, self.layout, layer=1),
            rotary=append.Rotary(put(self.cosine), put(self.sine), self.rotary, self.interleaved),
            head_norm=None if weights is None else append.HeadNorm(*map(put, weights), EPS),
            out=out,
        )
        return queries, cache

    def check(self, queries, cache):
        """Compare with the definition in float64; what is not of these rows must be untouched."""
        kept, layout = self.slot >= 0, self.layout
        self.near(queries[kept], self.turned(self.query, 0)[kept])
        where = (*np.divmod(self.slot[kept], layout.span_len),)
        untouched = self.cache.copy()
        parts = [(layout.keys, layout.key_size, self.turned(self.key, 1))]
        if layout.values != layout.keys:
            parts.append((layout.values, layout.value_size, self.value.astype(np.float64)))
        for place, size, expected in parts:
            self.near(self.layer(cache, place, size)[where], expected[kept])
            self.layer(untouched, place, size)[where] = self.layer(cache, place, size)[where]
        np.testing.assert_array_equal(cache, untouched)

    def turned(self, x, which):
        """Heads after norm and rotary embedding, in float64."""
        x = x.astype(np.float64)
        if self.weights is not None:
            x = rms_norm(x, self.weights[which].astype(np.float64), EPS)
        style = "interleaved" if self.interleaved else "half"
        return rotate(x, self.cosine.astype(np.float64), self.sine.astype(np.float64), style)

    def layer(self, cache, place, size):
        """Layer 1 of a cache in host memory, as [S L K size]."""
        layout = self.layout
        begin = layout.layer_stride + place.offset
        shape = (cache.size // layout.span_stride, layout.span_len, layout.kv_heads, size)
        strides = (layout.span_stride, place.token_stride, place.head_stride, self.dtype.itemsize)
        return np.ndarray(shape, self.dtype, cache.data, begin, strides)

    def near(self, actual, expected):
        wide = actual.astype(np.float64)
        assert relative_error(wide, expected) <= tolerance(self.dtype.name)
