"""Attention by products of bfloat16 against the definition in float64 on rounded operands."""

from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest
from attention_problem import CASES, NAN, Case, definition, problem
from spaninfer_kernels_cpu import Scores, ThreadPool, attend
from spaninfer_kernels_cpu.attention import attention
from spaninfer_kernels_cpu.codegen.isa_level import active_level

SIZES = [(32, 32), (64, 64), (96, 80), (32, 16), (128, 144)]
PARTS = ((0, 33), (0, 1), (0, 2), (0, 300), (0, 64), (0, 17))
KINDS = (np.float32, ml_dtypes.bfloat16)  # of keys and values


def has_product():
    """Whether this CPU multiplies pairs of bfloat16, by vectors or by tiles."""
    level = active_level()
    return level.bf16_dot == "vdpbf16ps" or "bfloat16" in level.tiles


def rounded(numbers):
    return numbers.astype(ml_dtypes.bfloat16).astype(np.float32)


def attended(query, keys, values, rows, scores):
    out = np.full((*query.shape[:2], values.shape[3]), NAN)
    attend(query, keys, values, rows, scores, out=out)
    return out


def close_to_rounded(case, kind, seed=8):
    """Weights are rounded by 2^-9 of themselves at most, beside values of which 4.5 is the most."""
    query, keys, values, rows, scores, _ = problem(case, np.random.default_rng(seed))
    query, keys, values = rounded(query), rounded(keys), rounded(values)
    scores = replace(scores, scale=2.0**-3)  # rounding comes before or behind it

    cache = keys.astype(kind), values.astype(kind)
    out = attended(query, *cache, rows, replace(scores, narrow=True))

    expected = definition(query, keys, values, rows, scores)
    np.testing.assert_allclose(out, expected, rtol=0, atol=1e-2)
    np.testing.assert_allclose(np.abs(out - expected).mean(), 0, atol=1e-3)


@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("heads", [(3, 3), (8, 2)], ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_it_computes_the_definition_of_rounded_numbers(sizes, heads, kind):
    close_to_rounded(Case(parts=PARTS, heads=heads, sizes=sizes, ahead=None), kind)


@pytest.mark.parametrize("case", [c for c in CASES if c.sizes[0] % 32 == 0], ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_it_computes_every_kind_of_softmax(case, kind):
    close_to_rounded(case, kind)


@pytest.mark.parametrize("ahead", [0, None])
@pytest.mark.parametrize("sizes", [(32, 32), (64, 16)], ids=str)
def test_it_computes_texts_of_every_length(sizes, ahead):
    parts = tuple((0, count) for count in range(1, 71))
    close_to_rounded(Case(parts=parts, heads=(4, 2), sizes=sizes, ahead=ahead), np.float32)


@pytest.mark.parametrize("window", [None, 1, 30, 129, 200])
@pytest.mark.parametrize("heads", [(6, 6), (8, 2), (9, 1)], ids=str)
def test_it_computes_prompts_of_several_blocks_behind_others(heads, window):
    parts = ((0, 129), (127, 40), (500, 70), (256, 9), (1003, 33), (90, 300))
    close_to_rounded(Case(parts=parts, heads=heads, window=window, span_len=32), np.float32)


@pytest.mark.parametrize("heads", [(6, 3), (32, 1), (80, 1)], ids=str)
def test_sinks_take_their_part(heads):
    case = Case(parts=((0, 200), (300, 20)), heads=heads, sizes=(64, 64))
    query, keys, values, rows, scores, _ = problem(case, np.random.default_rng(12))
    query, keys, values = rounded(query), rounded(keys), rounded(values)
    sinks = np.linspace(-1, 6, heads[0], dtype=np.float32)
    scores = replace(scores, scale=2.0**-3)

    out = attended(query, keys, values, rows, replace(scores, narrow=True, sinks=sinks))

    without = definition(query, keys, values, rows, scores)
    shares = total_shares(query, keys, rows, scores, sinks)
    np.testing.assert_allclose(out, without * shares[..., None], rtol=0, atol=1e-2)


def total_shares(query, keys, rows, scores, sinks):
    """[T H]: what the weights of keys are of those of keys and sink together, in float64."""
    group = query.shape[1] // keys.shape[2]
    shares = np.empty(query.shape[:2])
    for row, (request, position) in enumerate(zip(rows.request, rows.position, strict=True)):
        span, slot = np.divmod(np.arange(position + 1), keys.shape[1])
        seen = np.repeat(keys[rows.tables[request, span], slot], group, 1).astype(float)
        totals = np.exp(np.einsum("hd,thd->ht", query[row].astype(float), seen) * scores.scale)
        shares[row] = totals.sum(1) / (totals.sum(1) + np.exp(sinks.astype(float)))
    return shares


def test_selected_keys_are_those_of_a_prompt_that_has_no_others():
    case = Case(parts=((150, 60),), heads=(12, 1), sizes=(64, 64))
    query, keys, values, rows, scores, _ = problem(case, np.random.default_rng(13))
    scores = replace(scores, narrow=True)
    every = np.tile(np.arange(210, dtype=np.int32), (60, 1))

    out = attended(query, keys, values, replace(rows, selected=every), scores)

    np.testing.assert_allclose(out, attended(query, keys, values, rows, scores), atol=1e-2, rtol=0)


@pytest.mark.parametrize("count", [33, 64, 300])
def test_operands_of_many_queries_are_rounded(count):
    case = Case(parts=((0, count),), heads=(8, 2), sizes=(64, 64))
    query, keys, values, rows, scores, _ = problem(case, np.random.default_rng(4))
    scores = replace(scores, scale=2.0**-3)

    out = attended(query, keys, values, rows, replace(scores, narrow=True))

    operands = map(rounded, (query, keys, values)) if has_product() else (query, keys, values)
    expected = definition(*operands, rows, scores)
    np.testing.assert_allclose(np.abs(out - expected).mean(), 0, atol=1e-3)


@pytest.mark.parametrize("kind", KINDS)
def test_few_queries_read_keys_and_values_as_without(kind):
    case = Case(parts=((0, 1), (120, 2), (7, 1)), heads=(8, 2), sizes=(64, 64))
    query, keys, values, rows, scores, _ = problem(case, np.random.default_rng(5))
    cache = keys.astype(kind), values.astype(kind)

    narrow = attended(query, *cache, rows, replace(scores, narrow=True))

    np.testing.assert_array_equal(narrow, attended(query, *cache, rows, scores))


def test_it_is_another_product_where_the_cpu_has_one_and_sizes_are_whole():
    for sizes, is_whole in (((32, 32), True), ((48, 32), False), ((32, 24), False)):
        case = Case(parts=((0, 40),), heads=(2, 2), sizes=sizes, ahead=None)
        query, keys, values, rows, scores, _ = problem(case, np.random.default_rng(9))

        wide = attended(query, keys, values, rows, scores)
        narrow = attended(query, keys, values, rows, replace(scores, narrow=True))

        assert bool((wide != narrow).any()) == (has_product() and is_whole)


def test_one_worker_and_many_workers_give_the_same_bits(monkeypatch):
    case = Case(parts=PARTS, heads=(3, 3), sizes=(32, 32), ahead=None)
    query, keys, values, rows, scores, _ = problem(case, np.random.default_rng(1))
    results = []

    for cpus in (1, 2, 8):
        with ThreadPool(cpus) as thread_pool:
            monkeypatch.setattr(attention, "shared_thread_pool", lambda pool=thread_pool: pool)
            results.append(attended(query, keys, values, rows, replace(scores, narrow=True)))

    for result in results[1:]:
        np.testing.assert_array_equal(result, results[0])


@pytest.mark.parametrize("ahead", [0, None])
@pytest.mark.parametrize("heads", [(3, 3), (6, 2)], ids=str)
def test_a_text_has_the_same_bits_alone_and_among_others(heads, ahead):
    case = Case(parts=PARTS, heads=heads, sizes=(32, 32), ahead=ahead)
    query, keys, values, rows, scores, _ = problem(case, np.random.default_rng(2))
    scores = replace(scores, narrow=True)

    together = attended(query, keys, values, rows, scores)

    for request in range(len(PARTS)):
        mine = rows.request == request
        alone = replace(rows, request=rows.request[mine], position=rows.position[mine])
        found = attended(query[mine], keys, values, alone, scores)
        np.testing.assert_array_equal(found, together[mine])


def test_scores_far_apart_stay_finite():
    case = Case(parts=((0, 41),), heads=(2, 2), sizes=(32, 32), ahead=None)
    query, keys, values, rows, _, _ = problem(case, np.random.default_rng(6))

    out = attended(query, keys, values, rows, Scores(scale=1000.0, ahead=None, narrow=True))

    assert np.isfinite(out).all()
