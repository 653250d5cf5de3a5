"""Operators of encoders on every backend, text by text, against their definitions in float64."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import spaninfer_op_reference as definition
from backends import BACKENDS, Backend
from contexts import metadata_of
from numpy.typing import NDArray
from spaninfer_engine.ops.step import Step

Array = NDArray[Any]

LENGTHS = (5, 1, 17, 2)
BOUNDS = np.cumsum([0, *LENGTHS]).tolist()


def _random(*shape: int, seed: int = 0) -> Array:
    rng = np.random.default_rng(seed)
    return definition.to_bfloat16(rng.standard_normal(shape)).astype(np.float64)


def _step(ops: Any) -> Step[Any]:
    blank = ops.from_host(np.zeros(sum(LENGTHS), np.int32))
    return Step(blank, blank[None], (), blank[:0], metadata_of(*LENGTHS))


def _by_text(*arrays: Array) -> list[tuple[Array, ...]]:
    return [tuple(array[first:last] for array in arrays) for first, last in pairwise(BOUNDS)]


@pytest.mark.parametrize("backend", BACKENDS, ids=str)
@pytest.mark.parametrize("kv_heads", [4, 2])
def test_attention_sees_the_whole_text_and_nothing_of_others(
    kv_heads: int, backend: Backend
) -> None:
    ops, total = backend.make(), sum(LENGTHS)
    query = _random(total, 4, 16)
    key, value = _random(total, kv_heads, 16, seed=1), _random(total, kv_heads, 8, seed=2)

    inputs = [backend.put(ops, array) for array in (query, key, value)]
    actual = ops.attend_bidirectional(_step(ops), *inputs, scale=0.25)

    texts = _by_text(query, key, value)
    expected = [definition.attend_bidirectional(*text, scale=0.25) for text in texts]
    backend.check(ops, actual, np.concatenate(expected))


@pytest.mark.parametrize("backend", BACKENDS, ids=str)
@pytest.mark.parametrize("kind", ["cls", "mean", "last"])
def test_every_text_becomes_one_row(kind: Any, backend: Backend) -> None:
    ops, x = backend.make(), _random(sum(LENGTHS), 24)

    actual = ops.pool(_step(ops), backend.put(ops, x), kind=kind)

    expected = np.stack([definition.pool(*text, kind) for text in _by_text(x)])
    backend.check(ops, actual, expected)


@pytest.mark.parametrize("backend", BACKENDS, ids=str)
def test_all_tokens_get_the_same_row_of_a_table(backend: Backend) -> None:
    ops, x, table = backend.make(), _random(7, 24), _random(2, 24, seed=1)

    actual = ops.add_row(backend.put(ops, x), table=backend.put(ops, table), row=1)

    backend.check(ops, actual, definition.add_row(x, table, 1))
