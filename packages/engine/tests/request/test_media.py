"""Positions behind media."""

import numpy as np
import pytest
from spaninfer_engine.request.media import PromptMedia
from spaninfer_engine.request.request import SamplingParams
from spaninfer_engine.step.plan import NewSequence
from spaninfer_engine.step.sequences import Sequences

# Two tokens of text, four of a picture of 2 x 2, three of text: it takes 2 positions, not 4.
SEEN = np.array([
    [0, 1, 2, 2, 2, 2, 4, 5, 6],
    [0, 1, 2, 2, 3, 3, 4, 5, 6],
    [0, 1, 2, 3, 2, 3, 4, 5, 6],
], np.int32)  # fmt: skip


@pytest.mark.parametrize(
    ("positions", "delta", "first"),
    [
        (SEEN, -2, 6),
        (SEEN[:, :6], -2, 6),  # the prompt ends with the picture
        (None, 0, 0),
        (np.tile(np.arange(5, dtype=np.int32), (3, 1)), 0, 0),
        (np.array([[0, 1, 9, 10]], np.int32), 7, 2),  # a long video
    ],
)
def test_from_where_on_positions_are_ahead_of_tokens_by_one_number(
    positions: np.ndarray | None, delta: int, first: int
) -> None:
    assert PromptMedia((), positions, delta).delta_from() == first


def test_sequences_know_it_and_forget_it_with_the_row() -> None:
    sequences = Sequences(1, max_len=16, span_len=4, num_rows=1)
    media = PromptMedia((), SEEN, -2)
    sequences.enter(NewSequence(1, (0,) * 9, SamplingParams(), 0, media=media))
    assert (sequences.deltas[0], sequences.deltas_from[0]) == (-2, 6)
    sequences.enter(NewSequence(2, (0,) * 3, SamplingParams(), 0))  # makes room for it
    assert sequences.deltas_from.tolist() == [6, 0]

    sequences.leave(1)
    sequences.enter(NewSequence(3, (0,) * 9, SamplingParams(), 0))

    assert (sequences.deltas[0], sequences.deltas_from[0]) == (0, 0)
