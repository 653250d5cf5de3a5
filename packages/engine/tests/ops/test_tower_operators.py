"""Operators of towers on every backend, against their definitions in float64."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import spaninfer_op_reference as definition
from backends import BACKENDS, Backend
from contexts import metadata_of
from numpy.typing import NDArray
from spaninfer_engine.ops.scoring import RaggedScoring
from spaninfer_engine.ops.step import Blend, Step, metadata_of_runs

Array = NDArray[Any]

FRAMES, WINDOWS = (12, 8), np.array([3, 9, 1, 7], np.int32)


def _random(*shape: int, seed: int = 0) -> Array:
    rng = np.random.default_rng(seed)
    return definition.to_bfloat16(rng.standard_normal(shape)).astype(np.float64)


def _step(ops: Any, wanted: int = 0) -> Step[Any]:
    blank = ops.from_host(np.zeros(sum(FRAMES), np.int32))
    attention = replace(metadata_of(*FRAMES), windows=metadata_of_runs(WINDOWS))
    return Step(blank, blank[None], (), blank[:wanted], attention)


@pytest.mark.parametrize("backend", BACKENDS, ids=str)
@pytest.mark.parametrize("in_windows", [True, False])
def test_patches_see_their_window_or_their_frame(in_windows: bool, backend: Backend) -> None:
    ops, total = backend.make(), sum(FRAMES)
    arrays = [_random(total, 2, 16, seed=seed) for seed in range(3)]
    bounds = np.cumsum([0, *(WINDOWS if in_windows else FRAMES)]).tolist()

    inputs = [backend.put(ops, array) for array in arrays]
    scoring = RaggedScoring(0.25, in_windows=in_windows)
    actual = ops.attend_ragged(_step(ops), *inputs, scoring=scoring)

    expected = [
        definition.attend_ragged(*(array[first:last] for array in arrays), scale=0.25)
        for first, last in pairwise(bounds)
    ]
    backend.check(ops, actual, np.concatenate(expected))


@pytest.mark.parametrize("backend", BACKENDS, ids=str)
def test_neighbouring_rows_are_joined(backend: Backend) -> None:
    ops, x = backend.make(), _random(20, 6)

    actual = ops.join_rows(backend.put(ops, x), count=4)

    backend.check(ops, actual, x.reshape(5, 24))


@pytest.mark.parametrize("backend", BACKENDS, ids=str)
def test_positions_are_weighted_sums_of_rows(backend: Backend) -> None:
    ops, table = backend.make(), _random(9, 4)
    rows, weights = np.array([[8, 0], [3, 3]], np.int32), np.array([[0.25, 0.75], [1, 0]])
    blend = Blend(ops.from_host(rows), ops.from_host(weights.astype(np.float32)))
    packed = ops.pack([table.astype(np.float32)], ops.layout("blended_positions", "table"))

    other = Blend(ops.from_host(rows[::-1].copy()), blend.weights)
    step = replace(_step(ops), blends=(other, blend))
    actual = ops.blended_positions(step, table=packed, square=1)

    backend.check(ops, actual, np.stack([table[8] / 4 + table[0] * 0.75, table[3]]))


@pytest.mark.parametrize("backend", BACKENDS, ids=str)
def test_queries_are_a_table_for_every_frame(backend: Backend) -> None:
    ops, table = backend.make(), _random(5, 4)
    packed = ops.pack([table.astype(np.float32)], ops.layout("learned_queries", "table"))

    actual = ops.learned_queries(_step(ops), table=packed)

    backend.check(ops, actual, np.concatenate([table] * len(FRAMES)))


@pytest.mark.parametrize("backend", BACKENDS, ids=str)
def test_queries_see_all_patches_of_their_own_frame(backend: Backend) -> None:
    ops, total = backend.make(), sum(FRAMES)
    query, key, value = (
        _random(count, 2, 16, seed=count) for count in (3 * len(FRAMES), total, total + 1)
    )
    value = value[:total]

    inputs = [backend.put(ops, array) for array in (query, key, value)]
    actual = ops.cross_attend(_step(ops), *inputs, scale=0.25)

    expected = []
    for number, (first, last) in enumerate(pairwise(np.cumsum([0, *FRAMES]).tolist())):
        scores = np.einsum("qhd,khd->hqk", query[3 * number : 3 * number + 3], key[first:last]) / 4
        shares = np.exp(scores) / np.exp(scores).sum(-1, keepdims=True)
        expected.append(np.einsum("hqk,khd->qhd", shares, value[first:last]))
    backend.check(ops, actual, np.concatenate(expected))


@pytest.mark.parametrize("backend", BACKENDS, ids=str)
def test_rows_are_taken_and_stacked(backend: Backend) -> None:
    ops, x = backend.make(), _random(5, 3)
    given = backend.put(ops, x)

    taken = ops.take_rows(given, np.array([4, 0, 4], np.int32))

    backend.check(ops, ops.stack_rows([taken, given]), x[[4, 0, 4, 0, 1, 2, 3, 4]])
