"""Ragged attention against its definition; the tests that need no GPU come first."""

import gc
from contextlib import ExitStack
from itertools import pairwise

import ml_dtypes
import numpy as np
import pytest
from span_attention import BatchRagged, ragged
from span_attention.ragged.options import general_variant, hopper_variant
from spaninfer_kernel_launch import DTypeError, Gpu, ShapeError, captured, get_gpu, new_stream
from spaninfer_op_reference import (
    attend_ragged,
    relative_error,
    relative_position_bias,
    tolerance,
)

GPU = Gpu(0, "none", "sm_90a", sm_count=132, shared_bytes=232_448, l2_bytes=0, context=0)
HOPPER, AMPERE, TURING = 232_448, 101_376, 65_536
SIZES = (8, 40, 64, 72, 80, 96, 128, 136, 256)
LENS = (1, 64, 0, 129, 3, 260, 128, 2)
BOUNDS = [
    {"window": 5, "ahead": 4},  # of ModernBERT, of tests
    {"window": 65, "ahead": 64},  # as published
    {"window": 1, "ahead": 0},  # rows see themselves
    {"window": 130},
    {"ahead": 0},  # causal
    {"ahead": 200},
]


@pytest.mark.parametrize("shared_bytes", [HOPPER, AMPERE, TURING])
@pytest.mark.parametrize("size", SIZES)
def test_heads_are_padded_to_what_mma_takes(size, shared_bytes):
    variant, cut = general_variant(ragged.RaggedOptions("float16", size), shared_bytes)

    macros = dict(variant.macros)
    assert int(macros["KEY_SIZE"]) == int(macros["VALUE_SIZE"]) == -(-size // 16) * 16
    assert macros["WIDTH"] == str(size)
    assert cut.shared_bytes <= shared_bytes


@pytest.mark.parametrize(
    ("size", "filled"), [(8, 64), (64, 64), (72, 80), (80, 80), (96, 96), (104, 128), (128, 128)]
)
def test_on_hopper_heads_have_the_next_size_that_there_are_tiles_for(size, filled):
    variant, cut = hopper_variant(ragged.RaggedOptions("bfloat16", size))

    assert dict(variant.macros)["VALUE_SIZE"] == str(filled)
    assert cut.shared_bytes <= HOPPER


def test_heads_wider_than_tiles_take_the_general_kernel():
    assert hopper_variant(ragged.RaggedOptions("bfloat16", 136)) is None


@pytest.mark.parametrize("size", [0, 4, 12, 264])
def test_heads_that_copies_do_not_divide_are_refused(size):
    with pytest.raises(ShapeError, match=f"head_size is {size}; .* multiples of 8 up to 256"):
        general_variant(ragged.RaggedOptions("float16", size), HOPPER)


def test_types_and_heads_without_a_kernel_are_refused():
    with pytest.raises(DTypeError, match="query holds float32"):
        general_variant(ragged.RaggedOptions("float32", 64), HOPPER)
    with pytest.raises(ShapeError, match="7 query heads are not a multiple of 2"):
        ragged.prepare(ragged.RaggedOptions("float16", 64), heads=7, kv_heads=2, gpu=GPU)


def test_a_run_needs_a_plan():
    batch = BatchRagged(num_heads=2, head_size=64, dtype=np.float16)

    with pytest.raises(ShapeError, match="no batch is planned; call plan"):
        batch.run(*(np.zeros((3, 2, 64), np.float16),) * 3, softmax_scale=1.0)


# ---- on a GPU ------------------------------------------------------------------------------------


@pytest.fixture
def stream():
    """A stream that is there until nothing of a test has memory on it."""
    with new_stream() as handle:
        yield handle
        gc.collect()  # what an exception's traceback kept


class Case:
    """Sequences of a projection's rows: queries, keys and values side by side, and what is read."""

    def __init__(
        self,
        size,
        heads=3,
        kv_heads=3,
        dtype=ml_dtypes.bfloat16,
        lens=LENS,
        apart=0,
        reach=None,
        **scores,
    ):
        self.size, self.heads, self.kv_heads, self.dtype = size, heads, kv_heads, dtype
        self.lens, self.scores = lens, {"softmax_scale": size**-0.5, **scores}
        self.apart = apart or size  # elements from head to head
        draw = np.random.default_rng(size)
        columns = (heads + 2 * kv_heads) * self.apart
        self.rows = draw.standard_normal((sum(lens), columns)).astype(dtype)
        self.starts = np.cumsum([0, *lens], dtype=np.int32)
        self.biases = None
        if reach is not None:
            self.biases = 2 * draw.standard_normal((heads, 2 * reach + 1)).astype(np.float32)

    def parts(self, rows):
        """Return queries, keys and values as views of rows."""
        counts = (self.heads, self.kv_heads, self.kv_heads)
        ends = np.cumsum([0, *counts])
        heads = rows.reshape(len(rows), int(ends[-1]), self.apart)[..., : self.size]
        return [heads[:, first:last] for first, last in pairwise(ends.tolist())]

    def expected(self):
        query, key, value = (part.astype(np.float64) for part in self.parts(self.rows))
        scores = dict(self.scores)
        scale, read = scores.pop("softmax_scale"), []
        for first, last in pairwise(self.starts.tolist()):
            parts = (part[first:last] for part in (query, key, value))
            if self.biases is not None:
                wide = self.biases.astype(np.float64)
                scores["bias"] = relative_position_bias(wide, last - first)
            if last > first:
                read.append(attend_ragged(*parts, scale=scale, **scores))
        return np.concatenate(read)

    def run(self, on_gpu, rows=None):
        """Return what kernels make of it, in poisoned memory."""
        rows = on_gpu.put(self.rows if rows is None else rows)
        out = on_gpu.put(np.full((len(self.rows), self.heads, self.size), np.nan, self.dtype))
        starts = on_gpu.put(self.starts)
        batch = BatchRagged(
            num_heads=self.heads,
            num_kv_heads=self.kv_heads,
            head_size=self.size,
            dtype=self.dtype,
            biased=self.biases is not None,
        )
        biases = None if self.biases is None else on_gpu.put(self.biases)
        with new_stream() as stream:
            batch.plan(starts, num_rows=len(self.rows), stream=stream)
            batch.run(*self.parts(rows), biases=biases, out=out, stream=stream, **self.scores)
            on_gpu.wait()
            del batch  # gives its memory back on the stream
        return on_gpu.get(out)

    def check(self, actual):
        """Compare each head of a row, on its own scale: means of many values are small, and next to
        those of a row that sees few keys the rounding of the result alone would be an error.
        """
        expected = self.expected()
        scale = np.sqrt(np.mean(expected**2, axis=-1, keepdims=True))
        limit = tolerance(np.dtype(self.dtype).name)
        assert relative_error(actual.astype(np.float64) / scale, expected / scale) < limit


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("size", SIZES)
def test_every_row_reads_its_own_sequence(on_gpu, size, dtype):
    case = Case(size, dtype=dtype)

    case.check(case.run(on_gpu))


@pytest.mark.gpu
@pytest.mark.parametrize(("size", "apart"), [(72, 80), (40, 64), (136, 144)])
def test_heads_may_lie_apart(on_gpu, size, apart):
    case = Case(size, heads=4, kv_heads=2, apart=apart)

    case.check(case.run(on_gpu))


@pytest.mark.gpu
@pytest.mark.parametrize("size", [64, 72, 80, 128])
@pytest.mark.parametrize("more", [{}, {"reach": 128}, *BOUNDS[:2], BOUNDS[4]], ids=str)
def test_the_kernel_of_other_gpus_reads_the_same(on_gpu, size, more, monkeypatch):
    case = Case(size, heads=4, kv_heads=2, **more)
    monkeypatch.setattr(ragged.prepared, "_on_hopper", lambda *_: None)
    monkeypatch.setattr(ragged.batch, "_kernel_for", ragged.batch._kernel_for.__wrapped__)

    case.check(case.run(on_gpu))


@pytest.mark.gpu
@pytest.mark.parametrize("size", [64, 72, 128, 136])
@pytest.mark.parametrize("bounds", BOUNDS, ids=str)
def test_rows_see_as_far_back_and_ahead_as_they_are_told(on_gpu, bounds, size):
    case = Case(size, heads=4, kv_heads=2, lens=(*LENS, 700), **bounds)

    case.check(case.run(on_gpu))


@pytest.mark.gpu
@pytest.mark.parametrize("bounds", [{}, *BOUNDS[1:3], {"softcap": 2.0}], ids=str)
@pytest.mark.parametrize(("size", "reach"), [(64, 128), (64, 3), (32, 0), (136, 40)])
def test_scores_get_biases_by_how_far_keys_are_ahead(on_gpu, size, reach, bounds):
    case = Case(size, heads=4, kv_heads=2, reach=reach, **bounds)

    case.check(case.run(on_gpu))


@pytest.mark.gpu
def test_what_a_window_hides_spoils_nothing_of_other_sequences(on_gpu):
    case = Case(64, window=65, ahead=64)
    spoilt, first, last = case.rows.copy(), *case.starts[5:7]
    spoilt[first:last] = np.nan

    clean, dirty = case.run(on_gpu), case.run(on_gpu, spoilt)

    for part in (slice(first), slice(last, None)):
        assert (clean[part] == dirty[part]).all()


@pytest.mark.gpu
def test_biases_that_the_batch_was_not_made_for_are_refused(on_gpu, stream):
    three = on_gpu.put(np.zeros((3, 2, 64), np.float16))
    biases = on_gpu.put(np.zeros((2, 7), np.float32))
    starts = on_gpu.put(np.array([0, 3], np.int32))
    plain = BatchRagged(num_heads=2, head_size=64, dtype=np.float16)
    biased = BatchRagged(num_heads=2, head_size=64, dtype=np.float16, biased=True)
    for batch in (plain, biased):
        batch.plan(starts, num_rows=3, stream=stream)

    with pytest.raises(ShapeError, match="the run has biases; this batch is for runs without"):
        plain.run(three, three, three, softmax_scale=1.0, biases=biases, stream=stream)
    with pytest.raises(ShapeError, match="the run has no biases; this batch is for runs with"):
        biased.run(three, three, three, softmax_scale=1.0, stream=stream)
    even = on_gpu.put(np.zeros((2, 6), np.float32))
    with pytest.raises(ShapeError, match="biases are 6 per head"):
        biased.run(three, three, three, softmax_scale=1.0, biases=even, stream=stream)
    with pytest.raises(ShapeError, match="window is 0; allowed is 1 to"):
        plain.run(three, three, three, softmax_scale=1.0, window=0, stream=stream)


@pytest.mark.gpu
@pytest.mark.parametrize("size", [72, 128])
def test_heads_may_share_keys_and_scores_may_be_capped(on_gpu, size):
    case = Case(size, heads=6, kv_heads=2, softcap=2.0)

    case.check(case.run(on_gpu))


@pytest.mark.gpu
@pytest.mark.parametrize("size", [64, 80])
def test_a_sequence_that_is_not_a_number_spoils_no_other(on_gpu, size):
    case = Case(size)
    spoilt, first, last = case.rows.copy(), *case.starts[5:7]
    spoilt[first:last] = np.nan

    clean, dirty = case.run(on_gpu), case.run(on_gpu, spoilt)

    assert np.isnan(dirty[first:last].astype(np.float32)).all()
    for part in (slice(first), slice(last, None)):
        assert (clean[part] == dirty[part]).all()


@pytest.mark.gpu
def test_a_sequence_reads_the_same_bits_beside_any_others(on_gpu):
    case = Case(80, lens=(300, 77, 513))
    alone = Case(80, lens=(77,))
    alone.rows = case.rows[300:377]

    assert (case.run(on_gpu)[300:377] == alone.run(on_gpu)).all()


@pytest.mark.gpu
def test_runs_may_be_captured(on_gpu):
    case = Case(64)
    rows, starts = on_gpu.put(case.rows), on_gpu.put(case.starts)
    out = on_gpu.put(np.zeros((len(case.rows), case.heads, case.size), case.dtype))
    batch = BatchRagged(num_heads=3, head_size=64, dtype=case.dtype)

    def run(stream, _number=0):
        batch.run(*case.parts(rows), out=out, stream=stream, **case.scores)

    with ExitStack() as stack:
        stack.enter_context(get_gpu().current())
        stream = stack.enter_context(new_stream())
        batch.plan(starts, num_rows=len(case.rows), stream=stream)
        run(stream)
        replay = stack.enter_context(captured(stream, run))
        out[:] = on_gpu.put(np.full(out.shape, np.nan, case.dtype))
        on_gpu.wait()
        replay()
        on_gpu.wait()

    case.check(on_gpu.get(out))


@pytest.mark.gpu
def test_no_rows_and_arrays_of_other_shapes(on_gpu, stream):
    batch = BatchRagged(num_heads=2, head_size=64, dtype=np.float16)
    empty = on_gpu.put(np.zeros((0, 2, 64), np.float16))
    batch.plan(on_gpu.put(np.zeros(1, np.int32)), num_rows=0, stream=stream)
    batch.run(empty, empty, empty, softmax_scale=1.0, out=empty, stream=stream)
    batch.plan(on_gpu.put(np.array([0, 3], np.int32)), num_rows=3, stream=stream)
    three = on_gpu.put(np.zeros((3, 2, 64), np.float16))
    with pytest.raises(ShapeError, match="key"):
        batch.run(three, three[:2], three, softmax_scale=1.0, stream=stream)
    wider = on_gpu.put(np.zeros((3, 2, 72), np.float16))[..., :64]
    with pytest.raises(ShapeError, match=r"query, key and value are \[64, 72\] elements apart"):
        batch.run(three, wider, three, softmax_scale=1.0, stream=stream)
