"""Grids that weights are rounded to while loading, against their documentation."""

import numpy as np
import pytest
from spaninfer_op_reference import (
    GRIDS,
    dequantize_weight,
    grid_format,
    pair_codes,
    quantize_to_grid,
    to_bfloat16,
    unpair_codes,
)

RNG = np.random.default_rng(0)
WEIGHT = RNG.standard_normal((40, 320)).astype(np.float32) * np.float32(0.02)


def grouped(numbers, group):
    return numbers.reshape(len(numbers), -1, group)


@pytest.mark.parametrize("name", GRIDS)
def test_codes_are_the_nearest_levels_of_their_groups_grid(name):
    levels, _ = GRIDS[name]
    made = quantize_to_grid(WEIGHT, grid_format(name, 32))
    scales = made.scales.astype(np.float64)[..., None]
    every = np.arange(levels) * scales - made.minimums[..., None]

    distances = np.abs(grouped(WEIGHT.astype(np.float64), 32)[..., None] - every[:, :, None])
    found = np.take_along_axis(distances, grouped(made.codes, 32)[..., None].astype(int), -1)

    assert made.codes.max() == levels - 1
    assert (found[..., 0] <= distances.min(-1) + 1e-6 * scales).all()
    numbers = np.take_along_axis(every, grouped(made.codes, 32).astype(int), -1)
    expected = numbers.reshape(WEIGHT.shape).astype(np.float32)
    np.testing.assert_array_equal(dequantize_weight(made), expected)


@pytest.mark.parametrize("name", GRIDS)
def test_scales_and_biases_are_bfloat16_and_fine_grids_reach_both_ends(name):
    levels, _ = GRIDS[name]
    made = quantize_to_grid(WEIGHT, grid_format(name, 64))
    biases = levels // 2 * made.scales.astype(np.float64) - made.minimums

    for numbers in (made.scales, biases.astype(np.float32)):
        np.testing.assert_array_equal(to_bfloat16(numbers), numbers)
    first, last = -made.minimums, (levels - 1) * made.scales - made.minimums
    groups = grouped(WEIGHT, 64)
    reaches = (first <= groups.min(-1)) & (last >= groups.max(-1))
    assert reaches.all() == (levels > 11)


def test_no_narrower_grid_of_few_levels_has_a_smaller_error():
    """Of ends that move in by twentieths: tried one by one, in float64."""
    group = RNG.standard_t(4, (1, 32)).astype(np.float32)
    width = float(group.max() - group.min())

    for name in ("int3.5", "int3", "int2"):
        levels, _ = GRIDS[name]
        made = dequantize_weight(quantize_to_grid(group, grid_format(name, None)))
        for low in range(5):
            for high in range(5):
                first = group.min() + low * width / 20
                step = (group.max() - high * width / 20 - first) / (levels - 1)
                codes = np.clip(np.rint((group - first) / step), 0, levels - 1)
                squares = ((codes * step + first - group) ** 2).sum()
                # Scales are rounded up to eight bits, which costs a percent of them.
                assert ((made - group) ** 2).sum() <= 1.05 * squares


def test_three_and_a_half_bits_lie_between_three_and_four():
    names = ("int4", "int3.5", "int3")
    errors = [
        np.square(dequantize_weight(quantize_to_grid(WEIGHT, grid_format(name, 64))) - WEIGHT).sum()
        for name in names
    ]

    assert errors == sorted(errors)
    assert errors[2] / errors[1] > 1.5
    assert [grid_format(name, 64).stored_bits for name in names] == [4.5, 4.0, 3.5]


@pytest.mark.parametrize("group", [None, 32, 128])
def test_the_last_group_may_be_shorter_and_constant_groups_are_met(group):
    weight = np.concatenate([WEIGHT[:3, :77], np.full((2, 77), [[0.5], [0]], np.float32)])

    made = quantize_to_grid(weight, grid_format("int3.5", group))

    assert made.scales.shape == (5, 1 if group is None else -(-77 // group))
    np.testing.assert_array_equal(dequantize_weight(made)[3:], weight[3:])


def test_every_pair_of_eleven_levels_has_seven_bits_of_its_own():
    first, second = (each.ravel().astype(np.uint8) for each in np.mgrid[:11, :11])

    pairs = pair_codes(first, second)

    assert len(set(pairs.tolist())) == 121
    assert pairs.max() < 128
    for given, found in zip((first, second), unpair_codes(pairs), strict=True):
        np.testing.assert_array_equal(found, given)
