"""Operators of encoders on every backend, text by text, against their definitions in float64."""

from __future__ import annotations

from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import spaninfer_op_reference as definition
from backends import BACKENDS, Backend
from contexts import metadata_of
from numpy.typing import NDArray
from spaninfer_engine.ops.scoring import RaggedScoring
from spaninfer_engine.ops.step import Step
from spaninfer_op_reference.pool import POOLINGS

Array = NDArray[Any]


def _cuda(dtype: Any) -> Any:
    from spaninfer_engine.backends.cuda.encoder import CudaEncoderOps

    return CudaEncoderOps(dtype)


EVERYWHERE = [
    *BACKENDS,
    *(
        pytest.param(Backend("cuda", dtype, partial(_cuda, dtype)), marks=pytest.mark.gpu)
        for dtype in ("bfloat16", "float16")
    ),
]
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


@pytest.mark.parametrize("backend", EVERYWHERE, ids=str)
@pytest.mark.parametrize("kv_heads", [4, 2])
def test_attention_sees_the_whole_text_and_nothing_of_others(
    kv_heads: int, backend: Backend
) -> None:
    ops, total = backend.make(), sum(LENGTHS)
    query = _random(total, 4, 16)
    key, value = _random(total, kv_heads, 16, seed=1), _random(total, kv_heads, 8, seed=2)

    inputs = [backend.put(ops, array) for array in (query, key, value)]
    actual = ops.attend_ragged(_step(ops), *inputs, scoring=RaggedScoring(0.25))

    texts = _by_text(query, key, value)
    expected = [definition.attend_ragged(*text, scale=0.25) for text in texts]
    backend.check(ops, actual, np.concatenate(expected))


@pytest.mark.parametrize("backend", EVERYWHERE, ids=str)
@pytest.mark.parametrize(
    "scores",
    [
        {"ahead": 0},
        {"window": 3, "ahead": 2},
        {"window": 2},
        {"softcap": 2.0},
        {"softcap": 2.0, "ahead": 0},
    ],
    ids=str,
)
def test_attention_sees_as_far_back_and_ahead_as_it_is_told(
    scores: dict[str, Any], backend: Backend
) -> None:
    ops, total = backend.make(), sum(LENGTHS)
    arrays = [_random(total, 2, 16, seed=seed) for seed in range(3)]

    actual = ops.attend_ragged(
        _step(ops),
        *(backend.put(ops, array) for array in arrays),
        scoring=RaggedScoring(0.25, **scores),
    )

    expected = [definition.attend_ragged(*text, scale=0.25, **scores) for text in _by_text(*arrays)]
    backend.check(ops, actual, np.concatenate(expected))


@pytest.mark.parametrize("backend", EVERYWHERE, ids=str)
@pytest.mark.parametrize("reach", [3, 40])
@pytest.mark.parametrize(
    "scores",
    [{}, {"window": 3, "ahead": 2}, {"softcap": 2.0}, {"softcap": 2.0, "ahead": 0}],
    ids=str,
)
def test_every_head_adds_its_bias_for_how_far_apart_tokens_are(
    scores: dict[str, Any], reach: int, backend: Backend
) -> None:
    ops, total = backend.make(), sum(LENGTHS)
    query = _random(total, 4, 16)
    key, value = (_random(total, 2, 16, seed=seed) for seed in (1, 2))
    biases = (2 * _random(4, 2 * reach + 1, seed=3)).astype(np.float32)

    actual = ops.attend_ragged(
        _step(ops),
        *(backend.put(ops, array) for array in (query, key, value)),
        scoring=RaggedScoring(0.25, **scores),
        position_bias=ops.pack([biases], ops.layout("attend_ragged", "position_bias")),
    )

    expected = [
        definition.attend_ragged(
            *text,
            scale=0.25,
            bias=definition.relative_position_bias(biases, len(text[0])),
            **scores,
        )
        for text in _by_text(query, key, value)
    ]
    backend.check(ops, actual, np.concatenate(expected))


@pytest.mark.parametrize("backend", EVERYWHERE, ids=str)
@pytest.mark.parametrize("kinds", [*((kind,) for kind in POOLINGS), ("cls", "mean")], ids=str)
def test_every_text_becomes_one_row(kinds: Any, backend: Backend) -> None:
    ops, x = backend.make(), _random(sum(LENGTHS), 24)

    actual = ops.pool(_step(ops), backend.put(ops, x), kinds=kinds)

    texts = [text for (text,) in _by_text(x)]
    expected = [np.concatenate([definition.pool(text, kind) for kind in kinds]) for text in texts]
    backend.check(ops, actual, np.stack(expected))


@pytest.mark.parametrize("backend", EVERYWHERE, ids=str)
def test_tokens_of_a_second_text_get_the_second_row_of_a_table(backend: Backend) -> None:
    ops, x, table = backend.make(), _random(sum(LENGTHS), 24), _random(2, 24, seed=1)
    step = _step(ops)
    step.attention.second_from[step.attention.batch.table_rows[2]] = 4

    actual = ops.add_types(step, backend.put(ops, x), table=backend.put(ops, table))

    types = np.zeros(sum(LENGTHS), np.int32)
    types[BOUNDS[2] + 4 : BOUNDS[3]] = 1
    backend.check(ops, actual, definition.add_types(x, types, table))
