"""Decode against its definition; the tests that need no GPU come first."""

from contextlib import ExitStack
from dataclasses import replace
from itertools import pairwise

import ml_dtypes
import numpy as np
import pytest
from span_attention import BatchDecode, Format, SpanLayout, Spans, decode, merge
from span_attention.operands import check_query
from spaninfer_kernel_launch import (
    DeviceError,
    DTypeError,
    Gpu,
    ShapeError,
    captured,
    get_gpu,
    new_stream,
    view_of,
)
from spaninfer_op_reference import (
    CodeRange,
    alibi_bias,
    alibi_slopes,
    attend_part,
    pack_nibbles,
    quantize_cache,
    quantize_fp8,
    relative_error,
    tolerance,
)

GPU = Gpu(0, "none", "sm_90a", sm_count=132, shared_bytes=0, l2_bytes=0, context=0)
SIZES = dict(span_len=32, kv_heads=2, key_size=128, value_size=128, num_layers=1)
NAN = 0xFF  # every byte of the cache that no token owns: floats and scales become NaN


def test_the_variant_carries_layout_and_tuning():
    layout = SpanLayout.contiguous(**SIZES, format=Format.INT8)

    variant = decode.variant_for(
        decode.DecodeOptions(np.float16), layout, decode.tune(layout, 14, requests=1)
    )

    assert dict(variant.macros)["CODES"] == "Int8Codes"
    assert dict(variant.macros)["HEAD_TILES"] == "1"
    assert dict(variant.macros)["T"] == "half"


@pytest.mark.parametrize("lse", [False, True])
def test_variants_with_and_without_log_sum_exps_are_two(lse):
    layout = SpanLayout.contiguous(**SIZES, format=Format.INT8)
    tuning = decode.tune(layout, 14, requests=1)

    variant = decode.variant_for(decode.DecodeOptions(np.float16, lse), layout, tuning)

    assert dict(variant.macros)["LSE"] == str(int(lse))


def test_a_run_without_a_plan_says_what_is_missing():
    layout = SpanLayout.contiguous(**SIZES, format=Format.FLOAT16)
    attention = BatchDecode(layout, num_heads=2, dtype="float16")

    with pytest.raises(ShapeError, match=r"no step is planned; call plan\(seq_lens, span_tables\)"):
        attention.run(0, Spans(0, layout), softmax_scale=1.0, out=0, stream=77)


def test_queries_of_another_type_than_the_spans_are_refused():
    layout = SpanLayout.contiguous(**SIZES, format=Format.FLOAT16)

    with pytest.raises(DTypeError, match="queries are bfloat16, but the spans hold float16"):
        decode.prepare(
            decode.DecodeOptions(ml_dtypes.bfloat16), layout, requests=1, heads=2, gpu=GPU
        )


def test_wide_floats_are_refused_by_name():
    layout = SpanLayout.contiguous(**SIZES, format=Format.FLOAT32)

    with pytest.raises(DTypeError, match="not float over float32"):
        decode.prepare(decode.DecodeOptions(np.float32), layout, requests=1, heads=2, gpu=GPU)


def test_query_heads_must_share_key_heads_evenly():
    layout = SpanLayout.contiguous(**SIZES, format=Format.FLOAT16)

    with pytest.raises(ShapeError, match="7 query heads are not a multiple of 2"):
        decode.prepare(decode.DecodeOptions(np.float16), layout, requests=1, heads=7, gpu=GPU)


def test_arguments_that_do_not_fit_are_named():
    case = Case(lengths=[3, 5])

    with pytest.raises(ShapeError, match="table_rows: R is 2, but seq_lens has R = 1"):
        case.run(in_host_memory, lengths=case.lengths[:1])
    with pytest.raises(DTypeError, match="seq_lens holds int64, but the kernel needs int32"):
        case.run(in_host_memory, lengths=case.lengths.astype(np.int64))
    with pytest.raises(ShapeError, match="span_tables has 1 rows for 2 sequences"):
        case.run(in_host_memory, tables=case.tables[:1], rows=None)


def test_queries_that_do_not_fit_the_plan_are_refused():
    case = Case(lengths=[3, 5])
    heads, size = case.query.shape[1:]
    options = decode.DecodeOptions(np.float16)
    none = decode.prepare(options, case.layout, requests=0, heads=heads, gpu=GPU)
    prepared = replace(none, requests=2)
    wide = np.zeros((2, heads * size + 4), np.float16)
    strides = (wide.strides[0], 2 * size, 2)
    between = np.lib.stride_tricks.as_strided(wide, case.query.shape, strides)

    assert check_query(view_of(case.query), prepared, prepared.requests) == heads * size
    with pytest.raises(ShapeError, match="query: every row must begin at a multiple of 16 bytes"):
        check_query(view_of(between), prepared, prepared.requests)
    with pytest.raises(ShapeError, match="query: axis 0 is 1, but the kernel needs 2"):
        check_query(view_of(case.query[:1]), prepared, prepared.requests)
    with pytest.raises(DTypeError, match="query holds float32, but the kernel needs float16"):
        check_query(view_of(case.query.astype(np.float32)), prepared, prepared.requests)


def test_arrays_in_host_memory_are_refused():
    with pytest.raises(DeviceError, match="seq_lens lies in cpu memory"):
        Case(lengths=[3]).run(in_host_memory)


def test_the_arithmetic_of_cases_is_that_of_the_definition():
    case = Case(lengths=[40], window=16, softcap=20.0, alibi=True, sinks=True)

    results, sums = case.expected()
    by_hand = case.expected_by_hand(0)
    assert relative_error(results[0], by_hand[0]) < 1e-12
    assert relative_error(sums[0], by_hand[1]) < 1e-12


FORMATS = [Format.FLOAT16, Format.BFLOAT16, Format.FP8, Format.INT8, Format.UINT4]
MANY = {
    "one token": dict(lengths=[1]),
    "padding": dict(lengths=[0, 33, 0, 0, 16, 17, 0]),
    "only padding": dict(lengths=[0, 0]),
    "mixed": dict(lengths=[5000, 1, 31, 700, 64, 0, 65, 2999, 16]),
    "one long": dict(lengths=[20011], heads=7, kv_heads=1, span_len=64),
    "several long": dict(lengths=[6000, 70, 0, 9000, 31], heads=28, kv_heads=4),
    "long, ratio 16": dict(lengths=[9000, 100], heads=32, kv_heads=2),
    "alike": dict(lengths=[333] * 70 + [0, 340], heads=28, kv_heads=4),
    "many short": dict(lengths=list(range(1, 300)), heads=2, kv_heads=2),
    "ratio 7": dict(lengths=[1023, 40], heads=28, kv_heads=4),
    "ratio 16": dict(lengths=[513, 90], heads=32, kv_heads=2),
    "ratio 13": dict(lengths=[513, 90], heads=13, kv_heads=1),
    "ratio 40": dict(lengths=[130], heads=40, kv_heads=1),
    "window": dict(lengths=[4000, 33, 100, 101, 7], window=100),
    "window of one": dict(lengths=[400, 1], window=1),
    "softcap": dict(lengths=[777, 5], softcap=5.0),
    "alibi": dict(lengths=[777, 5, 3000], alibi=True),
    "sinks": dict(lengths=[777, 5, 3000], sinks=True),
    "all of it": dict(lengths=[777, 5, 3000], window=300, softcap=9.0, alibi=True, sinks=True),
    "size 64": dict(lengths=[600, 31], key_size=64, value_size=64, span_len=16),
    "size 96": dict(lengths=[600, 31], key_size=96, value_size=96, span_len=128),
    "size 256": dict(lengths=[600, 31], key_size=256, value_size=256, heads=8, kv_heads=1),
    "sizes 192, 128": dict(lengths=[600, 31], key_size=192, value_size=128, heads=4, kv_heads=4),
    "heads of a token together": dict(
        lengths=[600, 31, 16, 1], window=200, heads_together=True, span_len=16
    ),
    "latent": dict(lengths=[600, 31], key_size=576, value_size=512, heads=16, kv_heads=1, mla=True),
    "long latent": dict(
        lengths=[3000, 5], key_size=576, value_size=512, heads=16, kv_heads=1, mla=True
    ),
}


@pytest.mark.gpu
@pytest.mark.parametrize("format", FORMATS, ids=lambda format: format.label)
@pytest.mark.parametrize("sizes", MANY.values(), ids=MANY.keys())
def test_results_are_their_definition(on_gpu, format, sizes):
    case = Case(format=format, **sizes)

    out = case.run(on_gpu.put)

    case.check(on_gpu.get(out))


LSE = [
    *("padding", "only padding", "mixed", "several long", "long, ratio 16", "alike", "ratio 13"),
    *("all of it", "size 64", "size 256", "sizes 192, 128", "long latent"),
]


@pytest.mark.gpu
@pytest.mark.parametrize("format", FORMATS, ids=lambda format: format.label)
@pytest.mark.parametrize("name", LSE)
def test_log_sum_exps_are_their_definition(on_gpu, format, name):
    case = Case(format=format, **MANY[name])

    out, lse = map(on_gpu.get, case.run(on_gpu.put, lse=True))

    case.check(out)
    case.check_lse(lse)


@pytest.mark.gpu
@pytest.mark.parametrize("format", FORMATS, ids=lambda format: format.label)
@pytest.mark.parametrize(
    "options",
    [dict(), dict(softcap=9.0, alibi=True), dict(sinks=True)],
    ids=lambda options: " ".join(options) or "plain",
)
def test_parts_of_the_keys_merge_into_all_of_them(on_gpu, format, options):
    case = Case(lengths=[777, 5, 3000, 0, 65], format=format, **options)
    cuts = [0, 64, 1024, 3008]
    shape = (len(cuts) - 1, *case.query.shape[:2])
    outputs = on_gpu.put(np.full((*shape, 128), 7, case.dtype))
    lse = on_gpu.put(np.full(shape, 7, np.float32))

    for number, (first, last) in enumerate(pairwise(cuts)):
        case.run(
            on_gpu.put,
            tables=np.ascontiguousarray(case.tables[:, first // case.layout.span_len :]),
            lengths=np.clip(case.lengths - first, 0, last - first).astype(np.int32),
            sinks=case.sinks if number == 0 else None,
            out=(outputs[number], lse[number]),
            lse=True,
        )
    sums = on_gpu.get(lse)
    if case.alibi is not None:  # queries stand that far behind the last key of the part
        sums -= case.alibi * np.maximum(case.lengths - np.array(cuts[1:])[:, None], 0)[..., None]
    merged, total = map(on_gpu.get, merge.merge(outputs, on_gpu.put(sums)))

    case.check(merged)
    case.check_lse(total)


@pytest.mark.gpu
def test_a_sink_far_above_all_scores_takes_all_weight(on_gpu):
    case = Case(lengths=[300, 20])
    case.sinks = np.full(14, 200, np.float32)

    out, lse = map(on_gpu.get, case.run(on_gpu.put, lse=True))

    assert not out.any()
    np.testing.assert_array_equal(lse, 200)


@pytest.mark.gpu
@pytest.mark.parametrize("format", [Format.FP8, Format.INT8, Format.UINT4], ids=lambda f: f.label)
def test_codes_are_read_with_queries_of_bfloat16(on_gpu, format):
    case = Case(lengths=[900, 0, 3], format=format, dtype=ml_dtypes.bfloat16)

    case.check(on_gpu.get(case.run(on_gpu.put)))


@pytest.mark.gpu
def test_large_and_tiny_values_of_codes_keep_their_accuracy(on_gpu):
    for size in (1e-4, 300.0):
        case = Case(lengths=[300, 20], format=Format.INT8, value_scale=size)

        case.check(on_gpu.get(case.run(on_gpu.put)))


@pytest.mark.gpu
def test_rows_of_a_wider_array_are_read_in_place(on_gpu):
    case = Case(lengths=[300, 20])
    wide = np.full((2, 3, *case.query.shape[1:]), np.nan, case.query.dtype)
    wide[:, 1] = case.query

    out = case.run(on_gpu.put, query=on_gpu.put(wide)[:, 1])

    case.check(on_gpu.get(out))


@pytest.mark.gpu
def test_planned_once_and_captured_it_serves_all_layers_and_other_lengths(on_gpu):
    first = Case(lengths=[1000, 3, 0, 64], longest=3000, seed=0)
    attention = BatchDecode(first.layout, num_heads=14, dtype=np.float16)
    held = [on_gpu.put(array) for array in (first.query, first.tables, first.rows, first.lengths)]
    query, tables, rows, lengths = held
    cache = on_gpu.put(first.cache)
    outs = [on_gpu.put(np.full((4, 14, 128), np.nan, np.float16)) for _ in range(2)]

    def plan(stream):
        attention.plan(lengths, tables, table_rows=rows, stream=stream)

    def launch(stream, _):
        plan(stream)
        for out in outs:
            attention.run(
                query,
                Spans(cache, first.layout, layer=1),
                softmax_scale=first.scale,
                out=out,
                stream=stream,
            )

    with ExitStack() as stack:
        stack.enter_context(get_gpu().current())
        stream = stack.enter_context(new_stream())
        plan(stream)  # it allocates what the captured plans and runs then use
        replay = stack.enter_context(captured(stream, launch))
        for seed, other in ((1, [0, 900, 1, 17]), (2, [3000, 0, 33, 999])):
            case = Case(lengths=other, longest=3000, seed=seed)
            now = (case.query, case.tables, case.rows, case.lengths, case.cache)
            for array, values in zip((*held, cache), now, strict=True):
                array[:] = on_gpu.put(values)
            on_gpu.wait()
            replay()
            on_gpu.wait()

            for out in outs:
                case.check(on_gpu.get(out))


def in_host_memory(array):
    return array


class Case:
    """Queries, and layer 1 of 3 of a cache in which all that no token owns is NaN."""

    def __init__(
        self,
        *,
        lengths,
        heads=14,
        kv_heads=2,
        key_size=128,
        value_size=128,
        span_len=32,
        format=Format.FLOAT16,
        dtype=None,
        mla=False,
        heads_together=False,
        window=0,
        softcap=0.0,
        alibi=False,
        sinks=False,
        value_scale=1.0,
        longest=None,
        seed=0,
    ):
        draw = np.random.default_rng(seed)
        floats = {Format.BFLOAT16: ml_dtypes.bfloat16}.get(format, np.float16)
        self.dtype = np.dtype(floats if dtype is None else dtype)
        self.layout = SpanLayout.contiguous(
            span_len=span_len,
            kv_heads=kv_heads,
            key_size=key_size,
            value_size=value_size,
            format=format,
            num_layers=3,
            values_in_keys=mla,
        )
        if heads_together:
            self.layout = heads_of_a_token_together(self.layout)
        self.lengths = np.array(lengths, np.int32)
        self.window, self.softcap, self.scale = window, softcap, key_size**-0.5
        self.query = draw.standard_normal((len(lengths), heads, key_size)).astype(self.dtype) * 2
        self.query = self.query.astype(self.dtype)
        self.alibi = alibi_slopes(heads).astype(np.float32) if alibi else None
        self.sinks = draw.standard_normal(heads).astype(np.float32) * 3 if sinks else None
        self.rows = draw.permutation(len(lengths)).astype(np.int32)
        longest = max(*lengths, 1, longest or 0)
        columns, needed = -(-longest // span_len), -(-np.array(lengths) // span_len)
        num_spans = len(lengths) * columns + 2 if longest < 10_000 else int(needed.sum()) + 2
        numbers = iter(draw.permutation(num_spans))
        self.tables = np.full((len(lengths), columns), 2**30, np.int32)  # not to be followed
        self.cache = np.full(num_spans * self.layout.span_bytes, NAN, np.uint8)
        self.keys, self.values = [], []
        for request, length in enumerate(lengths):
            spans = [next(numbers) for _ in range(needed[request])]
            self.tables[self.rows[request], : len(spans)] = spans
            keys = draw.standard_normal((length, kv_heads, key_size))
            values = draw.standard_normal((length, kv_heads, value_size)) * value_scale
            self.keys.append(self.keep(spans, keys, self.layout.keys, self.layout.key_scales))
            if mla:
                self.values.append(self.keys[-1][..., :value_size])
                continue
            self.values.append(
                self.keep(spans, values, self.layout.values, self.layout.value_scales)
            )

    def keep(self, spans, x, place, scale_place):
        """Write x[N K D] into spans; return it as it can be read again."""
        codes, numbers, kept = stored(x, self.layout.format)
        self.write(spans, codes, place)
        if numbers is not None:
            self.write(spans, numbers, scale_place)
        return kept

    def write(self, spans, rows, place):
        """Write rows[N K …] of a request where its tokens lie."""
        layout, count = self.layout, len(rows)
        if not count:
            return
        rows = np.ascontiguousarray(rows).view(np.uint8).reshape(count, layout.kv_heads, -1)
        for token, row in enumerate(rows):
            at = (
                layout.layer_stride
                + place.offset
                + int(spans[token // layout.span_len]) * (layout.span_stride)
            )
            at += token % layout.span_len * place.token_stride
            for head, data in enumerate(row):
                begin = at + head * place.head_stride
                self.cache[begin : begin + data.size] = data

    def run(self, put, **other):
        """Decode; arguments may be others."""
        names = ("query", "tables", "lengths", "rows", "alibi", "sinks")
        arrays = {name: other.get(name, getattr(self, name)) for name in names}
        arrays = {
            name: put(array) if isinstance(array, np.ndarray) else array
            for name, array in arrays.items()
        }
        heads, lse = self.query.shape[1], other.get("lse", False)
        attention = BatchDecode(self.layout, num_heads=heads, dtype=self.dtype, lse=lse)
        attention.plan(
            arrays["lengths"],
            arrays["tables"],
            table_rows=arrays["rows"],
            window=self.window or None,
        )
        return attention.run(
            arrays["query"],
            Spans(put(self.cache), self.layout, layer=1),
            softmax_scale=self.scale,
            softcap=self.softcap or None,
            alibi_slopes=arrays["alibi"],
            sinks=arrays["sinks"],
            out=other.get("out"),
        )

    def expected(self):
        """[R H E] and log-sum-exps[R H] in float64; a bias is the slope times a key's distance."""
        heads, size = self.query.shape[1], self.layout.value_size
        results = np.zeros((len(self.lengths), heads, size))
        sums = np.full((len(self.lengths), heads), -np.inf)
        for request, length in enumerate(self.lengths):
            if not length:
                continue
            positions = np.arange(length)
            out, lse = attend_part(
                self.query[request : request + 1].astype(np.float64),
                *(self.keys[request], self.values[request], positions[-1:], positions),
                scale=self.scale,
                softcap=self.softcap or None,
                window=self.window or None,
                bias=None
                if self.alibi is None
                else alibi_bias(self.alibi.astype(np.float64), positions),
            )
            if self.alibi is not None:  # alibi_bias counts from position 0
                lse = lse - self.alibi * (length - 1)
            if self.sinks is not None:  # as the logit of a key whose value is 0
                total = np.logaddexp(lse, self.sinks)
                out, lse = out * np.exp(lse - total)[..., None], total
            results[request], sums[request] = out[0], lse[0]
        return results, sums

    def expected_by_hand(self, request):
        """The same for one request, written out."""
        length, (heads, _) = self.lengths[request], self.query.shape[1:]
        results, sums = [], []
        for head in range(heads):
            kv_head = head // (heads // self.layout.kv_heads)
            first = max(0, length - self.window) if self.window else 0
            logits = []
            for position in range(first, length):
                key = self.keys[request][position, kv_head]
                logit = self.scale * float(self.query[request, head].astype(np.float64) @ key)
                if self.softcap:
                    logit = self.softcap * np.tanh(logit / self.softcap)
                if self.alibi is not None:
                    logit += float(self.alibi[head]) * (position - length + 1)
                logits.append(logit)
            weights = np.exp(logits - np.max(logits))
            total = weights.sum()
            if self.sinks is not None:
                total += np.exp(self.sinks[head] - np.max(logits))
            results.append(weights / total @ self.values[request][first:length, kv_head])
            sums.append(np.log(total) + np.max(logits))
        return np.array(results), np.array(sums)

    def check(self, out):
        """Compare with the definition, row by row: a short row must not hide behind a long one."""
        expected, _ = self.expected()
        assert out.dtype == self.dtype
        for request, length in enumerate(self.lengths):
            error = relative_error(out[request].astype(np.float64), expected[request])
            assert error <= tolerance(self.dtype.name), (request, int(length), error)

    def check_lse(self, lse):
        """Compare with the definition; where there is no key, it is minus infinity."""
        np.testing.assert_allclose(lse, self.expected()[1], rtol=0, atol=1e-4)


def heads_of_a_token_together(layout):
    """The same spans with the heads of a token side by side, in each of their arrays."""

    def swapped(place):
        if place is None:
            return None
        return replace(
            place, head_stride=place.token_stride, token_stride=place.token_stride * layout.kv_heads
        )

    names = ("keys", "values", "key_scales", "value_scales")
    return replace(layout, **{name: swapped(getattr(layout, name)) for name in names})


def stored(x, format):
    """Codes of x, numbers beside them (or None), and x as both stand for it, in float64."""
    match format:
        case Format.FLOAT16 | Format.BFLOAT16:
            dtype = np.float16 if format is Format.FLOAT16 else ml_dtypes.bfloat16
            return x.astype(dtype), None, x.astype(dtype).astype(np.float64)
        case Format.FP8:
            codes, scale = quantize_fp8(x.astype(np.float32))
            kept = codes.astype(np.float64) * scale
            return codes.astype(ml_dtypes.float8_e4m3fn), scale.astype(np.float32), kept
    quantized = quantize_cache(
        x.astype(np.float32), CodeRange.INT8 if format is Format.INT8 else CodeRange.UINT4
    )
    numbers = np.concatenate([quantized.zero, quantized.scale], -1).astype(np.float32)
    kept = (quantized.codes.astype(np.float64) - quantized.zero) * quantized.scale
    codes = quantized.codes if format is Format.INT8 else pack_nibbles(quantized.codes)
    return codes, numbers, kept
