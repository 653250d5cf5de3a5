"""Attention by plain torch operators, row by row of many requests, against the definition."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import spaninfer_op_reference as definition

torch = pytest.importorskip("torch")

from spaninfer_engine.backends.torch.attention import (  # noqa: E402
    LayerSpans,
    Scoring,
    attend_rows,
    attend_slice,
)
from spaninfer_engine.step.batch import Run  # noqa: E402

SPANS, SPAN_LEN, KV_HEADS, HEADS, KEY, VALUE = 40, 4, 2, 6, 8, 5
LENGTHS = [9, 1, 0, 24]
RNG = np.random.default_rng(0)
KEYS = RNG.standard_normal((SPANS, SPAN_LEN, KV_HEADS, KEY))
VALUES = RNG.standard_normal((SPANS, SPAN_LEN, KV_HEADS, VALUE))
TABLES = RNG.permutation(SPANS)[: 5 * 7].reshape(5, 7).astype(np.int32)
ROWS = np.array([3, 0, -1, 1], np.int32)
QUERY = RNG.standard_normal((len(LENGTHS), HEADS, KEY))

SCORINGS = {
    "plain": Scoring(0.4),
    "capped": Scoring(0.4, softcap=2.0),
    "through a window": Scoring(0.4, window=3),
    "with ALiBi": Scoring(0.4, alibi="plain"),
    "with scaled ALiBi": Scoring(0.4, alibi="scaled"),
    "with rounded ALiBi": Scoring(0.4, alibi="rounded"),
}


def _spans() -> tuple[Any, Any]:
    """Keys and values, with NaN wherever no request has a token."""
    there = np.zeros((SPANS, SPAN_LEN), bool)
    for row, length in zip(ROWS, LENGTHS, strict=True):
        places = np.arange(length)
        there[TABLES[row, places // SPAN_LEN], places % SPAN_LEN] = True
    return tuple(
        torch.from_numpy(np.where(there[..., None, None], x, np.nan)) for x in (KEYS, VALUES)
    )


def _expected(query: Any, row: int, start: int, stop: int, scoring: Scoring) -> Any:
    slopes, places = definition.alibi_slopes(HEADS), np.arange(stop)
    bias = {
        None: None,
        "plain": definition.alibi_bias(slopes, places),
        "scaled": definition.alibi_bias(slopes, places) * scoring.scale,
        "rounded": definition.falcon_alibi_bias(slopes, places, scoring.scale),
    }[scoring.alibi]
    spans = TABLES[row, : -(-stop // SPAN_LEN)]
    return definition.attend(
        query,
        definition.gather_spans(KEYS, spans, stop),
        definition.gather_spans(VALUES, spans, stop),
        np.arange(start, stop),
        places,
        scale=scoring.scale,
        softcap=scoring.softcap,
        window=scoring.window,
        bias=bias,
    )


@pytest.mark.parametrize("scoring", SCORINGS.values(), ids=SCORINGS)
def test_the_newest_rows_of_requests_read_what_is_theirs(scoring: Scoring) -> None:
    keys, values = _spans()
    tables, rows = torch.from_numpy(TABLES), torch.from_numpy(ROWS)
    lengths = torch.tensor(LENGTHS, dtype=torch.int32)

    read = attend_rows(
        torch.from_numpy(QUERY), LayerSpans(keys, values, tables), rows, lengths, scoring
    )

    for index, (row, length) in enumerate(zip(ROWS, LENGTHS, strict=True)):
        if length == 0:
            assert not read[index].any()
            continue
        expected = _expected(QUERY[index : index + 1], row, length - 1, length, scoring)
        np.testing.assert_allclose(read[index].numpy(), expected[0], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("scoring", SCORINGS.values(), ids=SCORINGS)
def test_a_slice_in_pieces_reads_what_it_reads_at_once(
    scoring: Scoring, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spaninfer_engine.backends.torch.attention.MAX_SCORES", HEADS * 24 * 3)
    keys, values = _spans()
    query = RNG.standard_normal((16, HEADS, KEY))
    run = Run(0, 16, int(ROWS[3]), 8, 24)
    spans = LayerSpans(keys, values, torch.from_numpy(TABLES[ROWS[3]]))

    read = attend_slice(torch.from_numpy(query), spans, run, scoring)

    expected = _expected(query, ROWS[3], 8, 24, scoring)
    np.testing.assert_allclose(read.numpy(), expected, rtol=1e-5, atol=1e-6)
