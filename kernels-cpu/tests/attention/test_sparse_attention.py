"""Sparse attention of the CPU against its definition, over spans that hold NaN elsewhere."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import spaninfer_op_reference as definition
from numpy.typing import NDArray
from spaninfer_kernels_cpu import (
    AttentionBatch,
    DTypeError,
    KernelError,
    KVArray,
    Scores,
    ShapeError,
    attend,
    select_keys,
)

Array = NDArray[Any]

SPAN_LEN = 8
PARTS = ((0, 5), (90, 1), (30, 12), (299, 1))  # first position and number of rows of each request


@dataclass(frozen=True)
class Problem:
    """Rows of several requests, and numbers of their spans."""

    batch: AttentionBatch
    num_spans: int

    @classmethod
    def of(cls, parts: tuple[tuple[int, int], ...] = PARTS) -> Problem:
        ends = [first + count for first, count in parts]
        width = -(-max(ends) // SPAN_LEN)
        numbers = np.random.default_rng(3).permutation(len(parts) * width)
        batch = AttentionBatch(
            tables=numbers.reshape(len(parts), width).astype(np.int32),
            request=np.repeat(np.arange(len(parts)), [n for _, n in parts]).astype(np.int32),
            position=np.concatenate([np.arange(a, a + n) for a, n in parts]).astype(np.int32),
        )
        return cls(batch, len(numbers))

    @property
    def rows(self) -> int:
        return len(self.batch.position)

    def spans(self, size: int, dtype: Any = np.float32, seed: int = 0) -> Array:
        """Keys [S L 1 D] of all requests; NaN where no row sees them."""
        rng = np.random.default_rng(seed)
        keys = np.full((self.num_spans, SPAN_LEN, 1, size), np.nan, np.float32)
        for table, end in zip(self.batch.tables, self.ends, strict=True):
            numbers = rng.standard_normal((end, size), np.float32).astype(dtype)
            for place, row in enumerate(numbers):
                keys[table[place // SPAN_LEN], place % SPAN_LEN, 0] = row
        return keys.astype(dtype)

    @property
    def ends(self) -> list[int]:
        requests = range(len(self.batch.tables))
        return [int(self.batch.position[self.batch.request == r].max()) + 1 for r in requests]

    def keys_of(self, spans: Array, row: int) -> Array:
        """[N 1 D] in float64: those that the row sees."""
        table, seen = self.batch.tables[self.batch.request[row]], self.batch.position[row] + 1
        return spans[table].reshape(-1, *spans.shape[2:])[:seen].astype(np.float64)


def _selected(problem: Problem, query: Array, weights: Array, keys: Any, top_k: int) -> Array:
    out = np.full((problem.rows, top_k), -7, np.int32)
    select_keys(query, weights, keys, problem.batch, out=out)
    return out


def _operands(problem: Problem, heads: int, size: int) -> tuple[Array, Array]:
    rng = np.random.default_rng(1)
    query = rng.standard_normal((problem.rows, heads, size), np.float32)
    return query, rng.standard_normal((problem.rows, heads), np.float32)


@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize(("heads", "size"), [(64, 128), (3, 20), (300, 8)])
@pytest.mark.parametrize("top_k", [1, 7, 64, 1000])
def test_the_best_keys_are_selected(heads: int, size: int, top_k: int, dtype: Any) -> None:
    """Scores within rounding of the last one selected may be swapped, and no others."""
    problem = Problem.of()
    query, weights = _operands(problem, heads, size)
    keys = problem.spans(size, dtype)

    selected = _selected(problem, query, weights, keys, top_k)

    for row, found in enumerate(selected):
        seen = problem.keys_of(keys, row)[:, 0]
        scores = definition.index_scores(query[row : row + 1], weights[row : row + 1], seen)[0]
        count = min(top_k, len(seen))
        known, rest = found[:count], found[count:]
        assert (rest == -1).all()
        assert (np.diff(known) > 0).all()
        assert 0 <= known[0] <= known[-1] < len(seen)
        others = np.setdiff1d(np.arange(len(seen)), known)
        if len(others):
            assert scores[others].max() <= scores[known].min() + 1e-4 * np.abs(scores).max()


@pytest.mark.parametrize("top_k", [3, 40, 128])
def test_of_equal_scores_the_lower_positions_are_selected(top_k: int) -> None:
    """Scores of few values, exact in float32, of both signs and zeros of both signs."""
    problem = Problem.of()
    rng = np.random.default_rng(5)
    query = rng.integers(-1, 2, (problem.rows, 4, 6)).astype(np.float32)
    weights = rng.integers(-1, 2, (problem.rows, 4)).astype(np.float32)
    keys = problem.spans(6).round()

    selected = _selected(problem, query, weights, keys, top_k)

    for row, found in enumerate(selected):
        seen = problem.keys_of(keys, row)[:, 0]
        part = slice(row, row + 1)
        place = np.array([len(seen) - 1])
        (expected,) = definition.select_keys(query[part], weights[part], seen, place, top_k)
        assert found[: len(expected)].tolist() == expected.tolist()


def test_a_row_selects_the_same_beside_any_others() -> None:
    whole = Problem.of(((200, 40),))
    query, weights = _operands(whole, 32, 64)
    keys = whole.spans(64)
    together = _selected(whole, query, weights, keys, 50)

    for row in (0, 17, 39):
        batch = AttentionBatch(
            whole.batch.tables, whole.batch.request[row : row + 1], whole.batch.position[row:][:1]
        )
        alone = np.empty((1, 50), np.int32)
        select_keys(query[row : row + 1], weights[row : row + 1], keys, batch, out=alone)
        assert (alone[0] == together[row]).all()


def test_what_is_no_number_selects_keys_that_there_are() -> None:
    problem = Problem.of()
    query, weights = _operands(problem, 4, 8)
    query[::2], weights[1::4] = np.nan, np.inf

    selected = _selected(problem, query, weights, problem.spans(8), 9)

    for row, found in enumerate(selected):
        seen = problem.batch.position[row] + 1
        count = min(9, seen)
        assert (np.diff(found[:count]) > 0).all()
        assert 0 <= found[0] <= found[count - 1] < seen
        assert (found[count:] == -1).all()


@pytest.mark.parametrize(("heads", "size", "value_size"), [(16, 40, 32), (128, 24, 16), (2, 9, 7)])
def test_selected_keys_are_attended(heads: int, size: int, value_size: int) -> None:
    problem = Problem.of()
    rng = np.random.default_rng(8)
    keys = problem.spans(size)
    query = rng.standard_normal((problem.rows, heads, size), np.float32)
    index = _operands(problem, 4, 8)
    selected = _selected(problem, *index, problem.spans(8, seed=4), 70)
    out = np.full((problem.rows, heads, value_size), np.nan, np.float32)
    batch = AttentionBatch(
        problem.batch.tables, problem.batch.request, problem.batch.position, selected=selected
    )

    attend(query, keys, keys[..., :value_size], batch, Scores(0.3), out=out)

    for row in range(problem.rows):
        seen = problem.keys_of(keys, row)
        expected = definition.attend_selected(
            query[row : row + 1].astype(np.float64),
            *(seen, seen[..., :value_size], selected[row : row + 1]),
            scale=0.3,
        )
        np.testing.assert_allclose(out[row : row + 1], expected, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("heads", [16, 128])
def test_where_all_keys_are_selected_attention_is_dense_to_the_bit(heads: int) -> None:
    problem = Problem.of()
    rng = np.random.default_rng(9)
    keys = problem.spans(40)
    query = rng.standard_normal((problem.rows, heads, 40), np.float32)
    index = _operands(problem, 4, 8)
    selected = _selected(problem, *index, problem.spans(8, seed=4), max(problem.ends))
    dense, sparse = (np.empty((problem.rows, heads, 32), np.float32) for _ in range(2))
    given = problem.batch.tables, problem.batch.request, problem.batch.position
    operands = query, keys, keys[..., :32]

    attend(*operands, problem.batch, Scores(0.3), out=dense)
    attend(*operands, AttentionBatch(*given, selected=selected), Scores(0.3), out=sparse)

    assert (dense == sparse).all()


def test_keys_in_codes_are_selected_as_what_they_stand_for() -> None:
    problem = Problem.of(((120, 1),))
    query, weights = _operands(problem, 16, 32)
    keys = problem.spans(32)
    seen = problem.keys_of(keys, 0)
    codes = np.zeros((*keys.shape,), np.int8)
    scales = np.full((*keys.shape[:3], 2), np.nan, np.float32)
    stored = definition.quantize_cache(seen.astype(np.float32), definition.CodeRange.INT8)
    for place in range(len(seen)):
        span, slot = problem.batch.tables[0][place // SPAN_LEN], place % SPAN_LEN
        codes[span, slot, 0] = stored.codes[place, 0]
        scales[span, slot, 0] = stored.zero[place, 0, 0], stored.scale[place, 0, 0]

    (found,) = _selected(problem, query, weights, KVArray(codes, scales), 20)

    scores = definition.index_scores(query, weights, stored.dequantize()[:, 0])[0]
    others = np.setdiff1d(np.arange(len(seen)), found)
    assert scores[others].max() <= scores[found].min() + 1e-4 * np.abs(scores).max()


def test_arguments_that_do_not_fit_are_refused() -> None:
    problem = Problem.of(((20, 2),))
    query, weights = _operands(problem, 4, 8)
    keys, out = problem.spans(8), np.empty((2, 5), np.int32)

    with pytest.raises(ShapeError, match="differ in D"):
        select_keys(query[..., :6].copy(), weights, keys, problem.batch, out=out)
    with pytest.raises(ShapeError, match="weights have shape"):
        select_keys(query, weights[:, :3].copy(), keys, problem.batch, out=out)
    with pytest.raises(DTypeError, match="out holds int64"):
        select_keys(query, weights, keys, problem.batch, out=out.astype(np.int64))
    with pytest.raises(ShapeError, match="those of an indexer have one"):
        select_keys(query, weights, keys.repeat(2, 2), problem.batch, out=out)
    rows = problem.batch.request, problem.batch.position
    short = AttentionBatch(problem.batch.tables[:, :1].copy(), *rows)
    with pytest.raises(KernelError, match="tables have"):
        select_keys(query, weights, keys, short, out=out)


@pytest.mark.parametrize(
    ("selected", "what"),
    [
        ([[0, 1, 21], [0, 1, 2]], "ascend"),  # the first row is at position 20
        ([[0, 2, 1], [0, 1, 2]], "ascend"),
        ([[-1, 1, 2], [0, 1, 2]], "ascend"),
        ([[0, 1, 2]], "selected has shape"),
    ],
)
def test_selected_keys_that_a_row_cannot_read_are_refused(selected: Any, what: str) -> None:
    batch = Problem.of(((20, 2),)).batch

    with pytest.raises(KernelError, match=what):
        AttentionBatch(
            batch.tables, batch.request, batch.position, selected=np.array(selected, np.int32)
        )


def test_selected_keys_take_no_window() -> None:
    problem = Problem.of(((20, 1),))
    keys, out = problem.spans(8), np.empty((1, 2, 8), np.float32)
    given = problem.batch.tables, problem.batch.request, problem.batch.position
    batch = AttentionBatch(*given, selected=np.array([[3, 9]], np.int32))

    with pytest.raises(KernelError, match="take no window"):
        attend(np.ones((1, 2, 8), np.float32), keys, keys, batch, Scores(1.0, window=3), out=out)
