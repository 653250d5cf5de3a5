"""Writing to spans and reading from them, on every backend, against the definition in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import spaninfer_op_reference as definition
from backends import BACKENDS, Backend
from numpy.typing import NDArray
from spaninfer_engine.backends.host.device import build_step
from spaninfer_engine.ops.scoring import Scoring
from spaninfer_engine.ops.step import SpanCache, Step
from spaninfer_engine.request.request import SamplingParams
from spaninfer_engine.spec.nodes import CacheGroup
from spaninfer_engine.step.batch import build_batch
from spaninfer_engine.step.plan import NewSequence, Slice, TableUpdate
from spaninfer_engine.step.sequences import Sequences

Array = NDArray[Any]

SPAN_LEN, NUM_SPANS, LAYERS, LAYER = 4, 24, 3, 1
LENGTHS = {1: 19, 2: 1, 3: 8}  # tokens of each request
SLICES = (Slice(2, 0, 1, 0, True), Slice(1, 12, 19, 18, True), Slice(3, 7, 8, 7, True))

GROUPED = CacheGroup(0, tuple(range(LAYERS)), kv_heads=2, key_size=8, value_size=8)
WIDE_KEYS = CacheGroup(0, tuple(range(LAYERS)), kv_heads=3, key_size=8, value_size=5)
LATENT = CacheGroup(
    0, tuple(range(LAYERS)), kv_heads=1, key_size=12, value_size=8, values_in_keys=True
)
INDEX = CacheGroup(
    0, tuple(range(LAYERS)), kv_heads=1, key_size=16, value_size=16, values_in_keys=True
)


def _random(shape: tuple[int, ...], seed: int) -> Array:
    rng = np.random.default_rng(seed)
    return definition.to_bfloat16(rng.standard_normal(shape)).astype(np.float64)


def _keys_and_values(group: CacheGroup, seq_id: int) -> tuple[Array, Array]:
    rows = LENGTHS[seq_id]
    keys = _random((rows, group.kv_heads, group.key_size), seq_id)
    if group.values_in_keys:
        return keys, keys[..., : group.value_size]
    return keys, _random((rows, group.kv_heads, group.value_size), seq_id + 10)


class Spans:
    """A cache group on a backend, and steps over it that write what `_keys_and_values` says."""

    def __init__(self, backend: Backend, group: CacheGroup) -> None:
        self.backend, self.group, self.ops = backend, group, backend.make()
        self.cache: SpanCache[Any] = self.ops.cache(group, NUM_SPANS, SPAN_LEN)
        self.cache.keys[:] = np.nan
        self.cache.values[:] = np.nan
        self.sequences = Sequences(1, max_len=32, span_len=SPAN_LEN, num_rows=1)
        free = np.random.default_rng(5).permutation(NUM_SPANS).tolist()
        for seq_id, length in LENGTHS.items():
            self.sequences.enter(NewSequence(seq_id, (0,) * length, SamplingParams(), 0))
            spans = tuple(free.pop() for _ in range(-(-length // SPAN_LEN)))
            self.sequences.update_table(TableUpdate(seq_id, 0, 0, spans))
        self.write([Slice(1, 0, 12, 12, False), Slice(3, 0, 7, 7, False)])

    def write(self, slices: Any) -> Step[Any]:
        """Append the keys and values of the slices' positions; return the step."""
        batch = build_batch(slices, self.sequences, self.sequences.by_id)
        step = build_step(batch, self.sequences, self.ops, (self.cache,), ())
        self.ops.prepare(step)
        both = [_keys_and_values(self.group, part.seq_id) for part in slices]
        key, value = (
            self.backend.put(
                self.ops,
                np.concatenate([x[p.start : p.stop] for p, x in zip(slices, which, strict=True)]),
            )
            for which in zip(*both, strict=True)
        )
        values = () if self.group.values_in_keys else (value,)
        self.ops.append(step, key, *values, group=0, layer=LAYER)
        return step


def _expected(group: CacheGroup, query: Array, alibi: str | None, **scores: Any) -> Array:
    slopes = definition.alibi_slopes(query.shape[1])
    parts, first = [], 0
    for seq_id, start, stop, *_ in SLICES:
        keys, values = _keys_and_values(group, seq_id)
        positions = np.arange(stop)
        bias = {
            None: None,
            "plain": definition.alibi_bias(slopes, positions),
            "scaled": definition.alibi_bias(slopes, positions) * scores["scale"],
            "rounded": definition.falcon_alibi_bias(slopes, positions, scores["scale"]),
        }[alibi]
        parts.append(
            definition.attend(
                query[first : first + stop - start],
                keys,
                values,
                np.arange(start, stop),
                positions,
                bias=bias,
                **scores,
            )
        )
        first += stop - start
    return np.concatenate(parts)


@pytest.mark.parametrize("backend", BACKENDS, ids=str)
@pytest.mark.parametrize("window", [None, 3])
def test_sinks_take_their_share_of_every_softmax(window: int | None, backend: Backend) -> None:
    spans = Spans(backend, GROUPED)
    step = spans.write(SLICES)
    query = _random((step.num_tokens, 6, GROUPED.key_size), 99)
    sinks = np.linspace(-2, 3, 6).round(1)
    scores = {"scale": 0.4, "window": window}

    actual = spans.ops.attend(
        *(step, backend.put(spans.ops, query)),
        group=0,
        layer=LAYER,
        scoring=Scoring(**scores),
        sinks=backend.put(spans.ops, sinks),
    )

    backend.check(spans.ops, actual, _expected(GROUPED, query, None, sinks=sinks, **scores))


@pytest.mark.parametrize("backend", BACKENDS, ids=str)
@pytest.mark.parametrize("alibi", [None, "plain", "scaled", "rounded"])
@pytest.mark.parametrize("window", [None, 3])
@pytest.mark.parametrize("softcap", [None, 2.0])
def test_attention_over_spans_is_as_defined(
    softcap: float | None, window: int | None, alibi: Any, backend: Backend
) -> None:
    spans = Spans(backend, GROUPED)
    step = spans.write(SLICES)
    query = _random((step.num_tokens, 6, GROUPED.key_size), 99)
    scores = {"scale": 0.4, "softcap": softcap, "window": window}

    scoring = Scoring(**scores, alibi=alibi)
    actual = spans.ops.attend(
        step, backend.put(spans.ops, query), group=0, layer=LAYER, scoring=scoring
    )

    backend.check(spans.ops, actual, _expected(GROUPED, query, alibi, **scores))


@pytest.mark.parametrize("backend", BACKENDS, ids=str)
@pytest.mark.parametrize("window", [2, 3, 5])
def test_windows_in_chunks_do_not_slide(window: int, backend: Backend) -> None:
    spans = Spans(backend, GROUPED)
    step = spans.write(SLICES)
    query = _random((step.num_tokens, 6, GROUPED.key_size), 99)
    scores = {"scale": 0.4, "softcap": None, "window": window, "chunked": True}

    scoring = Scoring(**scores)
    actual = spans.ops.attend(
        step, backend.put(spans.ops, query), group=0, layer=LAYER, scoring=scoring
    )

    backend.check(spans.ops, actual, _expected(GROUPED, query, None, **scores))


@pytest.mark.parametrize("backend", BACKENDS, ids=str)
@pytest.mark.parametrize("group", [WIDE_KEYS, LATENT], ids=["narrow values", "values in keys"])
def test_keys_and_values_may_differ_in_width(group: CacheGroup, backend: Backend) -> None:
    spans = Spans(backend, group)
    step = spans.write(SLICES)
    query = _random((step.num_tokens, 6, group.key_size), 99)

    scoring = Scoring(0.4)
    actual = spans.ops.attend(
        step, backend.put(spans.ops, query), group=0, layer=LAYER, scoring=scoring
    )

    scores = {"scale": 0.4, "softcap": None, "window": None}
    backend.check(spans.ops, actual, _expected(group, query, None, **scores))


def _index(rows: int, heads: int) -> tuple[Array, Array]:
    """Queries and weights of an indexer."""
    return _random((rows, heads, INDEX.key_size), 41), _random((rows, heads), 42)


def _selected(query: Array, weights: Array, top_k: int) -> Array:
    """[T k]: what the rows of SLICES select, by definition."""
    most = max(part.stop for part in SLICES)
    parts, first = [], 0
    for seq_id, start, stop, *_ in SLICES:
        keys = _keys_and_values(INDEX, seq_id)[0][:stop, 0]
        rows = slice(first, first + stop - start)
        found = definition.select_keys(
            query[rows], weights[rows], keys, np.arange(start, stop), top_k
        )
        width = min(top_k, most) - found.shape[1]
        parts.append(np.pad(found, ((0, 0), (0, width)), constant_values=-1))
        first = rows.stop
    return np.concatenate(parts)


@pytest.mark.parametrize("backend", BACKENDS, ids=str)
@pytest.mark.parametrize("heads", [1, 5])
@pytest.mark.parametrize("top_k", [1, 4, 19, 64])
def test_an_indexer_selects_the_keys_of_every_token(
    top_k: int, heads: int, backend: Backend
) -> None:
    spans = Spans(backend, INDEX)
    step = spans.write(SLICES)
    query, weights = _index(step.num_tokens, heads)

    selected = spans.ops.select_keys(
        *(step, backend.put(spans.ops, query), backend.put(spans.ops, weights)),
        group=0,
        layer=LAYER,
        top_k=top_k,
    )

    expected = _selected(query, weights, top_k)
    assert np.asarray(selected)[:, : expected.shape[1]].tolist() == expected.tolist()
    assert (np.asarray(selected)[:, expected.shape[1] :] == -1).all()


@pytest.mark.parametrize("backend", BACKENDS, ids=str)
def test_of_equal_scores_an_indexer_selects_the_lower_positions(backend: Backend) -> None:
    """One head, whose products are above zero for few keys: the others all have a score of zero."""
    spans = Spans(backend, INDEX)
    step = spans.write(SLICES)
    query, weights = _index(step.num_tokens, 1)
    signs = np.resize([1.0, -1.0], weights.shape)  # what is below zero comes behind them

    selected = spans.ops.select_keys(
        *(step, backend.put(spans.ops, query), backend.put(spans.ops, signs)),
        group=0,
        layer=LAYER,
        top_k=12,
    )

    assert np.asarray(selected).tolist() == _selected(query, signs, 12).tolist()


@pytest.mark.parametrize("backend", BACKENDS, ids=str)
@pytest.mark.parametrize("group", [GROUPED, LATENT], ids=["keys and values", "values in keys"])
@pytest.mark.parametrize("top_k", [1, 4, 64])
def test_attention_reads_the_selected_keys_alone(
    top_k: int, group: CacheGroup, backend: Backend
) -> None:
    spans = Spans(backend, group)
    step = spans.write(SLICES)
    query = _random((step.num_tokens, 6, group.key_size), 99)
    selected = _selected(*_index(step.num_tokens, 3), top_k)

    actual = spans.ops.attend_selected(
        *(step, backend.put(spans.ops, query), backend.put(spans.ops, selected)),
        group=0,
        layer=LAYER,
        scale=0.4,
    )

    parts, first = [], 0
    for seq_id, start, stop, *_ in SLICES:
        rows = slice(first, first + stop - start)
        keys, values = (part[:stop] for part in _keys_and_values(group, seq_id))
        parts.append(
            definition.attend_selected(query[rows], keys, values, selected[rows], scale=0.4)
        )
        first = rows.stop
    backend.check(spans.ops, actual, np.concatenate(parts))


@pytest.mark.parametrize("backend", BACKENDS, ids=str)
def test_with_all_keys_selected_attention_is_dense_to_the_bit(backend: Backend) -> None:
    spans = Spans(backend, LATENT)
    step = spans.write(SLICES)
    query = backend.put(spans.ops, _random((step.num_tokens, 6, LATENT.key_size), 99))
    selected = backend.put(spans.ops, _selected(*_index(step.num_tokens, 3), 64))
    place = {"group": 0, "layer": LAYER}

    sparse = spans.ops.attend_selected(step, query, selected, **place, scale=0.4)
    dense = spans.ops.attend(step, query, **place, scoring=Scoring(0.4))

    assert np.array_equal(spans.ops.to_host(sparse), spans.ops.to_host(dense))


@pytest.mark.parametrize("backend", BACKENDS, ids=str)
@pytest.mark.parametrize("group", [GROUPED, LATENT], ids=["keys and values", "values in keys"])
def test_a_row_holds_keys_and_values_of_a_span_in_all_layers(
    group: CacheGroup, backend: Backend
) -> None:
    ops = backend.make()
    cache = ops.cache(group, NUM_SPANS, SPAN_LEN)
    slots = ops.host_slots(cache, 3)
    cache.keys[:], cache.values[:] = 1, 2
    cache.keys[:, 4], cache.values[:, 4] = 3, 4
    before = [np.array(ops.to_host(part)) for part in cache[:2]]

    slots[1] = cache.rows[4]
    cache.rows[2] = slots[1]

    for part, old in zip(cache[:2], before, strict=True):
        old[:, 2] = old[:, 4]
        assert np.array_equal(ops.to_host(part), old)


@pytest.mark.parametrize("backend", BACKENDS, ids=str)
@pytest.mark.parametrize("group", [GROUPED, LATENT], ids=["keys and values", "values in keys"])
def test_a_span_of_all_layers_is_one_piece_of_memory(group: CacheGroup, backend: Backend) -> None:
    ops = backend.make()

    keys, values, _ = ops.cache(group, NUM_SPANS, SPAN_LEN)

    strides = keys.strides if hasattr(keys, "strides") else keys.stride()
    numbers = keys.nbytes if group.values_in_keys else keys.nbytes + values.nbytes
    item = strides[-1] if hasattr(keys, "strides") else 1
    size = numbers // (NUM_SPANS * LAYERS) // keys.dtype.itemsize
    assert keys.shape == (LAYERS, NUM_SPANS, SPAN_LEN, group.kv_heads, group.key_size)
    assert values.shape == (LAYERS, NUM_SPANS, SPAN_LEN, group.kv_heads, group.value_size)
    assert [stride // item for stride in strides[:2]] == [size, LAYERS * size]
