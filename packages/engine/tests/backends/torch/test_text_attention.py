"""Attention of texts of equal length, computed at once."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("torch")

from spaninfer_engine.backends.torch import text_attention


def _starts(*lengths: int) -> np.ndarray:
    return np.cumsum([0, *lengths], dtype=np.int32)


def test_texts_are_grouped_by_length_and_those_without_rows_left_out() -> None:
    groups = text_attention.equal_texts(_starts(2, 1, 0, 2, 3), heads=4)

    assert [group.tolist() for group in groups] == [
        [[2]],
        [[0, 1], [3, 4]],
        [[5, 6, 7]],
    ]


def test_as_many_texts_attend_at_once_as_their_scores_leave_memory_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(text_attention, "MAX_SCORES", 2 * 4 * 3**2)

    groups = text_attention.equal_texts(_starts(3, 3, 3, 3, 3, 9), heads=4)

    assert [group.shape for group in groups] == [(2, 3), (2, 3), (1, 3), (1, 9)]
