"""Selection of keys and attention to them against their definitions; the tests that need no GPU
come first.
"""

from contextlib import ExitStack

import ml_dtypes
import numpy as np
import pytest
import spaninfer_op_reference as definition
from span_attention import Format, SpanLayout, Spans
from span_attention.mla.tuning import divide_selected
from span_attention.sparse import BatchSelected, Readers, attend_selected, select_keys
from span_attention.sparse.tuning import (
    MAX_TILES,
    SELECT_BYTES,
    ScoreTile,
    blocks_per_row,
    held_scores,
    score_stride,
)
from spaninfer_kernel_launch import ShapeError, captured, get_gpu, new_stream
from spaninfer_op_reference import relative_error, tolerance

SHARED_BYTES = 232_448  # of a thread block on Hopper
DTYPES = {Format.FLOAT16: np.float16, Format.BFLOAT16: ml_dtypes.bfloat16}
BOTH = pytest.mark.parametrize("format", DTYPES, ids=lambda it: it.label)


@pytest.mark.parametrize("heads", [16, 32, 64])
@pytest.mark.parametrize("tokens", [1, 4])
def test_a_tile_of_scores_fits_into_shared_memory(heads, tokens):
    assert ScoreTile(heads, tokens).shared_bytes <= SHARED_BYTES


@pytest.mark.parametrize(
    ("rows", "most", "blocks"),
    [
        (1, 131_072, 8),
        (16, 131_072, 8),
        (64, 32_768, 2),
        (66, 8192, 2),
        (67, 8192, 1),
        (1, 4096, 1),
    ],
)
def test_thread_blocks_share_a_row_where_there_are_more_of_them_than_rows(rows, most, blocks):
    assert blocks_per_row(rows, most, 132, has_clusters=True) == blocks
    assert blocks_per_row(rows, most, 132, has_clusters=False) == 1


def test_what_a_block_holds_is_a_multiple_of_four_that_fits():
    assert held_scores(1001, 2, SHARED_BYTES) == 504
    assert held_scores(2**20, 1, SHARED_BYTES) * 4 + SELECT_BYTES <= SHARED_BYTES - 1024


@pytest.mark.parametrize(
    ("tokens", "heads", "lanes", "parts"),
    [(1, 128, 2, 66), (8, 128, 2, 64), (64, 128, 2, 64), (64, 64, 1, 128), (200, 64, 1, 132)],
)
def test_thread_blocks_share_the_keys_of_a_token_equally(tokens, heads, lanes, parts):
    division = divide_selected(tokens, heads, 132, splits=True)

    assert (division.lanes, division.parts) == (lanes, parts)


def test_scores_of_a_step_are_bounded_and_rows_of_a_tile_stay_together():
    tile = ScoreTile(64, 4)

    assert score_stride(131_073) == 131_200
    assert tile.rows_at_once(100) == 4 * MAX_TILES
    assert tile.rows_at_once(163_840) == 204
    assert tile.rows_at_once(2**30) == 4


class Step:
    """Tokens over random keys of an indexer, and latents, in layer 1 of 2; the rest is NaN.

    Queries and keys of the indexer are small whole numbers, so that their scores are exact, and
    many of them equal.
    """

    def __init__(self, lengths, *, heads=16, dtype=np.float16, span_len=32, one=False, seed=0):
        draw = np.random.default_rng(seed)
        self.heads, self.dtype, self.one, self.span_len = heads, np.dtype(dtype), one, span_len
        self.lengths = np.array(lengths, np.int32)
        known = self.lengths[-1:] if one else self.lengths
        spans_of = -(-known // span_len)
        order = draw.permutation(int(spans_of.sum()))
        self.rows = np.zeros(len(lengths), np.int32)
        if not one:
            self.rows = draw.permutation(len(lengths)).astype(np.int32)
        self.tables = np.full((len(known), max([1, *spans_of])), 2**30, np.int32)
        self.keys, self.latents = [], []
        self.key_layout, self.latent_layout = self._layout(128, 128), self._layout(576, 512)
        caches = [np.full((max(len(order), 1), 2, span_len, d), np.nan, dtype) for d in (128, 576)]
        rows = self.rows[:1] if one else self.rows
        parts = np.split(order, np.cumsum(spans_of)[:-1])
        for row, length, spans in zip(rows, known, parts, strict=True):
            self.tables[row, : len(spans)] = spans
            keys = draw.integers(-2, 3, (length, 128)).astype(dtype)
            latents = draw.standard_normal((length, 576)).astype(dtype)
            for cache, rows_of in zip(caches, (keys, latents), strict=True):
                padded = np.full((len(spans) * span_len, rows_of.shape[1]), np.nan, dtype)
                padded[:length] = rows_of
                cache[spans, 1] = padded.reshape(len(spans), span_len, rows_of.shape[1])
            self.keys.append(keys.astype(np.float64))
            self.latents.append(latents.astype(np.float64))
        self.key_cache, self.latent_cache = (cache.view(np.uint8).reshape(-1) for cache in caches)
        tokens = len(lengths)
        self.index_query = draw.integers(-2, 3, (tokens, heads, 128)).astype(dtype)
        self.weights = draw.integers(-2, 4, (tokens, heads)).astype(np.float32)

    def _layout(self, key_size, value_size):
        return SpanLayout.contiguous(
            span_len=self.span_len,
            kv_heads=1,
            key_size=key_size,
            value_size=value_size,
            format=next(f for f, dtype in DTYPES.items() if np.dtype(dtype) == self.dtype),
            num_layers=2,
            values_in_keys=True,
        )

    def readers(self, put):
        return Readers(*map(put, (self.tables, self.rows, self.lengths)), self.one)

    def select(self, put, top_k):
        out = put(np.full((len(self.lengths), self.width(top_k)), 77, np.int32))
        spans = Spans(put(self.key_cache), self.key_layout, 1)
        given = put(self.index_query), put(self.weights)
        return select_keys(*given, spans, self.readers(put), top_k=top_k, out=out)

    def width(self, top_k):
        return min(top_k, self.tables.shape[1] * self.span_len)

    def of_token(self, parts, token):
        return parts[0 if self.one else token][: self.lengths[token]]

    def selected(self, top_k):
        """Return the definition's positions, as many as the kernel's."""
        out = np.full((len(self.lengths), self.width(top_k)), -1, np.int32)
        for token, length in enumerate(self.lengths):
            keys, one = self.of_token(self.keys, token), slice(token, token + 1)
            if length:
                query, weights = self.index_query[one].astype(np.float64), self.weights[one]
                at = np.array([length - 1])
                (found,) = definition.select_keys(
                    query, weights.astype(np.float64), keys, at, top_k
                )
                out[token, : len(found)] = found
        return out


DECODES = [1, 0, 31, 32, 33, 127, 128, 129, 300, 64, 65, 2000, 700, 5]
STEPS = {
    "decodes": dict(lengths=DECODES),
    "decodes of 32 heads, spans of 16": dict(lengths=DECODES, heads=32, span_len=16),
    "decodes of 64 heads, spans of 256": dict(lengths=DECODES, heads=64, span_len=256),
    "one long decode": dict(lengths=[33_001], heads=64),
    "few long decodes": dict(lengths=[9000, 3, 20_000], heads=32),
    "many decodes": dict(lengths=[7 + 13 * n % 900 for n in range(140)]),
    "a prompt": dict(lengths=range(1, 150), one=True, heads=64),
    "a chunk of a prompt": dict(lengths=range(5000, 5091), one=True, heads=32),
    "a long decode": dict(lengths=[5000]),
    "three tokens of speculation": dict(lengths=[4001, 4002, 4003], one=True),
}


@pytest.mark.gpu
@BOTH
@pytest.mark.parametrize("name", STEPS)
@pytest.mark.parametrize("top_k", [64, 1000])
def test_selected_keys_are_those_of_the_definition_ties_included(on_gpu, format, name, top_k):
    step = Step(**STEPS[name], dtype=DTYPES[format])

    got = on_gpu.get(step.select(on_gpu.put, top_k))

    np.testing.assert_array_equal(got, step.selected(top_k))


@pytest.mark.gpu
def test_scores_that_are_no_numbers_are_selected_last(on_gpu):
    step = Step([500], heads=16)
    lost = [3, 4, 100, 499]
    step.keys[0][lost] = np.nan
    cache = step.key_cache.view(np.float16).reshape(-1, 2, 32, 128)
    for position in lost:
        cache[step.tables[0, position // 32], 1, position % 32] = np.nan

    for top_k in (496, 498):
        got = on_gpu.get(step.select(on_gpu.put, top_k))

        np.testing.assert_array_equal(got, step.selected(top_k))


@pytest.mark.gpu
def test_one_and_the_same_score_selects_the_first_positions(on_gpu):
    step = Step([9000, 20_000])
    step.weights[:] = 0

    got = on_gpu.get(step.select(on_gpu.put, 700))

    np.testing.assert_array_equal(got, np.tile(np.arange(700), (2, 1)))


@pytest.mark.gpu
def test_more_scores_than_fit_at_once_are_selected_in_parts(on_gpu, monkeypatch):
    monkeypatch.setattr("span_attention.sparse.tuning._MAX_SCORES", 20_000)
    for name in ("decodes", "a prompt"):
        step = Step(**STEPS[name], seed=5, span_len=64)  # sizes that no other test prepared

        got = on_gpu.get(step.select(on_gpu.put, 77))

        np.testing.assert_array_equal(got, step.selected(77))


@pytest.mark.gpu
@BOTH
@pytest.mark.parametrize(
    ("name", "heads", "top_k"),
    [
        *(("decodes", heads, top_k) for heads in (4, 64, 128) for top_k in (1, 300)),
        *(("decodes", heads, 128) for heads in (16, 20, 96)),
        ("a long decode", 128, 2048),
        ("many decodes", 64, 129),
        ("a prompt", 16, 64),
    ],
)
def test_selected_latents_are_read_as_defined(on_gpu, format, name, heads, top_k):
    step = Step(**STEPS[name], dtype=DTYPES[format])
    selected = step.selected(top_k)

    got = on_gpu.get(_attend(step, on_gpu.put, heads, on_gpu.put(selected)))

    _check(step, got, heads, selected)


@pytest.mark.gpu
def test_captured_both_run_on_whatever_the_input_then_holds(on_gpu):
    lengths, heads, top_k = [3000, 1, 65, 900], 128, 256
    first = Step(lengths)
    names = "tables rows lengths index_query weights key_cache latent_cache".split()
    held = {name: on_gpu.put(getattr(first, name)) for name in names}
    held["query"] = on_gpu.put(_query(first, heads))
    readers = Readers(held["tables"], held["rows"], held["lengths"])
    selected = on_gpu.put(np.full((4, top_k), 77, np.int32))
    out = on_gpu.put(np.full((4, heads, 512), np.nan, np.float16))
    batch = BatchSelected(first.latent_layout, num_heads=heads, dtype="float16")
    keys = Spans(held["key_cache"], first.key_layout, 1)
    latents = Spans(held["latent_cache"], first.latent_layout, 1)

    def launch(stream, _=None):
        given = held["index_query"], held["weights"], keys, readers
        select_keys(*given, top_k=top_k, out=selected, stream=stream)
        batch.plan(readers, top_k=top_k, stream=stream)
        for _layer in range(2):
            batch.run(held["query"], latents, selected, softmax_scale=SCALE, out=out, stream=stream)

    with ExitStack() as stack:
        stack.enter_context(get_gpu().current())
        stream = stack.enter_context(new_stream())
        launch(stream)  # it allocates what the captured plans and runs then use
        replay = stack.enter_context(captured(stream, launch))
        for again in (lengths, lengths[::-1]):
            step = Step(again, seed=1)
            for name in names:
                now = getattr(step, name)
                held[name][: len(now)] = on_gpu.put(now)
            held["query"][:] = on_gpu.put(_query(step, heads))
            on_gpu.wait()
            replay()
            on_gpu.wait()

            np.testing.assert_array_equal(on_gpu.get(selected), step.selected(top_k))
            _check(step, on_gpu.get(out), heads, step.selected(top_k))


@pytest.mark.gpu
def test_other_sizes_are_refused_with_those_that_are_taken(on_gpu):
    step = Step([40], heads=8)

    with pytest.raises(ShapeError, match="by 16, 32, 64 heads"):
        step.select(on_gpu.put, 4)


SCALE = 1.5 * 576**-0.5


def _query(step, heads):
    draw = np.random.default_rng(9)
    return draw.standard_normal((len(step.lengths), heads, 576)).astype(step.dtype)


def _attend(step, put, heads, selected):
    out = put(np.full((len(step.lengths), heads, 512), np.nan, step.dtype))
    spans = Spans(put(step.latent_cache), step.latent_layout, 1)
    query, readers = put(_query(step, heads)), step.readers(put)
    return attend_selected(query, spans, selected, readers, softmax_scale=SCALE, out=out)


def _check(step, got, heads, selected):
    query = _query(step, heads).astype(np.float64)
    for token, length in enumerate(step.lengths):
        if not length:
            assert not got[token].any()
            continue
        latents = step.of_token(step.latents, token)[:, None]
        expected = definition.attend_selected(
            query[token : token + 1],
            latents,
            latents[..., :512],
            selected[token : token + 1],
            scale=SCALE,
        )
        scale = np.sqrt(np.mean(expected**2, axis=-1, keepdims=True))
        error = relative_error(got[token : token + 1].astype(np.float64) / scale, expected / scale)
        assert error <= tolerance(step.dtype.name), token
