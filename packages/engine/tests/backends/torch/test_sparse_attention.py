"""Sparse attention with plain torch operators, in pieces that fit into memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from spaninfer_engine.step.batch import Run

torch = pytest.importorskip("torch")

SPAN_LEN, SPANS = 4, 12
RUN = Run(first=0, last=9, row=0, start=30, stop=39)


def _numbers(*shape: int, seed: int) -> Any:
    return torch.from_numpy(np.random.default_rng(seed).standard_normal(shape, np.float32))


def test_a_slice_in_pieces_selects_and_reads_what_it_does_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from spaninfer_engine.backends.torch import sparse_attention

    table = torch.from_numpy(np.random.default_rng(0).permutation(SPANS).astype(np.int32))
    index, keys = (_numbers(SPANS, SPAN_LEN, 1, size, seed=1) for size in (6, 8))
    query, weights, heads = (
        _numbers(RUN.last, *shape, seed=seed) for seed, shape in enumerate([(5, 6), (5,), (3, 8)])
    )

    def computed() -> tuple[Any, Any]:
        selected = sparse_attention.select_slice(query, weights, index, table, RUN, 7)
        cache = keys, keys[..., :5]
        read = sparse_attention.attend_selected_slice(heads, cache, table, RUN, selected, 0.3)
        return selected, read

    at_once = computed()
    monkeypatch.setattr(sparse_attention, "MAX_SCORES", 2 * 5 * RUN.stop)  # two rows, or one
    in_pieces = computed()

    assert torch.equal(in_pieces[0], at_once[0])
    torch.testing.assert_close(in_pieces[1], at_once[1])


def test_numbers_keep_their_order_in_ranks() -> None:
    from spaninfer_engine.backends.torch.sparse_attention import _ranks

    ascending = [-torch.inf, -3e38, -1.5, -1e-40, 0.0, 1e-40, 2.0, torch.inf]
    scores = torch.tensor([[*ascending, -0.0, torch.nan]])

    (ranks,) = _ranks(scores, torch.arange(scores.shape[1])).tolist()

    assert ranks[: len(ascending)] == sorted(ranks[: len(ascending)])
    assert ranks[4] > ranks[8] > ranks[3]  # a zero below zero is a zero, at a later place
    assert ranks[9] < ranks[0]  # NaN is as the least number, at a later place
