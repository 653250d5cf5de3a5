"""Pooling of all texts at once, against the definition text by text."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import spaninfer_op_reference as definition
from spaninfer_op_reference.pool import POOLINGS

torch = pytest.importorskip("torch")

from spaninfer_engine.backends.torch.pooling import (  # noqa: E402
    PIECE_ROWS,
    TextRows,
    pieces_of,
    pool_texts,
)

LENGTHS = np.array([1, PIECE_ROWS, PIECE_ROWS + 1, 3, 5 * PIECE_ROWS - 1, 1], np.int32)


def _pooled(x: Any, lengths: Any, kind: Any) -> Any:
    bounds = np.cumsum([0, *lengths], dtype=np.int32)
    return pool_texts(torch.from_numpy(x), TextRows.of(bounds, torch.from_numpy), kind).numpy()


@pytest.mark.parametrize("kind", POOLINGS)
def test_texts_of_all_lengths_are_pooled_as_each_is_alone(kind: Any) -> None:
    x = np.random.default_rng(0).standard_normal((LENGTHS.sum(), 9)).astype(np.float32)

    pooled = _pooled(x, LENGTHS, kind)

    bounds = np.cumsum([0, *LENGTHS]).tolist()
    wide = x.astype(np.float64)
    expected = [definition.pool(wide[first:last], kind) for first, last in pairwise(bounds)]
    np.testing.assert_allclose(pooled, np.stack(expected), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", POOLINGS)
def test_a_text_has_the_same_bits_whatever_lies_beside_it(kind: Any) -> None:
    x = np.random.default_rng(0).standard_normal((LENGTHS.sum(), 9)).astype(np.float32)
    alone = x[: LENGTHS[:3].sum()][-LENGTHS[2] :]

    np.testing.assert_array_equal(
        _pooled(x, LENGTHS, kind)[2], _pooled(alone, LENGTHS[2:3], kind)[0]
    )


def test_every_piece_belongs_to_one_text() -> None:
    pieces, counts = pieces_of(LENGTHS)

    ends = np.cumsum(counts)
    assert [each.sum() for each in np.split(pieces, ends[:-1])] == LENGTHS.tolist()
    assert 0 < pieces.min() <= pieces.max() == PIECE_ROWS
