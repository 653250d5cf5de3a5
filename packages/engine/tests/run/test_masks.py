"""A caller's token mask as bits: packed once where it cannot change, else at every token."""

import numpy as np
import pytest
from spaninfer_engine import SamplingParams
from spaninfer_engine.errors import InvalidMask
from spaninfer_engine.plan import NewSequence
from spaninfer_engine.run.masks import all_tokens, allowed_by, mask_of

VOCAB = 70
NOTHING = np.zeros(0, np.int32)


def matcher(function):
    sampling = SamplingParams(mask=function)
    return mask_of(NewSequence(seq_id=1, token_ids=NOTHING, sampling=sampling, seed=0), VOCAB)


def fixed(array):
    array.setflags(write=False)
    return array


def test_a_mask_allows_what_the_function_returns():
    allowed = np.random.default_rng(0).random(VOCAB) < 0.5
    mask = matcher(lambda _: allowed)

    np.testing.assert_array_equal(allowed_by(mask, NOTHING, VOCAB), allowed)


def test_an_array_that_the_caller_fills_anew_is_read_anew():
    array = np.zeros(VOCAB, np.bool_)

    def allow_next(output_ids):
        array[:] = False
        array[len(output_ids)] = True
        return array

    mask = matcher(allow_next)
    for count in range(3):
        allowed = allowed_by(mask, np.zeros(count, np.int32), VOCAB)
        assert np.flatnonzero(allowed).tolist() == [count]


def test_a_view_of_an_array_that_can_be_written_to_is_read_anew():
    array = np.zeros(VOCAB, np.bool_)
    view = fixed(array[:])
    mask = matcher(lambda _: view)

    assert not allowed_by(mask, NOTHING, VOCAB).any()
    array[5] = True
    assert np.flatnonzero(allowed_by(mask, NOTHING, VOCAB)).tolist() == [5]


def test_an_array_that_nobody_can_write_to_is_packed_once(monkeypatch):
    even = fixed(np.arange(VOCAB) % 2 == 0)
    odd = fixed(np.arange(VOCAB) % 2 == 1)
    mask = matcher(lambda output_ids: odd if len(output_ids) > 2 else even)

    allowed_by(mask, NOTHING, VOCAB)
    with monkeypatch.context() as patch:
        patch.setattr(np, "packbits", lambda *_, **__: pytest.fail("it was packed again"))
        np.testing.assert_array_equal(allowed_by(mask, NOTHING, VOCAB), even)

    np.testing.assert_array_equal(allowed_by(mask, np.zeros(3, np.int32), VOCAB), odd)
    np.testing.assert_array_equal(allowed_by(mask, NOTHING, VOCAB), even)


def test_none_allows_everything_behind_a_mask():
    bits = all_tokens(1, VOCAB)
    even = fixed(np.arange(VOCAB) % 2 == 0)
    mask = matcher(lambda output_ids: None if len(output_ids) else even)

    mask.fill(NOTHING, bits[0])
    mask.fill(np.zeros(1, np.int32), bits[0])

    assert (bits == 0xFF).all()


@pytest.mark.parametrize(
    "returned", [np.ones(VOCAB), np.ones(VOCAB + 1, np.bool_), [True] * VOCAB], ids=str
)
def test_other_results_are_refused(returned):
    mask = matcher(lambda _: returned)

    with pytest.raises(InvalidMask, match=r"it returns bool \(70,\) or None"):
        allowed_by(mask, NOTHING, VOCAB)
