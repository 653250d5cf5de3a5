import numpy as np
import pytest
from spaninfer_op_reference import philox, uniform

ONES = 0xFFFFFFFF

# Random123's kat_vectors, philox4x32 with 10 rounds: counter, key, result.
KNOWN = [
    ([0] * 4, [0] * 2, [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]),
    ([ONES] * 4, [ONES] * 2, [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]),
    (
        [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344],
        [0xA4093822, 0x299F31D0],
        [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1],
    ),
]


@pytest.mark.parametrize(("counter", "key", "result"), KNOWN)
def test_the_words_are_the_published_ones(counter, key, result):
    words = philox(np.array(counter), np.array(key))

    assert words.tolist() == result


def test_many_counters_at_once_give_what_each_gives_alone():
    counters = np.random.default_rng(0).integers(0, 2**32, (4, 3, 5))
    key = np.array([1, ONES])

    words = philox(counters, key)

    assert words.shape == (4, 3, 5)
    for i in range(3):
        for j in range(5):
            assert philox(counters[:, i, j], key).tolist() == words[:, i, j].tolist()


def test_a_number_comes_from_the_word_that_the_docstring_names():
    seed, position, token = 0x299F31D0_A4093822, 0x03707344_13198A2E, 4 * 0x243F6A88 + 2

    number = uniform(seed, position, np.array([token]))

    counter = np.array([0x243F6A88, 0, 0x13198A2E, 0x03707344])
    word = philox(counter, np.array([0xA4093822, 0x299F31D0]))[2]
    assert number.dtype == np.float32
    assert number.tolist() == [np.float32((int(word) + 0.5) / 2**32)]


def test_a_number_does_not_depend_on_which_others_are_asked_for():
    everything = uniform(7, 12, np.arange(1000))
    some = np.array([999, 4, 5, 4, 0])

    assert uniform(7, 12, some).tolist() == everything[some].tolist()
    assert uniform(7, 12, some[:0]).tolist() == []


def test_seeds_and_positions_give_other_numbers():
    ids = np.arange(100)

    numbers = [uniform(*where, ids) for where in ((0, 0), (1, 0), (0, 1), (2**32, 0), (0, 2**32))]

    assert len({tuple(each.tolist()) for each in numbers}) == len(numbers)


def test_numbers_are_spread_evenly_and_never_0_or_1():
    numbers = np.concatenate([uniform(3, position, np.arange(10_000)) for position in range(20)])

    counts, _ = np.histogram(numbers, 100, (0, 1))
    chi_square = ((counts - 2000) ** 2 / 2000).sum()
    assert 0 < numbers.min() < 1e-4
    assert 1 - 1e-4 < numbers.max() < 1
    assert 60 < chi_square < 149  # 99 degrees of freedom: one in a thousand lies outside
