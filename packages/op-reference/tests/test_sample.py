import math
from dataclasses import replace

import numpy as np
import pytest
from spaninfer_op_reference import NoToken, RowSampling, gumbel, process, sample, uniform
from spaninfer_op_reference.sample import REACH

V = 500
GREEDY = RowSampling(temperature=0.0)


def random_logits(rows, scale=2.0, seed=0):
    return np.random.default_rng(seed).normal(size=(rows, V), scale=scale).astype(np.float32)


def tokens_of(logits, rows):
    tokens, failed = sample(logits, rows)
    assert failed == {}
    return tokens.tolist()


# ---- greedy --------------------------------------------------------------------------------------


def test_temperature_zero_takes_the_largest_and_of_equal_ones_the_smallest_id():
    logits = np.array([[0.0, 3.0, 3.0], [5.0, 5.0, 5.0]], np.float32)

    assert tokens_of(logits, [GREEDY] * 2) == [1, 0]


def test_greedy_rows_see_penalties_and_masks_too():
    logits = np.array([[5.0, 4.0, 3.0, 2.0]] * 4, np.float32)
    rows = [
        replace(GREEDY, banned=np.array([0])),
        replace(GREEDY, repetition_penalty=2.0, prompt_ids=np.array([0]), output_ids=np.array([1])),
        replace(GREEDY, allowed=np.array([False, False, False, True])),
        GREEDY,
    ]

    assert tokens_of(logits, rows) == [1, 2, 3, 0]


# ---- draws ---------------------------------------------------------------------------------------


def chi_square(logits, make_row, draws):
    """Return the statistic of draws at positions 0 .. draws - 1, and its degrees of freedom."""
    counts = np.zeros(len(logits))
    for position in range(draws):
        (token,) = tokens_of(logits[None], [make_row(position)])
        counts[token] += 1
    expected = np.exp(logits - logits.max())
    expected *= draws / expected.sum()
    return ((counts - expected) ** 2 / expected).sum(), len(logits) - 1


def test_tokens_are_drawn_as_often_as_they_are_likely():
    logits = np.log(np.array([0.4, 0.3, 0.15, 0.1, 0.05], np.float32))

    statistic, freedom = chi_square(logits, lambda p: RowSampling(seed=1, position=p), 5000)

    assert freedom == 4
    assert statistic < 18.5  # one in a thousand lies above


def test_seeds_are_as_random_as_positions():
    logits = np.log(np.array([0.4, 0.3, 0.15, 0.1, 0.05], np.float32))

    statistic, _ = chi_square(logits, lambda seed: RowSampling(seed=seed, position=9), 5000)

    assert statistic < 18.5


def test_temperature_sharpens():
    logits = np.log(np.array([0.4, 0.3, 0.15, 0.1, 0.05], np.float32))

    statistic, _ = chi_square(logits * 2, lambda p: RowSampling(position=p), 2000)
    cold, _ = chi_square(logits * 2, lambda p: RowSampling(position=p, temperature=0.5), 2000)

    assert statistic < 18.5
    assert cold > 100  # squared once more
    tokens = [
        tokens_of(logits[None], [RowSampling(position=p, temperature=0.5)]) for p in range(50)
    ]
    same = [tokens_of(logits[None] * 2, [RowSampling(position=p)]) for p in range(50)]
    assert tokens == same


FEATURES = [
    dict(),
    dict(temperature=0.7),
    dict(top_k=5),
    dict(top_p=0.8),
    dict(min_p=0.1),
    dict(typical_p=0.8),
    dict(temperature=0.0),
    dict(top_k=40, top_p=0.9, temperature=1.3, min_p=0.01),
    dict(repetition_penalty=1.2, presence_penalty=0.5, frequency_penalty=0.1),
    dict(no_repeat_ngram=2, bad_words=((3,), (4, 5))),
    dict(logit_bias=(np.array([7, 9]), np.array([3.0, -3.0], np.float32))),
    dict(allowed=np.arange(0, V, 3), banned=np.arange(0, V, 2)),
]
IDS = dict(prompt_ids=np.array([1, 2, 3, 1]), output_ids=np.array([2, 2, 1]))


def test_a_row_gets_the_same_token_alone_and_anywhere_in_any_batch():
    rows = [RowSampling(seed=i, position=20 + i, **IDS, **kw) for i, kw in enumerate(FEATURES)]
    logits = random_logits(len(rows))
    order = np.random.default_rng(5).permutation(len(rows))

    together = tokens_of(logits, rows)

    shuffled = tokens_of(logits[order], [rows[i] for i in order])
    assert shuffled == [together[i] for i in order]
    assert [tokens_of(logits[i : i + 1], [row])[0] for i, row in enumerate(rows)] == together


def test_the_cuts_only_remove_tokens_and_the_race_among_the_others_stays_the_same():
    logits = random_logits(1)
    free = [tokens_of(logits, [RowSampling(seed=s)])[0] for s in range(200)]
    cut = [tokens_of(logits, [RowSampling(seed=s, top_k=20)])[0] for s in range(200)]

    best = set(np.argsort(-logits[0], kind="stable")[:20].tolist())
    assert set(cut) <= best
    assert all(a == b for a, b in zip(free, cut, strict=True) if a in best)


def test_the_cuts_follow_each_other_on_what_is_left():
    logits = np.log(np.array([[0.4, 0.3, 0.2, 0.1]], np.float32))

    def drawn(**features):
        return {tokens_of(logits, [RowSampling(seed=s, **features)])[0] for s in range(300)}

    assert drawn(top_k=2, top_p=0.5) == {0}  # 0.4 of the 0.7 that top-k left
    assert drawn(top_p=0.5) == {0, 1}
    assert drawn(min_p=0.6) == {0, 1}
    assert drawn(top_k=3) == {0, 1, 2}
    assert drawn() == {0, 1, 2, 3}


@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_typical_and_top_p_look_at_the_tempered_distribution(temperature):
    logits = np.log(np.array([[0.55, 0.25, 0.2]], np.float32))

    drawn = {
        tokens_of(logits, [RowSampling(seed=s, top_p=0.7, temperature=temperature)])[0]
        for s in range(200)
    }

    assert drawn == ({0, 1} if temperature == 1.0 else {0})  # squared: 0.75, 0.15, 0.1


def test_leaving_out_what_is_out_of_reach_changes_no_draw():
    smallest, largest = np.array([0.5 / 2**32, 1 - 2.0**-24], np.float32)

    widest = gumbel(smallest) - gumbel(largest)

    assert 25 < widest < REACH


def test_noise_has_the_mean_and_variance_of_gumbels_distribution():
    noise = gumbel(np.concatenate([uniform(0, p, np.arange(1000)) for p in range(100)]))

    assert noise.mean() == pytest.approx(0.5772, abs=0.015)
    assert noise.var() == pytest.approx(math.pi**2 / 6, abs=0.03)


# ---- processing ----------------------------------------------------------------------------------


def test_a_plain_row_is_only_divided_by_its_temperature():
    (logits,) = random_logits(1)

    np.testing.assert_array_equal(process(logits, GREEDY), logits)
    np.testing.assert_array_equal(process(logits, RowSampling(top_k=5)), logits)
    tempered = process(logits, RowSampling(temperature=0.5))
    np.testing.assert_array_equal(tempered, (logits - logits.max()) * 2)


def test_processors_run_in_the_order_that_the_docstring_gives():
    logits = np.array([1.0, 1.0, 1.0, 1.0, 1.0, 1.0], np.float32)
    row = RowSampling(
        temperature=0.5,
        logit_bias=(np.array([0, 4]), np.array([3.0, 50.0], np.float32)),
        banned=np.array([4]),
        repetition_penalty=2.0,
        presence_penalty=0.5,
        frequency_penalty=0.25,
        no_repeat_ngram=2,
        bad_words=((5,),),
        prompt_ids=np.array([1, 3]),
        output_ids=np.array([0, 0, 1]),
    )

    y = process(logits, row)

    # 0: ((1 + 3) / 2 - 0.5 - 2 * 0.25) / 0.5;  1: (1 / 2 - 0.5 - 0.25) / 0.5;  2: 1 / 0.5
    # All less the largest, 1 / 0.5. 3: follows the last 1; 4: banned; 5: a bad word
    assert y.tolist() == [0.0, -2.5, 0.0, -math.inf, -math.inf, -math.inf]


def test_logits_that_came_in_are_left_alone():
    logits = random_logits(len(FEATURES))
    before = logits.copy()

    sample(logits, [RowSampling(**IDS, **features) for features in FEATURES])

    np.testing.assert_array_equal(logits, before)


# ---- failures ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "features", [dict(temperature=0.0), dict(), dict(top_k=3, banned=np.array([1]))]
)
@pytest.mark.parametrize(("bad", "why"), [(math.nan, "nan"), (math.inf, "inf")])
def test_a_row_with_broken_logits_fails_by_number_and_the_others_carry_on(features, bad, why):
    logits = random_logits(4)
    alone = tokens_of(logits, [RowSampling(**features)] * 4)
    logits[2, 400] = bad

    tokens, failed = sample(logits, [RowSampling(**features)] * 4)

    assert list(failed) == [2]
    assert isinstance(failed[2], NoToken)
    assert failed[2].row == 2
    assert str(failed[2]) == (
        f"no token can be chosen from the logits of row 2: their maximum is {why}"
    )
    assert [tokens[i] for i in (0, 1, 3)] == [alone[i] for i in (0, 1, 3)]


def test_broken_logits_are_noticed_behind_a_mask_too():
    logits = random_logits(1)
    logits[0, 3] = math.nan

    _, failed = sample(logits, [RowSampling(banned=np.array([3]))])

    assert list(failed) == [0]


@pytest.mark.parametrize("temperature", [1e-45, 1e-9, 2e-5])
def test_the_coldest_temperatures_are_greedy_and_overflow_nowhere(temperature):
    logits = random_logits(3, scale=1e4)

    assert tokens_of(logits, [RowSampling(temperature=temperature)] * 3) == tokens_of(
        logits, [GREEDY] * 3
    )


def test_a_row_without_an_allowed_token_fails():
    _, failed = sample(random_logits(2), [RowSampling(allowed=np.zeros(V, bool)), GREEDY])

    assert str(failed[0]).endswith("row 0: every token is masked")
    assert list(failed) == [0]


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.0, 1.5])
def test_a_row_whose_tokens_are_all_masked_says_so_at_every_temperature(temperature):
    row = RowSampling(temperature=temperature, banned=np.arange(4))

    _, failed = sample(np.zeros((1, 4), np.float32), [row])

    assert str(failed[0]).endswith("of row 0: every token is masked")


def test_no_rows_give_no_tokens():
    tokens, failed = sample(np.zeros((0, V), np.float32), [])

    assert tokens.tolist() == []
    assert failed == {}


@pytest.mark.parametrize("num_rows", [1, 3])
def test_rows_that_are_not_as_many_as_the_logits_are_refused(num_rows):
    with pytest.raises(ValueError, match=f"logits have 2 rows, but {num_rows} say how to sample"):
        sample(random_logits(2), [GREEDY] * num_rows)
