"""Slots of new tokens, and division of cached ones into chunks that are expanded to keys and
values.
"""

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("span_attention")

import torch
from spaninfer_engine.backends.cuda.attention.latent_keys import TokenSlots, chunks_of

SPAN_LEN = 32


@pytest.mark.parametrize("room", [1, 32, 100, 4096])
@pytest.mark.parametrize(
    "cached", [[], [(0, 1)], [(3, 40), (5, 100)], [(0, 5000)], [(1, 33), (2, 31), (4, 9001)]]
)
def test_chunks_hold_every_cached_token_once_in_order_and_no_more_than_there_is_room(cached, room):
    chunks = list(chunks_of(cached, room))

    seen = {number: [] for number, _ in cached}
    for chunk in chunks:
        spans = sum(-(-(piece.stop - piece.start) // SPAN_LEN) for piece in chunk)
        assert 0 < spans <= max(room // SPAN_LEN, 1)
        assert len({piece.slice for piece in chunk}) == len(chunk)
        for piece in chunk:
            seen[piece.slice].extend(range(piece.start, piece.stop))
    for number, tokens in cached:
        np.testing.assert_array_equal(seen[number], np.arange(tokens))


@pytest.mark.parametrize("counts", [[1], [33], [5, 64, 1], [32, 31, 100, 7]])
@pytest.mark.parametrize("padding", [0, 40])
def test_slices_begin_at_spans_of_their_own_and_padding_lies_behind_them(counts, padding):
    bounds = torch.tensor(np.cumsum([0, *counts]), dtype=torch.int32)

    found = TokenSlots.of(bounds, sum(counts) + padding)

    expected, begins, span = [], [], 0
    for count in counts:
        begins.append(span)
        expected.extend(span * SPAN_LEN + np.arange(count))
        span += -(-count // SPAN_LEN)
    np.testing.assert_array_equal(found.counts, counts)
    np.testing.assert_array_equal(found.begins, begins)
    np.testing.assert_array_equal(found.slots[: sum(counts)], expected)
    assert (found.slots[sum(counts) :] >= span * SPAN_LEN).all()
    assert (found.slots < found.capacity).all()


@pytest.mark.parametrize("slices", [1, 3])
def test_while_nothing_has_written_bounds_slots_lie_in_the_memory(slices):
    found = TokenSlots.of(torch.zeros(slices + 1, dtype=torch.int32), 200)

    assert ((found.slots >= 0) & (found.slots < found.capacity)).all()
