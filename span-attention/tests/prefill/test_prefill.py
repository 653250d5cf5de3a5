"""Prefill against its definition; the tests that need no GPU come first."""

from contextlib import ExitStack

import ml_dtypes
import numpy as np
import pytest
from span_attention import BatchPrefill, Format, SpanLayout, Spans, merge, prefill
from span_attention.prefill import batch, hopper
from span_attention.prefill.general import variant_for
from span_attention.prefill.tuning import (
    heads_of_shared_tile,
    heads_of_tile,
    launch,
    plan_bytes,
    tiles,
)
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

GPU = Gpu(0, "none", "sm_90a", sm_count=132, shared_bytes=232_448, l2_bytes=0, context=0)
HOPPER, AMPERE, TURING = 232_448, 101_376, 65_536


@pytest.mark.parametrize("shared_bytes", [HOPPER, AMPERE, TURING])
@pytest.mark.parametrize(
    ("key_size", "value_size", "in_keys"),
    [(64, 64, False), (96, 96, False), (256, 256, False), (192, 128, False), (576, 512, True)],
)
def test_tiles_of_every_size_fit_every_gpu(key_size, value_size, in_keys, shared_bytes):
    cut = tiles(key_size, value_size, in_keys=in_keys, bits=16, shared_bytes=shared_bytes)

    assert cut.shared_bytes <= shared_bytes
    assert value_size % cut.value_tile == 0


def test_sizes_that_matrices_do_not_divide_are_refused():
    with pytest.raises(ShapeError, match="key_size is 72; prefill takes multiples of 16"):
        tiles(72, 64, in_keys=False, bits=16, shared_bytes=HOPPER)
    with pytest.raises(ShapeError, match="value_size is 80; prefill takes multiples of 32"):
        tiles(64, 80, in_keys=False, bits=4, shared_bytes=HOPPER)


@pytest.mark.parametrize(
    ("ratio", "lines", "rows", "slices", "heads"),
    [
        (7, 128, 4096, 1, 1),  # 224 tiles of one head, 228 of seven: both two rounds of 132
        (7, 128, 512, 1, 1),
        (7, 128, 256, 256, 7),  # 1792 tasks against 256
        (16, 64, 100, 100, 16),
        (128, 64, 1000, 1000, 64),
        (71, 64, 1000, 1000, 1),  # 71 heads do not fit, and no number divides them
    ],
)
def test_heads_share_a_tile_where_that_saves_rounds(ratio, lines, rows, slices, heads):
    sizes = dict(rows=rows, slices=slices, kv_heads=1, sm_count=132)

    assert heads_of_tile(ratio, lines, **sizes) == heads


@pytest.mark.parametrize(("rows", "heads"), [(40, 7), (100, 7), (200, 7), (128, 1)])
def test_where_tasks_are_shared_heads_share_tiles_that_saves_many(rows, heads):
    assert heads_of_shared_tile(7, 128, rows=rows, slices=1) == heads


def test_registers_and_memory_bound_the_blocks_that_run_at_once():
    cut = tiles(128, 128, in_keys=False, bits=16, shared_bytes=HOPPER)

    assert launch(cut, registers=240, sm_count=132, shared_bytes=HOPPER) == Launch(
        (264, 1, 1), (128, 1, 1), cut.shared_bytes
    )


def test_a_plan_has_room_for_a_tile_more_per_slice():
    assert plan_bytes(rows=0, slices=1, lines=128, ratio=7, most_sharers=0) == 4 * (8 + 4)
    assert plan_bytes(180, 4, lines=128, ratio=7, most_sharers=131) == 4 * (140 + 4 * 14)


def test_floats_of_two_types_are_refused_by_name():
    layout = layout_of(Format.FLOAT16)

    with pytest.raises(DTypeError, match="spans hold float16, but query bfloat16"):
        variant_for(prefill.PrefillOptions("bfloat16"), layout, HOPPER)
    with pytest.raises(DTypeError, match="query holds float32; prefill takes float16 and bfloat16"):
        variant_for(prefill.PrefillOptions("float32"), layout, HOPPER)


@pytest.mark.parametrize("lse", [False, True])
def test_variants_with_and_without_log_sum_exps_are_two(lse):
    variant, _ = variant_for(
        prefill.PrefillOptions("float16", lse), layout_of(Format.FLOAT16), HOPPER
    )

    assert dict(variant.macros)["LSE"] == str(int(lse))


def test_query_heads_must_share_key_heads_evenly():
    with pytest.raises(ShapeError, match="7 query heads are not a multiple of 2"):
        prefill.prepare(
            prefill.PrefillOptions("float16"), layout_of(Format.FLOAT16), heads=7, gpu=GPU
        )


def test_arguments_that_do_not_fit_are_named():
    case = Case([(3, 5)])

    with pytest.raises(DeviceError, match="query_start_loc lies in cpu memory"):
        case.run(in_host_memory)
    case.lengths = case.lengths.astype(np.int64)
    with pytest.raises(DTypeError, match="seq_lens holds int64, but the kernel needs int32"):
        case.run(in_host_memory)
    case.lengths = np.zeros(2, np.int32)
    with pytest.raises(ShapeError, match="seq_lens: R is 2, but table_rows has R = 1"):
        case.run(in_host_memory)


def test_tables_that_cannot_be_read_row_by_row_are_refused():
    case = Case([(3, 5)])
    case.tables = np.asfortranarray(np.zeros((3, 4), np.int32))

    with pytest.raises(ShapeError, match="span_tables must be contiguous"):
        case.run(in_host_memory)


def test_a_run_without_a_plan_says_what_is_missing():
    layout = layout_of(Format.FLOAT16)
    attention = BatchPrefill(layout, num_heads=4, dtype="float16")

    with pytest.raises(ShapeError, match=r"no step is planned; call plan\(query_start_loc, …\)"):
        attention.run(0, Spans(0, layout), softmax_scale=1.0, out=0, stream=77)


@pytest.mark.gpu
def test_queries_that_cannot_be_read_row_by_row_are_refused(on_gpu):
    case = Case([(3, 5)])
    wide = on_gpu.put(np.zeros(case.query.size + 1, np.float16))[1:]

    case.query = wide.reshape(case.query.shape)

    with pytest.raises(ShapeError, match="query: every row must begin at a multiple of 16 bytes"):
        case.run(lambda array: on_gpu.put(array) if isinstance(array, np.ndarray) else array)


@pytest.mark.gpu
def test_results_in_another_memory_are_refused(on_gpu):
    case = Case([(3, 5)])

    with pytest.raises(DeviceError, match="out lies on cpu"):
        case.run(on_gpu.put, out=np.zeros(case.query.shape, np.float16))


MIXED = [(1, 1), (7, 300), (130, 130), (1, 517), (0, 0), (64, 64), (33, 1000)]
MANY = {
    "one row": dict(slices=[(1, 1)]),
    "mixed slices": dict(slices=MIXED),
    "one head": dict(slices=MIXED, heads=1, kv_heads=1),
    "seven heads to one": dict(slices=MIXED, heads=14, kv_heads=2, key_size=128, value_size=128),
    "sixteen heads to one": dict(slices=MIXED, heads=16, kv_heads=1, span_len=128),
    "five heads to one, long": dict(slices=[(257, 4099)], heads=10, key_size=128, value_size=128),
    "head size 96": dict(slices=MIXED, key_size=96, value_size=96, span_len=64),
    "head size 256": dict(slices=MIXED, key_size=256, value_size=256, span_len=32),
    "values narrower than keys": dict(slices=MIXED, key_size=192, value_size=128),
    "values in keys": dict(
        slices=MIXED, heads=16, kv_heads=1, key_size=576, value_size=512, in_keys=True
    ),
    "more heads than lines": dict(slices=[(3, 70)], heads=192, kv_heads=1),
    "window": dict(slices=MIXED, window=37, key_size=128, value_size=128),
    "wide window": dict(slices=[(200, 900), (3, 4)], window=300),
    "softcap": dict(slices=MIXED, softcap=20.0, key_size=128, value_size=128),
    "alibi": dict(slices=MIXED, heads=8, kv_heads=4, alibi=True),
    "sinks": dict(slices=MIXED, sinks=True, window=128, key_size=64, value_size=64),
    "everything": dict(slices=MIXED, softcap=30.0, window=200, alibi=True, sinks=True, span_len=32),
}


@pytest.fixture(params=["the chosen kernel", "the general kernel"])
def kernel(request, monkeypatch):
    """Which kernel runs: the one for this GPU, or the one for any."""
    batch._kernel_for.cache_clear()
    if request.param == "the general kernel":
        monkeypatch.setattr(hopper, "ARCHITECTURE", "another")
    yield
    batch._kernel_for.cache_clear()


@pytest.mark.gpu
@pytest.mark.usefixtures("kernel")
@pytest.mark.parametrize("format", [Format.FLOAT16, Format.BFLOAT16], ids=lambda it: it.label)
@pytest.mark.parametrize("name", MANY)
def test_attention_is_its_definition(on_gpu, format, name):
    case = Case(format=format, **MANY[name])

    case.check(on_gpu.get(case.run(on_gpu.put)))


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("format", [Format.FP8, Format.INT8, Format.UINT4], ids=lambda it: it.label)
@pytest.mark.parametrize(
    "sizes",
    [
        dict(key_size=64, value_size=64),
        dict(key_size=128, value_size=128, heads=14),
        dict(key_size=192, value_size=128, span_len=64),
        dict(key_size=576, value_size=512, in_keys=True, heads=16, kv_heads=1),
        dict(key_size=96, value_size=96, window=37, softcap=20.0, span_len=32),
        dict(key_size=256, value_size=256, heads=8, kv_heads=1, sinks=True),
        dict(key_size=128, value_size=128, heads=32, window=200, alibi=True, span_len=128),
    ],
    ids=lambda sizes: " ".join(f"{name} {size}" for name, size in sizes.items()),
)
def test_codes_are_read_as_what_they_stand_for(on_gpu, dtype, format, sizes):
    case = Case(MIXED, format=format, dtype=dtype, **sizes)

    case.check(on_gpu.get(case.run(on_gpu.put)))


@pytest.mark.gpu
@pytest.mark.usefixtures("kernel")
@pytest.mark.parametrize("window", [0, 50, 300])
def test_a_row_is_the_same_whatever_slice_it_comes_in(on_gpu, window):
    whole = Case([(400, 700)], heads=14, key_size=128, value_size=128, window=window)
    expected = on_gpu.get(whole.run(on_gpu.put))

    for cut in (1, 129, 399):
        parts = [whole.of_rows(0, cut), whole.of_rows(cut, 400)]
        got = np.concatenate([on_gpu.get(part.run(on_gpu.put)) for part in parts])

        np.testing.assert_array_equal(got, expected)


FEW = {
    "a short rest of a long prompt": dict(slices=[(40, 4000)]),
    "single rows": dict(slices=[(1, 5000), (1, 3), (2, 130), (1, 900)]),
    "one head": dict(slices=[(3, 3000)], heads=1, kv_heads=1),
    "window": dict(slices=[(9, 5000), (2, 600)], window=1700),
    "everything": dict(
        slices=[(20, 3000), (5, 70)], softcap=30.0, window=2000, alibi=True, sinks=True
    ),
}


@pytest.mark.gpu
@pytest.mark.parametrize("name", FEW)
def test_split_tasks_add_up(on_gpu, name):
    case = Case(**{"heads": 14, "key_size": 128, "value_size": 128, **FEW[name]})

    for _ in range(2):
        case.check(on_gpu.get(case.run(on_gpu.put, splits=True)))


@pytest.mark.gpu
@pytest.mark.usefixtures("kernel")
@pytest.mark.parametrize("splits", [False, True])
def test_rows_of_slices_of_length_zero_are_left_alone(on_gpu, splits):
    whole, case = (Case([(1, 9), (1, 1), (40, 900), (3, 3)]) for _ in range(2))
    case.lengths[[1, 3]] = 0
    case.rows[[1, 3]] = -(2**20)  # nobody may look there
    out = on_gpu.put(np.full((45, 4, 64), np.nan, np.float16))

    got = on_gpu.get(case.run(on_gpu.put, out=out, splits=splits))

    padding = [1, 42, 43, 44]
    assert np.isnan(got[padding]).all()
    got[padding] = whole.expected()[padding]
    whole.check(got)


LSE = [
    *("mixed slices", "seven heads to one", "head size 96", "head size 256", "wide window"),
    *("values narrower than keys", "values in keys", "more heads than lines", "everything"),
]


@pytest.mark.gpu
@pytest.mark.usefixtures("kernel")
@pytest.mark.parametrize("format", [Format.FLOAT16, Format.BFLOAT16], ids=lambda it: it.label)
@pytest.mark.parametrize("name", LSE)
def test_log_sum_exps_are_their_definition(on_gpu, format, name):
    case = Case(format=format, **MANY[name])

    out, lse = map(on_gpu.get, case.run(on_gpu.put, lse=True))

    case.check(out)
    case.check_lse(lse)


@pytest.mark.gpu
@pytest.mark.parametrize("format", [Format.FP8, Format.INT8, Format.UINT4], ids=lambda it: it.label)
def test_log_sum_exps_are_those_of_what_codes_stand_for(on_gpu, format):
    case = Case(MIXED, format=format, dtype="float16", key_size=128, value_size=128, heads=14)

    case.check_lse(on_gpu.get(case.run(on_gpu.put, lse=True)[1]))


@pytest.mark.gpu
@pytest.mark.parametrize("name", FEW)
def test_split_tasks_have_one_log_sum_exp(on_gpu, name):
    case = Case(**{"heads": 14, "key_size": 128, "value_size": 128, **FEW[name]})

    case.check_lse(on_gpu.get(case.run(on_gpu.put, splits=True, lse=True)[1]))


@pytest.mark.gpu
@pytest.mark.usefixtures("kernel")
@pytest.mark.parametrize("format", [Format.FLOAT16, Format.INT8], ids=lambda it: it.label)
@pytest.mark.parametrize(
    "options",
    [dict(), dict(softcap=20.0, alibi=True), dict(sinks=True)],
    ids=lambda options: " ".join(options) or "plain",
)
def test_what_was_there_before_and_the_new_rows_merge_into_all_keys(on_gpu, format, options):
    slices = [(40, 1000), (9, 89), (1, 17)]
    sizes = dict(heads=14, key_size=128, value_size=128, dtype="float16")
    case = Case(slices, format=format, **sizes, **options)
    shape = (2, *case.query.shape[:2])
    outputs = on_gpu.put(np.full((*shape, 128), np.nan, np.float16))
    lse = on_gpu.put(np.full(shape, np.nan, np.float32))

    for number, part in enumerate((case.keys_before(), case.own_keys())):
        part.run(on_gpu.put, out=(outputs[number], lse[number]), lse=True)
    sums = on_gpu.get(lse)
    if case.alibi is not None:  # rows stand that far behind what they have read first
        sums[0] -= case.alibi * case.distances()[:, None]
    merged, total = map(on_gpu.get, merge.merge(outputs, on_gpu.put(sums)))

    case.check(merged)
    case.check_lse(total)


@pytest.mark.gpu
@pytest.mark.usefixtures("kernel")
@pytest.mark.parametrize("splits", [False, True])
@pytest.mark.parametrize("format", [Format.FLOAT16, Format.INT8], ids=lambda it: it.label)
@pytest.mark.parametrize("sizes", [(128, 128), (192, 128)])
def test_what_is_not_causal_sees_every_key_in_front_of_its_slice(on_gpu, format, sizes, splits):
    slices = [(300, 1000), (40, 2040), (9, 89), (1, 65)]
    key_size, value_size = sizes
    options = dict(heads=8, key_size=key_size, value_size=value_size, dtype="float16")
    case = Case(slices, format=format, **options)

    out, lse = map(on_gpu.get, case.before().run(on_gpu.put, lse=True, splits=splits, causal=False))

    case.keys_before().check(out)
    case.keys_before().check_lse(lse)


@pytest.mark.gpu
def test_a_window_is_refused_where_attention_is_not_causal(on_gpu):
    case = Case([(4, 40)], window=8)

    with pytest.raises(ShapeError, match="window is 8"):
        case.run(on_gpu.put, causal=False)


@pytest.mark.gpu
def test_rows_outside_of_the_slices_are_left_alone(on_gpu):
    case = Case([(5, 9), (40, 40)])
    case.bounds = case.bounds + 2
    case.query = np.concatenate([case.query[:2], case.query, case.query[:3]])
    out = on_gpu.put(np.full((50, 4, 64), np.nan, np.float16))
    lse = on_gpu.put(np.full((50, 4), np.nan, np.float32))

    for got in map(on_gpu.get, case.run(on_gpu.put, out=(out, lse), lse=True)):
        assert np.isnan(got[[0, 1, 47, 48, 49]]).all()
        assert not np.isnan(got[2:47]).any()


@pytest.mark.gpu
def test_no_slices_are_no_launch(on_gpu):
    case = Case([])

    assert on_gpu.get(case.run(on_gpu.put)).shape == (0, 4, 64)


@pytest.mark.gpu
def test_strided_queries_are_read_where_they_lie(on_gpu):
    case = Case(MIXED)
    wide = np.full((len(case.query), 9, 64), np.nan, np.float16)
    wide[:, 2:6] = case.query

    case.query = wide
    got = on_gpu.get(
        case.run(lambda array: on_gpu.put(array)[:, 2:6] if array is wide else on_gpu.put(array))
    )
    case.query = wide[:, 2:6]

    case.check(got)


@pytest.mark.gpu
@pytest.mark.parametrize("splits", [False, True])
def test_prepared_and_captured_it_runs_on_whatever_the_input_then_holds(on_gpu, splits):
    first = Case(MIXED, seed=0)
    attention = BatchPrefill(first.layout, num_heads=4, dtype="float16", splits=splits)
    names = ("query", "tables", "rows", "bounds", "lengths")
    held = {name: on_gpu.put(getattr(first, name)) for name in (*names, "cache")}
    out = on_gpu.put(np.zeros(first.query.shape, np.float16))

    def plan(stream):
        attention.plan(
            held["bounds"],
            held["lengths"],
            held["tables"],
            table_rows=held["rows"],
            num_tokens=len(first.query),
            stream=stream,
        )

    def launch(stream, _):
        plan(stream)
        for _layer in range(2):
            attention.run(
                held["query"],
                Spans(held["cache"], first.layout, 1),
                softmax_scale=first.scale,
                out=out,
                stream=stream,
            )

    with ExitStack() as stack:
        stack.enter_context(get_gpu().current())
        stream = stack.enter_context(new_stream())
        plan(stream)  # it allocates what the captured plans and runs then use
        replay = stack.enter_context(captured(stream, launch))
        for slices in (MIXED, MIXED[::-1]):
            case = Case(slices, seed=1)
            for name in held:
                now = getattr(case, name)
                held[name][: len(now)] = on_gpu.put(now)
            on_gpu.wait()
            replay()
            on_gpu.wait()

            case.check(on_gpu.get(out))


def in_host_memory(array):
    return array


def layout_of(format, span_len=16, kv_heads=2, key_size=64, value_size=64, in_keys=False):
    return SpanLayout.contiguous(
        span_len=span_len,
        kv_heads=kv_heads,
        key_size=key_size,
        value_size=value_size,
        format=format,
        num_layers=2,
        values_in_keys=in_keys,
    )


STORED = {
    Format.FLOAT16: np.dtype(np.float16),
    Format.BFLOAT16: np.dtype(ml_dtypes.bfloat16),
    Format.FP8: np.dtype(ml_dtypes.float8_e4m3fn),
    Format.INT8: np.dtype(np.int8),
    Format.UINT4: np.dtype(np.uint8),
}
NAN_BYTE = 0xFF  # of it, every float format makes NaN


class Case:
    """Arguments of a prefill of slices (rows, length), in layer 1 of 2.

    Whatever is no key or value of a slice is NaN in the cache, and no span in the tables; what a
    window hides from all rows of a slice is a span of NaN, as one that was never written.
    """

    def __init__(
        self,
        slices,
        *,
        heads=4,
        kv_heads=2,
        key_size=64,
        value_size=64,
        format=Format.FLOAT16,
        dtype=None,
        span_len=16,
        in_keys=False,
        window=0,
        softcap=0.0,
        alibi=False,
        sinks=False,
        seed=0,
    ):
        draw = np.random.default_rng(seed)
        self.layout = layout_of(format, span_len, kv_heads, key_size, value_size, in_keys)
        self.dtype = np.dtype(STORED[format] if dtype is None else STORED[Format[dtype.upper()]])
        self.window, self.softcap, self.scale = window, softcap, key_size**-0.5
        self.alibi = alibi_slopes(heads).astype(np.float32) if alibi else None
        self.sinks = draw.standard_normal(heads).astype(np.float32) if sinks else None
        counts, lengths = np.array(slices, np.int32).reshape(-1, 2).T
        self.lengths = np.ascontiguousarray(lengths)
        self.bounds = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
        self.query = draw.standard_normal((self.bounds[-1], heads, key_size))
        self.query = self.query.astype(self.dtype)

        spans_of = -(-lengths // span_len)
        num_spans = int(spans_of.sum()) + 3
        self.rows = draw.permutation(len(slices) + 2)[: len(slices)].astype(np.int32)
        self.tables = np.full((len(slices) + 2, max([1, *spans_of]) + 1), 2**30, np.int32)
        self.cache = np.full(num_spans * self.layout.span_stride, NAN_BYTE, np.uint8)
        free = iter(draw.permutation(num_spans))
        self.kept = []
        never_written = next(free)
        for row, length, count in zip(self.rows, lengths, spans_of, strict=True):
            self.tables[row, :count] = [next(free) for _ in range(count)]
            self.kept.append(self._fill(draw, self.tables[row], length))
        if window:
            for row, unseen in zip(self.rows, (lengths - counts - window) // span_len, strict=True):
                self.tables[row, : max(unseen, 0)] = never_written

    def _fill(self, draw, table, length):
        """Write random keys and values of one request; return what attention must read."""
        layout = self.layout
        where = (
            *(table[np.arange(length) // layout.span_len], np.arange(length) % layout.span_len),
        )
        parts = [(layout.keys, layout.key_scales, layout.key_size)]
        if layout.values != layout.keys:
            parts.append((layout.values, layout.value_scales, layout.value_size))
        kept = []
        for place, scales, size in parts:
            x = draw.standard_normal((length, layout.kv_heads, size)).astype(np.float32)
            codes, numbers, stands_for = stored(x, layout.format)
            dtype = STORED[layout.format]
            self._layer(place, codes.shape[-1], dtype)[where] = codes.astype(dtype)
            if scales is not None:
                self._layer(scales, numbers.shape[-1], np.dtype(np.float32))[where] = numbers
            kept.append(stands_for.astype(np.float64))
        return kept[0], kept[-1][..., : layout.value_size]

    def _layer(self, place, size, dtype):
        """Layer 1 of the cache as [S L K size]."""
        layout = self.layout
        shape = (len(self.cache) // layout.span_stride, layout.span_len, layout.kv_heads, size)
        strides = (layout.span_stride, place.token_stride, place.head_stride, dtype.itemsize)
        begin = layout.layer_stride + place.offset
        return np.ndarray(shape, dtype, self.cache.data, begin, strides)

    def of_rows(self, start, stop):
        """Return a case of rows start .. stop of this one's only slice."""
        part = object.__new__(Case)
        part.__dict__.update(self.__dict__)
        part.query = self.query[start:stop]
        part.bounds = np.array([0, stop - start], np.int32)
        part.lengths = self.lengths - np.int32(len(self.query) - stop)
        return part

    def keys_before(self):
        """Return a case in which a row is a slice, and sees all keys in front of its own slice."""
        part = object.__new__(Case)
        part.__dict__.update(self.__dict__)
        counts = np.diff(self.bounds)
        part.bounds = np.arange(len(self.query) + 1, dtype=np.int32)
        part.rows = np.repeat(self.rows, counts)
        part.lengths = np.repeat(self.lengths - counts, counts)
        part.kept = [
            tuple(array[:before] for array in kept)
            for kept, before, count in zip(self.kept, self.lengths - counts, counts, strict=True)
            for _ in range(count)
        ]
        return part

    def before(self):
        """Return a case of the same slices whose rows see all keys in front of their own slice."""
        part = object.__new__(Case)
        part.__dict__.update(self.__dict__)
        part.lengths = self.lengths - np.diff(self.bounds)
        return part

    def own_keys(self):
        """Return a case of the keys of the slices' own rows, which begin spans. It has no sinks."""
        part = object.__new__(Case)
        part.__dict__.update(self.__dict__)
        part.sinks = None
        part.lengths = np.diff(self.bounds)
        part.tables = np.full_like(self.tables, 2**30)
        for row, before in zip(self.rows, self.lengths - part.lengths, strict=True):
            spans, rest = divmod(before, self.layout.span_len)
            assert rest == 0
            part.tables[row, : self.tables.shape[1] - spans] = self.tables[row, spans:]
        return part

    def distances(self):
        """[T]: how far rows stand behind the last key in front of their slice."""
        return np.concatenate([np.arange(1, count + 1) for count in np.diff(self.bounds)])

    def run(self, put, out=None, splits=False, lse=False, causal=True):
        """Return the attention of the case."""
        query = put(self.query)  # which may be a part of it
        attention = BatchPrefill(
            self.layout,
            num_heads=query.shape[1],
            dtype=self.query.dtype if isinstance(self.query, np.ndarray) else "float16",
            splits=splits,
            lse=lse,
            causal=causal,
        )
        attention.plan(
            put(self.bounds),
            put(self.lengths),
            put(self.tables),
            table_rows=put(self.rows),
            num_tokens=len(self.query),
            window=self.window or None,
        )
        return attention.run(
            query,
            Spans(put(self.cache), self.layout, 1),
            softmax_scale=self.scale,
            softcap=self.softcap or None,
            alibi_slopes=None if self.alibi is None else put(self.alibi),
            sinks=None if self.sinks is None else put(self.sinks),
            out=out,
        )

    def expected(self):
        """[T H E] in float64."""
        heads, size = self.query.shape[1], self.layout.value_size
        return np.concatenate([np.zeros((0, heads, size)), *(out for out, _ in self.parts())])

    def expected_lse(self):
        """[T H] in float64; the bias of a score is its slope times the distance of the key."""
        return np.concatenate([lse for _, lse in self.parts()])

    def parts(self):
        """Yield the expected output and log-sum-exp of each slice."""
        for number, (keys, values) in enumerate(self.kept):
            query = self.query[self.bounds[number] : self.bounds[number + 1]].astype(np.float64)
            positions = np.arange(len(keys))
            part, lse = attend_part(
                *(query, keys, values, positions[len(keys) - len(query) :], positions),
                scale=self.scale,
                softcap=self.softcap or None,
                window=self.window or None,
                bias=None if self.alibi is None else alibi_bias(self.alibi, positions),
            )
            if self.alibi is not None:  # alibi_bias counts from position 0
                lse = lse - self.alibi * positions[len(keys) - len(query) :, None]
            if self.sinks is not None:
                total = np.logaddexp(lse, self.sinks)
                part, lse = part * np.exp(lse - total)[..., None], total
            yield part, lse

    def check(self, got):
        """Compare each head of a row, on its own scale, with the definition.

        Codes are rounded once more than floats are, when they become floats.
        """
        limit = tolerance(self.dtype.name) * (2 if self.layout.format.num_scales else 1)
        expected = self.expected()
        scale = np.sqrt(np.mean(expected**2, axis=-1, keepdims=True))
        assert relative_error(got.astype(np.float64) / scale, expected / scale) <= limit

    def check_lse(self, got):
        """Compare with the definition; keys that codes stand for are rounded to halves."""
        limit = 2e-3 if self.layout.format.num_scales else 1e-4
        np.testing.assert_allclose(got, self.expected_lse(), rtol=0, atol=limit)


def stored(x, format):
    """Return x[T K D] as it lies in spans: codes, the numbers beside them, what both stand for."""
    match format:
        case Format.FLOAT16 | Format.BFLOAT16:
            x = x.astype(STORED[format])
            return x, None, x
        case Format.FP8:
            codes, scale = quantize_fp8(x)
            return codes, scale, codes * scale
        case _:
            made = quantize_cache(x, CodeRange[format.name])
            codes = pack_nibbles(made.codes) if format is Format.UINT4 else made.codes
            return codes, np.concatenate([made.zero, made.scale], -1), made.dequantize()
