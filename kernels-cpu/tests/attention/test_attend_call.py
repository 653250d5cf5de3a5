"""Attention as calls, against its definition in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import spaninfer_op_reference as definition
from numpy.typing import NDArray
from spaninfer_kernels_cpu import KVArray, Scores
from spaninfer_kernels_cpu.attention import attend_call, attention_plan
from spaninfer_kernels_cpu.runtime.call import ITEMS, Matrix, Script
from spaninfer_kernels_cpu.runtime.thread_pool import shared_thread_pool

RNG = np.random.default_rng(0)
T = 70


def _among_others(*shape: int) -> NDArray[np.float32]:
    """Random rows that are a part of longer ones."""
    wide = RNG.standard_normal((shape[0], 11 + int(np.prod(shape[1:]))), np.float32)
    return wide[:, 4:-7]


def _rows(array: NDArray[np.float32]) -> Matrix:
    return Matrix(array.ctypes.data, array.strides[0])


def _place(array: NDArray[Any]) -> NDArray[np.int64]:
    """Return the word that says where an array is."""
    return np.array([array.ctypes.data], np.int64)


@pytest.mark.parametrize("window", [None, 6])
@pytest.mark.parametrize("heads", [2, 6, 24])
def test_appended_rows_are_attended(heads: int, window: int | None) -> None:
    """Two requests, one of them in its middle, in spans that hold NaN elsewhere."""
    spans, span_len, kv_heads, size, value_size = 40, 4, 2, 10, 6
    keys = np.full((spans, span_len, kv_heads, size), np.nan, np.float32)
    values = np.full((spans, span_len, kv_heads, value_size), np.nan, np.float32)
    request = np.repeat([1, 0], [30, T - 30]).astype(np.int32)
    position = np.concatenate([np.arange(30), np.arange(T - 30)]).astype(np.int32)
    tables = RNG.permutation(spans)[:20].reshape(2, 10).astype(np.int32)
    key, value = _among_others(T, kv_heads * size), _among_others(T, kv_heads * value_size)
    query = RNG.standard_normal((T, heads * size), np.float32)
    out = np.full((T, heads * value_size), np.nan, np.float32)
    items, num_parts = attention_plan.plan_attention(
        request, position, attention_plan.PlanKind(heads // kv_heads, window or 0)
    )
    parts = np.empty(num_parts * heads * (value_size + 2), np.float32)
    width = np.array([10])
    held = [_place(array) for array in (tables, request, position, items, parts)]
    where = [place.ctypes.data for place in held]
    keys, values = (KVArray(numbers) for numbers in (keys, values))
    cache = attend_call.LayerCache(keys, values, where[0], width.ctypes.data, *where[1:3])
    plan = attend_call.AttentionPlan(ITEMS, *where[3:])
    scores = Scores(0.3, None, window)

    script = Script(
        [
            attend_call.append_call(_rows(key), keys, cache),
            attend_call.append_call(_rows(value), values, cache),
            *attend_call.attend_calls(
                _rows(query), heads=heads, spans=cache, plan=plan, scores=scores, out=_rows(out)
            ),
        ]
    )
    shared_thread_pool().run(script, [T, 0, len(items)])

    for first, last in ((0, 30), (30, T)):
        positions = np.arange(last - first)
        expected = definition.attend(
            query[first:last].reshape(-1, heads, size).astype(np.float64),
            key[first:last].reshape(-1, kv_heads, size).astype(np.float64),
            value[first:last].reshape(-1, kv_heads, value_size).astype(np.float64),
            positions,
            positions,
            scale=0.3,
            window=window,
        )
        np.testing.assert_allclose(
            out[first:last], expected.reshape(out[first:last].shape), rtol=2e-5, atol=2e-6
        )


def test_a_long_context_is_read_in_parts_that_are_joined() -> None:
    """Decodes of two requests in turn, over more tokens than one task reads."""
    heads, kv_heads, size, span_len = 4, 2, 8, 4
    keys, values = RNG.standard_normal((2, 400, span_len, kv_heads, size), np.float32)
    tables = RNG.permutation(400)[:360].reshape(2, 180).astype(np.int32)
    request = (np.arange(T) % 2).astype(np.int32)
    position = np.arange(640, 640 + T).astype(np.int32)
    query = RNG.standard_normal((T, heads * size), np.float32)
    out = np.full((T, heads * size), np.nan, np.float32)
    items, num_parts = attention_plan.plan_attention(
        request, position, attention_plan.PlanKind(heads // kv_heads)
    )
    parts = np.empty(num_parts * heads * (size + 2), np.float32)
    width = np.array([180])
    held = [_place(array) for array in (tables, request, position, items, parts)]
    where = [place.ctypes.data for place in held]

    cached = KVArray(keys), KVArray(values)

    script = Script(
        attend_call.attend_calls(
            _rows(query),
            heads=heads,
            spans=attend_call.LayerCache(*cached, where[0], width.ctypes.data, *where[1:3]),
            plan=attend_call.AttentionPlan(ITEMS, *where[3:]),
            scores=Scores(0.3),
            out=_rows(out),
        )
    )
    shared_thread_pool().run(script, [T, 0, len(items)])

    assert num_parts > T
    for row in (0, 1, T - 1):
        seen = np.arange(position[row] + 1)
        expected = definition.attend(
            query[row : row + 1].reshape(1, heads, size).astype(np.float64),
            definition.gather_spans(keys, tables[request[row]], len(seen)).astype(np.float64),
            definition.gather_spans(values, tables[request[row]], len(seen)).astype(np.float64),
            position[row : row + 1],
            seen,
            scale=0.3,
        )
        np.testing.assert_allclose(out[row], expected.reshape(out[row].shape), rtol=2e-5, atol=2e-6)
