"""Token masks of callers as bits: packed once where constant, else for every token."""

import numpy as np
import pytest
from spaninfer_engine import SamplingParams
from spaninfer_engine.errors import InvalidMask
from spaninfer_engine.request.request import MaskJob
from spaninfer_engine.run.masks import all_tokens, allowed_tokens, mask_of
from spaninfer_engine.step.plan import NewSequence

VOCAB = 70
NOTHING = np.zeros(0, np.int32)


def matcher(function):
    sampling = SamplingParams(mask=function)
    return mask_of(NewSequence(seq_id=1, token_ids=NOTHING, sampling=sampling, seed=0), VOCAB)


def allowed_by(mask, output_ids, vocab):
    """The allowed tokens of one sequence, filled beside those of another that allows everything."""
    jobs = [MaskJob(matcher(lambda _: None), NOTHING, 0), MaskJob(mask, output_ids, 1)]
    allowed, errors = allowed_tokens(jobs, vocab)
    assert allowed[0].all()
    if errors:
        assert allowed[1].all()
        raise errors[1]
    return allowed[1]


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


def test_a_read_only_array_is_packed_once(monkeypatch):
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

    assert (mask.fill(np.zeros(1, np.int32), bits[0]) == 0xFF).all()


def test_bits_are_taken_as_they_are():
    allowed = np.random.default_rng(1).random(VOCAB) < 0.5
    mask = matcher(lambda _: np.packbits(allowed, bitorder="little"))

    np.testing.assert_array_equal(allowed_by(mask, NOTHING, VOCAB), allowed)


@pytest.mark.parametrize("is_packed", [False, True])
def test_sequences_share_the_bits_of_a_read_only_array(is_packed):
    even = np.arange(VOCAB) % 2 == 0
    array = fixed(np.packbits(even, bitorder="little") if is_packed else even)
    first, second = (matcher(lambda _: array) for _ in range(2))

    found = first.fill(NOTHING, all_tokens(1, VOCAB)[0])

    assert not found.flags.writeable
    assert second.fill(NOTHING, all_tokens(1, VOCAB)[0]) is found
    np.testing.assert_array_equal(allowed_by(second, NOTHING, VOCAB), even)


def test_an_array_in_the_place_of_one_that_is_gone_is_read():
    for number in range(20):
        mask = matcher(lambda _, number=number: fixed(np.arange(VOCAB) == number))
        for _ in range(2):
            assert np.flatnonzero(allowed_by(mask, NOTHING, VOCAB)).tolist() == [number]


@pytest.mark.parametrize(
    "returned",
    [np.ones(VOCAB), np.ones(VOCAB + 1, np.bool_), np.ones(VOCAB, np.uint8), [True] * VOCAB],
    ids=str,
)
def test_other_results_are_refused(returned):
    mask = matcher(lambda _: returned)

    with pytest.raises(InvalidMask, match=r"bool \(70,\), bits of it as uint8 \(9,\), or None"):
        allowed_by(mask, NOTHING, VOCAB)
