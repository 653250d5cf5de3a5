"""Division of cached tokens into chunks that are expanded to keys and values."""

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("span_attention")

from spaninfer_engine.backends.cuda.attention.latent_keys import chunks_of

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
