"""Launch sizes of top-k: a table, and the probabilities behind it."""

import numpy as np
import pytest
from spaninfer_kernel_launch import ShapeError
from spaninfer_kernels_cuda.topk.tuning import HELD, MAX_K, divide, least_for

H200 = 132  # multiprocessors


@pytest.mark.parametrize("length", [1, 50, 1000, HELD])
def test_rows_that_a_block_can_hold_are_not_divided(length):
    assert divide(3, length, 1, 4, H200) is None


@pytest.mark.parametrize(
    ("rows", "length", "k", "samplers", "samples", "blocks"),
    [
        (1, 151_936, 50, 1, 2048, 38),
        (16, 151_936, 50, 1, 2048, 8),
        (128, 151_936, 50, 1, 2048, 1),
        (64, 151_936, 1024, 1, 2048, 2),
        (64, 1 << 20, 2048, 1, 8192, 2),
        (1, 1 << 24, 100, 64, 2048, 128),
        (8, 1 << 24, 100, 16, 8192, 33),
        (1, 1 << 27, 2048, 64, 2048, 132),
    ],
)
def test_longer_rows_are_divided(rows, length, k, samplers, samples, blocks):
    division = divide(rows, length, k, 4, H200)

    assert (division.samplers, division.samples) == (samplers, samples)
    assert division.blocks == blocks


def test_a_bound_leaves_at_least_k_and_no_more_than_there_is_room_for():
    draw = np.random.default_rng(0)
    for length, k in [(HELD + 1, 4096), (151_936, 50), (1 << 20, 2048), (1 << 27, 1)]:
        division = divide(1, length, k, 4, H200)
        # The order statistics of the sample, as numbers of elements that reach them.
        drawn = division.samples * division.samplers
        places = draw.integers(1, length + 1, (500, drawn), np.int32)
        places.sort(axis=1)

        fewest = places[:, division.least - 1]
        most = places[:, division.least + division.least // 8 - 1]

        assert fewest.min() >= k
        assert most.max() <= division.capacity


def test_every_size_has_a_division_whose_bound_the_sample_can_give():
    for length in [HELD + 1, 20_011, 1 << 17, 1 << 20, 12_345_677, (1 << 31) - 1]:
        for k in [1, 2, 63, 1000, MAX_K]:
            for rows in [1, 2, 131, 256, 1000]:
                division = divide(rows, length, k, 2, H200)

                assert division.least + division.least // 8 < division.samples <= HELD
                assert k < division.capacity <= length
                assert 1 <= division.blocks <= 4 * H200


def test_the_least_count_grows_with_the_mean_and_stays_near_it():
    counts = [least_for(mean) for mean in (0.01, 0.1, 1.0, 10.0, 100.0, 1000.0)]

    assert counts == sorted(counts)
    assert counts[-1] < 1300


@pytest.mark.parametrize(
    ("rows", "length", "k", "message"),
    [
        (1, 100, 0, "k is 0; at least 1, at most 4096"),
        (1, 10_000, 4097, "k is 4097"),
        (1, 10, 11, "rows have 10 elements; at least k = 11"),
        (1, 1 << 31, 11, "at most 2147483647"),
        (65_536, 100, 1, "65536 rows; at most 65535"),
    ],
)
def test_what_no_kernel_takes_is_refused(rows, length, k, message):
    with pytest.raises(ShapeError, match=message):
        divide(rows, length, k, 4, H200)
