import numpy as np
import pytest
from spaninfer_op_reference import (
    add_bias,
    allow,
    ban,
    ngram_ends,
    penalize_frequency,
    penalize_repetition,
    word_ends,
)

INF = np.inf
LOGITS = np.array([2.0, -1.0, 0.5, 3.0], np.float32)


def unchanged():
    return LOGITS.tolist() == [2.0, -1.0, 0.5, 3.0]


def test_a_bias_is_added():
    y = add_bias(LOGITS, np.array([3, 0]), np.array([-100.0, 0.5]))

    assert y.tolist() == [2.5, -1.0, 0.5, -97.0]
    assert unchanged()


@pytest.mark.parametrize("ids", [np.array([1, 3]), np.array([False, True, False, True])])
def test_tokens_are_allowed_or_banned_by_id_or_by_mask(ids):
    assert allow(LOGITS, ids).tolist() == [-INF, -1.0, -INF, 3.0]
    assert ban(LOGITS, ids).tolist() == [2.0, -INF, 0.5, -INF]
    assert unchanged()


def test_repetition_makes_tokens_less_likely_on_either_side_of_zero_once_per_id():
    y = penalize_repetition(LOGITS, np.array([0, 1, 1, 1]), 2.0)

    assert y.tolist() == [1.0, -2.0, 0.5, 3.0]
    assert unchanged()


def test_repetition_is_what_transformers_makes_of_it():
    torch = pytest.importorskip("torch", reason="transformers needs torch")
    processors = pytest.importorskip(
        "transformers.generation.logits_process", reason="transformers is the second opinion"
    )
    rng = np.random.default_rng(0)
    logits, ids = rng.normal(size=50).astype(np.float32), rng.integers(0, 50, 30)

    y = penalize_repetition(logits, ids, 1.3)

    theirs = processors.RepetitionPenaltyLogitsProcessor(1.3)
    expected = theirs(torch.from_numpy(ids)[None], torch.from_numpy(logits)[None])[0]
    np.testing.assert_allclose(y, expected, rtol=1e-6)


def test_presence_counts_once_and_frequency_every_time():
    y = penalize_frequency(LOGITS, np.array([3, 0, 3, 3]), presence=0.5, frequency=0.25)

    assert y.tolist() == [1.25, -1.0, 0.5, 1.75]
    assert unchanged()


def test_minus_infinity_survives_every_penalty():
    masked = ban(LOGITS, np.array([0]))
    ids = np.array([0])

    for y in (
        penalize_repetition(masked, ids, 0.5),
        penalize_repetition(masked, ids, 2.0),
        penalize_frequency(masked, ids, -2.0, -2.0),
        add_bias(masked, ids, np.array([100.0])),
    ):
        assert y[0] == -INF


@pytest.mark.parametrize(
    ("ids", "n", "ends"),
    [
        ([1, 2, 3, 1, 2], 3, {3}),
        ([1, 2, 3, 1, 2, 4, 1, 2], 3, {3, 4}),
        ([1, 2], 3, set()),
        ([1, 2, 1], 2, {2}),
        ([5, 6], 1, {5, 6}),
        ([7, 7, 7], 2, {7}),
        ([], 1, set()),
    ],
)
def test_what_would_repeat_an_ngram_is_found(ids, n, ends):
    assert set(ngram_ends(np.array(ids, np.int64), n).tolist()) == ends


@pytest.mark.parametrize(
    ("ids", "ends"),
    [([], {9}), ([1], {9, 2}), ([1, 2], {9, 3}), ([0, 1, 2], {9, 3}), ([2, 1], {9, 2})],
)
def test_the_last_token_of_a_word_is_found_where_the_others_stand(ids, ends):
    words = [(9,), (1, 2), (1, 2, 3)]

    assert set(word_ends(np.array(ids, np.int64), words).tolist()) == ends


def test_without_words_nothing_ends():
    assert word_ends(np.array([1, 2]), []).tolist() == []
