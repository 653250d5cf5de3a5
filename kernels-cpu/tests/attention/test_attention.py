"""The Numba kernel against the definition, in float64, over poisoned spans and outputs."""

import numpy as np
import pytest
from attention_problem import CASES, NAN, Case, definition, problem
from spaninfer_kernels_cpu import (
    AttentionBatch,
    DTypeError,
    KernelError,
    Scores,
    ShapeError,
    ThreadPool,
    attend,
)
from spaninfer_kernels_cpu.attention import attention


@pytest.mark.parametrize("case", CASES, ids=str)
def test_it_computes_the_definition(case):
    rng = np.random.default_rng(7)
    query, keys, values, rows, scores, out = problem(case, rng)

    attend(query, keys, values, rows, scores, out=out)

    expected = definition(query, keys, values, rows, scores)
    np.testing.assert_allclose(out, expected, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("seed", range(40))
def test_it_computes_the_definition_for_random_sizes(seed):
    rng = np.random.default_rng(seed)
    kv_heads, group = rng.integers(1, 4), rng.choice([1, 2, 7, 8])
    case = Case(
        parts=tuple(
            (int(rng.integers(0, 300)), int(rng.choice([1, 1, 2, rng.integers(1, 60)])))
            for _ in range(rng.integers(1, 6))
        ),
        heads=(int(kv_heads * group), int(kv_heads)),
        sizes=(int(rng.integers(1, 33)) * 8, int(rng.integers(1, 33)) * 8),
        span_len=int(rng.choice([16, 32, 64])),
        window=int(rng.integers(1, 200)) if rng.random() < 0.4 else None,
        softcap=float(rng.uniform(1, 50)) if rng.random() < 0.3 else None,
        alibi=bool(rng.random() < 0.3),
    )
    query, keys, values, rows, scores, out = problem(case, rng)

    attend(query, keys, values, rows, scores, out=out)

    expected = definition(query, keys, values, rows, scores)
    np.testing.assert_allclose(out, expected, rtol=2e-5, atol=2e-6)


def test_one_worker_and_many_workers_give_the_same_bits(monkeypatch):
    case = Case(parts=((0, 60), (500, 1), (13, 21)), heads=(8, 2), span_len=32)
    query, keys, values, rows, scores, _ = problem(case, np.random.default_rng(1))
    results = []

    for cpus in (1, 2, 3, 8):
        out = np.full((len(query), 8, 64), NAN)
        with ThreadPool(cpus) as thread_pool:
            monkeypatch.setattr(attention, "shared_thread_pool", lambda pool=thread_pool: pool)
            attend(query, keys, values, rows, scores, out=out)
        results.append(out)

    for result in results[1:]:
        np.testing.assert_array_equal(result, results[0])


def test_a_row_has_the_same_result_alone_and_in_a_chunk():
    case = Case(parts=((0, 50),), heads=(7, 1))
    query, keys, values, rows, scores, together = problem(case, np.random.default_rng(2))
    alone = np.full_like(together, NAN)

    attend(query, keys, values, rows, scores, out=together)
    for row in range(50):
        one = slice(row, row + 1)
        single = AttentionBatch(rows.tables, rows.request[one], rows.position[one])
        attend(query[one], keys, values, single, scores, out=alone[one])

    np.testing.assert_allclose(alone, together, rtol=1e-5, atol=1e-6)


def test_values_may_be_the_first_columns_of_the_keys():
    case = Case(parts=((0, 20), (77, 1)), heads=(16, 1), sizes=(72, 64))
    query, keys, _, rows, scores, out = problem(case, np.random.default_rng(3))
    values = keys[..., :64]

    attend(query, keys, values, rows, scores, out=out)

    expected = definition(query, keys, values, rows, scores)
    np.testing.assert_allclose(out, expected, rtol=2e-5, atol=2e-6)


def test_keys_and_values_of_one_layer_may_lie_inside_spans_of_all_layers():
    case = Case(parts=((40, 12),))
    query, keys, values, rows, scores, out = problem(case, np.random.default_rng(4))
    layers = np.full((len(keys), 3, 2, *keys.shape[1:]), NAN)
    layers[:, 1, 0], layers[:, 1, 1] = keys, values

    attend(query, layers[:, 1, 0], layers[:, 1, 1], rows, scores, out=out)

    expected = definition(query, keys, values, rows, scores)
    np.testing.assert_allclose(out, expected, rtol=2e-5, atol=2e-6)


def test_spans_that_a_window_has_left_behind_need_no_valid_number():
    case = Case(parts=((150, 4),), window=20)
    query, keys, values, rows, scores, out = problem(case, np.random.default_rng(5))
    expected = definition(query, keys, values, rows, scores)
    rows.tables[0, : (150 - 19) // 16] = -(2**31)

    attend(query, keys, values, rows, scores, out=out)

    np.testing.assert_allclose(out, expected, rtol=2e-5, atol=2e-6)


def test_scores_far_apart_stay_finite():
    case = Case(parts=((0, 40),))
    query, keys, values, rows, _, out = problem(case, np.random.default_rng(6))
    scores = Scores(scale=1000.0)

    attend(query, keys, values, rows, scores, out=out)

    expected = definition(query, keys, values, rows, scores)
    np.testing.assert_allclose(out, expected, rtol=1e-3, atol=1e-3)


def test_a_nan_in_a_query_shows_in_its_own_heads_only():
    case = Case(parts=((30, 4),), heads=(4, 2))
    query, keys, values, rows, scores, out = problem(case, np.random.default_rng(8))
    query[2, 1, 5] = np.nan

    attend(query, keys, values, rows, scores, out=out)

    assert np.isnan(out[2, 1]).all()
    assert np.isnan(out).sum() == 64


def test_no_rows_are_no_work():
    case = Case(parts=((0, 1),))
    query, keys, values, rows, scores, _ = problem(case, np.random.default_rng(9))
    nothing = AttentionBatch(rows.tables, rows.request[:0], rows.position[:0])

    out = np.full((2, 4, 64), np.nan, np.float32)
    attend(query[:0], keys, values, nothing, scores, out=out[:0])

    assert np.isnan(out).all()


def test_arguments_that_do_not_fit_are_named():
    case = Case(parts=((0, 4),))
    query, keys, values, rows, scores, out = problem(case, np.random.default_rng(10))

    with pytest.raises(DTypeError, match="query holds float64"):
        attend(query.astype(np.float64), keys, values, rows, scores, out=out)
    with pytest.raises(ShapeError, match=r"keys: expected axes \(S L K D\)"):
        attend(query, keys[0], values, rows, scores, out=out)
    with pytest.raises(ShapeError, match="differ in D"):
        attend(query[..., :32].copy(), keys, values, rows, scores, out=out)
    with pytest.raises(ShapeError, match="keys: the last 1 of the axes"):
        attend(query[..., :32].copy(), keys[..., ::2], values, rows, scores, out=out)
    with pytest.raises(ShapeError, match="out has shape"):
        attend(query, keys, values, rows, scores, out=out[:3])
    with pytest.raises(ShapeError, match="3 query heads are not a multiple of 2"):
        attend(query[:, :3].copy(), keys, values, rows, scores, out=out[:, :3].copy())
    biased = Scores(1.0, slopes=np.ones(3, np.float32))
    with pytest.raises(ShapeError, match="slopes has 3 numbers for 4"):
        attend(query, keys, values, rows, biased, out=out)
    biased = Scores(1.0, biases=np.ones((3, 5), np.float32))
    with pytest.raises(ShapeError, match="biases has 3 rows for 4"):
        attend(query, keys, values, rows, biased, out=out)
    with pytest.raises(ShapeError, match=r"biases has 4 distances; .* are an odd number"):
        Scores(1.0, biases=np.ones((3, 4), np.float32))
    fewer = AttentionBatch(rows.tables, rows.request[:2], rows.position[:2])
    with pytest.raises(ShapeError, match="query has 4 rows, but position has 2"):
        attend(query, keys, values, fewer, scores, out=out)


def test_rows_and_scores_that_mean_nothing_are_refused():
    number = np.zeros(1, np.int32)

    with pytest.raises(DTypeError, match="position holds int64"):
        AttentionBatch(number[None], number, number.astype(np.int64))
    with pytest.raises(ShapeError, match="request has 1 rows, but position has 2"):
        AttentionBatch(number[None], number, np.zeros(2, np.int32))
    with pytest.raises(KernelError, match="request holds 1; there are 1 rows of tables"):
        AttentionBatch(number[None], number + 1, number)
    with pytest.raises(KernelError, match="position holds -1"):
        AttentionBatch(number[None], number, number - 1)
    with pytest.raises(ShapeError, match="until must lie behind every position"):
        AttentionBatch(number[None], number, number, number)
    rows = np.arange(3, dtype=np.int32)
    with pytest.raises(KernelError, match="until differs among rows that see each other"):
        AttentionBatch(number[None], rows * 0, rows, np.array([3, 2, 3], np.int32))
    with pytest.raises(ShapeError, match="softcap is 0"):
        Scores(1.0, softcap=0.0)
    with pytest.raises(ShapeError, match="window is 0"):
        Scores(1.0, window=0)


def test_a_table_that_names_a_span_that_there_is_not_is_refused_where_it_would_be_read():
    case = Case(parts=((40, 1), (5, 1)))
    query, keys, values, rows, scores, out = problem(case, np.random.default_rng(11))
    tables = rows.tables.copy()

    for wrong in (-1, len(keys)):
        rows.tables[:] = tables
        rows.tables[0, 1] = wrong
        with pytest.raises(KernelError, match=f"tables holds {wrong}; there are {len(keys)} spans"):
            attend(query, keys, values, rows, scores, out=out)
        with pytest.raises(KernelError, match=f"tables holds {wrong}"):
            attend(query, keys, values, rows, Scores(1.0, window=10), out=out)
        attend(query, keys, values, rows, Scores(1.0, window=9), out=out)
    further = AttentionBatch(tables, rows.request, np.array([48, 5], np.int32))
    with pytest.raises(
        KernelError, match="a row sees position 48; tables have 3 spans of 16 tokens"
    ):
        attend(query, keys, values, further, scores, out=out)


def test_an_array_that_is_read_only_is_not_written():
    query, keys, values, rows, scores, out = problem(Case(((0, 4),)), np.random.default_rng(12))
    out.setflags(write=False)

    with pytest.raises(KernelError, match="out is read-only"):
        attend(query, keys, values, rows, scores, out=out)

    assert np.isnan(out).all()
