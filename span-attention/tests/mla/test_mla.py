"""Latent attention against its definition; the tests that need no GPU come first."""

from contextlib import ExitStack

import ml_dtypes
import numpy as np
import pytest
from span_attention import BatchMLA, Format, SpanLayout, Spans
from span_attention.mla import divide
from spaninfer_kernel_launch import ShapeError, captured, get_gpu, new_stream
from spaninfer_op_reference import attend_part, quantize_fp8, relative_error, tolerance

SM_COUNT = 132
SHARED_BYTES = 232_448  # of a thread block on Hopper


@pytest.mark.parametrize(
    ("lines", "slices", "tile", "lanes"),
    [
        (16 * 128, 128, 16, 1),  # 16 heads of 128 requests
        (32 * 7, 7, 32, 1),
        (64, 1, 64, 1),
        (128 * 64, 64, 64, 2),  # both tiles of a request's heads read its keys together
        (128 * 2 * 64, 64, 64, 4),
        (128 * 4000, 1, 64, 4),
    ],
)
def test_tiles_hold_the_lines_of_a_slice_and_share_its_keys(lines, slices, tile, lanes):
    division = divide(lines, slices, SM_COUNT, splits=True)

    assert (division.tile, division.lanes) == (tile, lanes)
    assert SM_COUNT - lanes < division.blocks <= SM_COUNT
    assert division.shared_bytes <= SHARED_BYTES


def test_tiles_that_are_not_split_are_the_same_for_every_step():
    tiles = {divide(lines, 4, SM_COUNT, splits=False).tile for lines in (4, 64, 128, 1000, 100_000)}

    assert tiles == {64}


def test_a_run_without_a_plan_says_what_is_missing():
    layout = layout_of(Format.FLOAT16)

    with pytest.raises(ShapeError, match=r"no step is planned; call plan\(query_start_loc, …\)"):
        BatchMLA(layout, num_heads=16, dtype="float16").run(
            0, Spans(0, layout), softmax_scale=1.0, out=0, stream=77
        )


SINGLE = [(1, n) for n in (1, 63, 64, 65, 31, 33, 127, 128, 129, 600, 2, 1000)]
FEW = [(3, n) for n in (3, 64, 65, 66, 130, 700)]
MIXED = [(90, 90), (1, 5), (30, 500), (64, 64), (5, 6), (2, 66)]
STEPS = {
    "16 heads": dict(slices=SINGLE, heads=16),
    "16 heads, one of 20,000 tokens": dict(slices=[(1, 20_000), (1, 7)], heads=16, span_len=64),
    "16 heads, many requests": dict(slices=[(1, 9 + 3 * n) for n in range(300)], heads=16),
    "5 heads, 3 tokens each": dict(slices=FEW, heads=5, span_len=128),
    "20 heads": dict(slices=SINGLE, heads=20),
    "16 heads, 2 tokens each": dict(slices=[(2, 65), (2, 2), (2, 300)], heads=16),
    "16 heads, 3 tokens each": dict(slices=FEW, heads=16),
    "40 heads": dict(slices=SINGLE, heads=40),
    "64 heads": dict(slices=SINGLE, heads=64),
    "128 heads": dict(slices=SINGLE, heads=128),
    "128 heads, 3 tokens each": dict(slices=FEW, heads=128, span_len=64),
    "128 heads, one of 20,000 tokens": dict(slices=[(1, 20_000), (1, 7)], heads=128),
    "16 heads, prompts": dict(slices=MIXED, heads=16),
    "128 heads, prompts": dict(slices=MIXED, heads=128),
}


@pytest.mark.gpu
@pytest.mark.parametrize("format", [Format.FLOAT16, Format.BFLOAT16], ids=lambda it: it.label)
@pytest.mark.parametrize("name", STEPS)
def test_latent_attention_is_its_definition(on_gpu, format, name):
    step = LatentStep(format=format, **STEPS[name])

    step.check(*map(on_gpu.get, step.run(on_gpu.put, lse=True)))


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("name", STEPS)
def test_fp8_latents_are_read_as_what_they_stand_for(on_gpu, dtype, name):
    dtype = DTYPES[Format[dtype.upper()]]
    step = LatentStep(format=Format.FP8, dtype=dtype, **STEPS[name])

    step.check(*map(on_gpu.get, step.run(on_gpu.put, lse=True)))


@pytest.mark.gpu
@pytest.mark.parametrize("format", [Format.FLOAT16, Format.FP8], ids=lambda it: it.label)
@pytest.mark.parametrize("heads", [4, 16, 128])
def test_where_attention_is_not_causal_each_query_sees_all_tokens(on_gpu, format, heads):
    slices = [(3, 100), (40, 0), (20, 65), (100, 1), (1, 2000)]
    step = LatentStep(slices, heads=heads, format=format, dtype=np.float16, causal=False)

    step.check(*map(on_gpu.get, step.run(on_gpu.put, lse=True)))


@pytest.mark.gpu
def test_other_sizes_are_refused_where_attention_is_not_causal(on_gpu):
    step = LatentStep([(3, 5)], heads=8, sizes=(96, 64), causal=False)

    with pytest.raises(ShapeError, match="make each query a slice, or use causal=True"):
        step.run(on_gpu.put)


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["16 heads", "128 heads", "16 heads, prompts"])
def test_without_log_sum_exps_results_are_the_definition_too(on_gpu, name):
    step = LatentStep(**STEPS[name])

    step.check(on_gpu.get(step.run(on_gpu.put, lse=False)))


@pytest.mark.gpu
@pytest.mark.parametrize("heads", [16, 128])
def test_padding_reads_nothing_and_is_zero(on_gpu, heads):
    step = LatentStep([(1, 70), (1, 1), (1, 200)], heads=heads)
    step.lengths[1] = 0
    step.rows[1] = -(2**20)  # nobody may look there

    out, lse = map(on_gpu.get, step.run(on_gpu.put, lse=True))

    assert not out[1].any()
    assert np.isneginf(lse[1]).all()
    expected, sums = step.expected()
    out[1], lse[1] = expected[1], sums[1]
    step.check(out, lse)


@pytest.mark.gpu
@pytest.mark.parametrize("heads", [16, 128])
def test_a_row_is_the_same_whatever_step_it_comes_in_where_tiles_are_whole(on_gpu, heads):
    whole = LatentStep([(150, 700)], heads=heads)
    expected = on_gpu.get(whole.run(on_gpu.put, splits=False))

    for cut in (1, 77, 149):
        parts = [whole.of_rows(0, cut), whole.of_rows(cut, 150)]
        got = np.concatenate([on_gpu.get(part.run(on_gpu.put, splits=False)) for part in parts])

        np.testing.assert_array_equal(got, expected)


@pytest.mark.gpu
@pytest.mark.parametrize("heads", [16, 128])
def test_captured_it_runs_on_whatever_the_input_then_holds(on_gpu, heads):
    slices = [(1, 3000), (1, 1), (1, 65), (1, 900)]
    first = LatentStep(slices, heads=heads)
    attention = BatchMLA(first.layout, num_heads=heads, dtype="float16")
    names = ("query", "tables", "rows", "bounds", "lengths", "cache")
    held = {name: on_gpu.put(getattr(first, name)) for name in names}
    out = on_gpu.put(np.full((4, heads, 512), np.nan, np.float16))

    def launch(stream, _=None):
        first.plan(attention, held, stream)
        for _layer in range(2):
            spans = Spans(held["cache"], first.layout, 1)
            attention.run(held["query"], spans, softmax_scale=first.scale, out=out, stream=stream)

    with ExitStack() as stack:
        stack.enter_context(get_gpu().current())
        stream = stack.enter_context(new_stream())
        launch(stream)  # it allocates what the captured plans and runs then use
        replay = stack.enter_context(captured(stream, launch))
        for again in (slices, slices[::-1]):
            step = LatentStep(again, heads=heads, seed=1)
            for name in names:
                now = getattr(step, name)
                held[name][: len(now)] = on_gpu.put(now)
            on_gpu.wait()
            replay()
            on_gpu.wait()

            step.check(on_gpu.get(out))


@pytest.mark.gpu
def test_queries_with_gaps_between_rows_are_refused(on_gpu):
    step = LatentStep([(2, 9)], heads=4)
    wide = on_gpu.put(np.zeros((2, 5, 576), np.float16))

    with pytest.raises(ShapeError, match="latent attention takes dense rows of 2304"):
        step.run(lambda array: wide[:, :4] if array is step.query else on_gpu.put(array))


@pytest.mark.gpu
@pytest.mark.parametrize("slices", [[(1, 5), (1, 90)], [(3, 5), (1, 90)]], ids=str)
def test_latents_of_other_sizes_are_left_to_the_kernels_for_all_sizes(on_gpu, slices):
    step = LatentStep(slices, heads=8, sizes=(96, 64))

    step.check(*map(on_gpu.get, step.run(on_gpu.put, lse=True)))


def layout_of(format, span_len=32, sizes=(576, 512)):
    key_size, value_size = sizes
    return SpanLayout.contiguous(
        span_len=span_len,
        kv_heads=1,
        key_size=key_size,
        value_size=value_size,
        format=format,
        num_layers=2,
        values_in_keys=True,
    )


DTYPES = {Format.FLOAT16: np.float16, Format.BFLOAT16: ml_dtypes.bfloat16}
NAN_BYTE = 0xFF  # of it, every float format makes NaN


def stored(latents, format):
    """Return latents[T D] as bytes in spans, in parts one behind the other, and their values."""
    if format is Format.FP8:
        codes, scale = quantize_fp8(latents)
        codes = codes.astype(ml_dtypes.float8_e4m3fn)
        return [codes.view(np.uint8), scale.astype(np.float32).view(np.uint8)], codes * scale
    rounded = latents.astype(DTYPES[format])
    return [rounded.view(np.uint8)], rounded


class LatentStep:
    """A step of slices (rows, length) over random latents in layer 1 of 2, the rest NaN."""

    def __init__(
        self,
        slices,
        *,
        heads,
        format=Format.FLOAT16,
        dtype=None,
        span_len=32,
        sizes=(576, 512),
        causal=True,
        seed=0,
    ):
        draw = np.random.default_rng(seed)
        self.layout = layout_of(format, span_len, sizes)
        self.dtype = np.dtype(dtype or DTYPES[format])
        self.scale, self.causal = 1.5 * sizes[0] ** -0.5, causal
        counts, self.lengths = np.array(slices, np.int32).T.copy()
        self.bounds = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
        self.query = draw.standard_normal((self.bounds[-1], heads, sizes[0])).astype(self.dtype)
        spans_of = -(-self.lengths // span_len)
        order = draw.permutation(spans_of.sum())
        self.rows = draw.permutation(len(slices)).astype(np.int32)
        self.tables = np.full((len(slices), max([1, *spans_of]) + 1), 2**30, np.int32)
        shape = max(len(order), 1), 2, self.layout.layer_bytes
        layers = np.full(shape, NAN_BYTE, np.uint8)
        self.latents = []
        for row, length, spans in zip(
            self.rows, self.lengths, np.split(order, np.cumsum(spans_of)[:-1]), strict=True
        ):
            self.tables[row, : len(spans)] = spans
            latents = draw.standard_normal((length, sizes[0]), np.float32)
            parts, stands_for = stored(latents, format)
            begin = 0
            for part in parts:
                end = begin + span_len * part.shape[1]
                padded = np.full((len(spans) * span_len, part.shape[1]), NAN_BYTE, np.uint8)
                padded[:length] = part
                layers[spans, 1, begin:end] = padded.reshape(len(spans), end - begin)
                begin = end
            self.latents.append(stands_for.astype(np.float64))
        self.cache = layers.reshape(-1)

    def of_rows(self, start, stop):
        """Return a step of rows start .. stop of this one's only slice."""
        part = object.__new__(LatentStep)
        part.__dict__.update(self.__dict__)
        part.query = self.query[start:stop]
        part.bounds = np.array([0, stop - start], np.int32)
        part.lengths = self.lengths - np.int32(len(self.query) - stop)
        return part

    def plan(self, attention, arrays, stream=None):
        attention.plan(
            arrays["bounds"],
            arrays["lengths"],
            arrays["tables"],
            table_rows=arrays["rows"],
            num_tokens=len(self.query),
            stream=stream,
        )

    def run(self, put, *, lse=False, splits=True):
        """Return the attention of the step, into results that hold NaN before."""
        tokens, heads, _ = self.query.shape
        options = dict(dtype=self.dtype, splits=splits, causal=self.causal, lse=lse)
        attention = BatchMLA(self.layout, num_heads=heads, **options)
        names = ("bounds", "lengths", "tables", "rows")
        self.plan(attention, {name: put(getattr(self, name)) for name in names})
        out = put(np.full((tokens, heads, self.layout.value_size), np.nan, self.dtype))
        if lse:
            out = out, put(np.full((tokens, heads), np.nan, np.float32))
        spans = Spans(put(self.cache), self.layout, 1)
        return attention.run(put(self.query), spans, softmax_scale=self.scale, out=out)

    def expected(self):
        """Return outputs [T H E] and log-sum-exps [T H] in float64."""
        parts = []
        for number, latents in enumerate(self.latents):
            query = self.query[self.bounds[number] : self.bounds[number + 1]].astype(np.float64)
            positions = np.arange(len(latents))
            keys, values = latents[:, None], latents[:, None, : self.layout.value_size]
            own = positions[len(latents) - len(query) :] if self.causal else [2**30] * len(query)
            parts.append(
                attend_part(query, keys, values, np.array(own), positions, scale=self.scale)
            )
        outputs, sums = zip(*parts, strict=True)
        return np.concatenate(outputs), np.concatenate(sums)

    def check(self, got, lse=None):
        """Compare each head of a row, on its own scale, with the definition."""
        expected, sums = self.expected()
        scale = np.sqrt(np.mean(expected**2, axis=-1, keepdims=True))
        scale[scale == 0] = 1
        error = relative_error(got.astype(np.float64) / scale, expected / scale)
        assert error <= tolerance(self.dtype.name)
        if lse is not None:
            np.testing.assert_allclose(lse, sums, rtol=0, atol=1e-4)
