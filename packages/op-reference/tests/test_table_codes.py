"""Weights rounded to the levels of a table while loading, against their documentation."""

import numpy as np
import pytest
from gguf import GGMLQuantizationType, dequantize
from spaninfer_op_reference import (
    TABLES,
    dequantize_weight,
    grid_format,
    quantize_to_grid,
    quantize_to_table,
    table_format,
    to_bfloat16,
)

RNG = np.random.default_rng(0)
WEIGHT = RNG.standard_normal((40, 320)).astype(np.float32) * np.float32(0.02)


def grouped(numbers, group):
    return numbers.reshape(len(numbers), -1, group)


@pytest.mark.parametrize("group", [32, 64, 160])
def test_codes_are_the_nearest_levels(group):
    made = quantize_to_table(WEIGHT, table_format("iq4_nl", group))
    every = np.array(TABLES["iq4_nl"]) * made.scales.astype(np.float64)[..., None]

    distances = np.abs(grouped(WEIGHT.astype(np.float64), group)[..., None] - every[:, :, None])
    found = np.take_along_axis(distances, grouped(made.codes, group)[..., None].astype(int), -1)

    assert (found[..., 0] <= distances.min(-1) + 1e-6 * np.abs(made.scales[..., None])).all()
    numbers = np.take_along_axis(every, grouped(made.codes, group).astype(int), -1)
    expected = numbers.reshape(WEIGHT.shape).astype(np.float32)
    np.testing.assert_array_equal(dequantize_weight(made), expected)


def test_levels_are_those_of_gguf():
    """One block of the codes 0 to 15, twice, and the scale 1."""
    block = np.concatenate([np.array([1], np.float16).view(np.uint8), np.arange(16) * 17])
    found = dequantize(block.astype(np.uint8), GGMLQuantizationType.IQ4_NL)

    np.testing.assert_array_equal(found, np.tile(TABLES["iq4_nl"], 2))


def test_scales_are_bfloat16_of_either_sign_and_none_of_twelve_has_a_smaller_error():
    """Tried one by one, in float64, the nearest level by its distance."""
    made = quantize_to_table(WEIGHT, table_format("iq4_nl", 32))
    levels, errors = np.array(TABLES["iq4_nl"]), dequantize_weight(made) - WEIGHT

    np.testing.assert_array_equal(to_bfloat16(made.scales), made.scales)
    assert made.scales.min() < 0 < made.scales.max()
    for group, error in zip(grouped(WEIGHT, 32)[0], grouped(errors, 32)[0], strict=True):
        largest = group[np.abs(group).argmax()]
        squares = []
        for end in (-127, 113):
            for stretch in (0.8, 0.85, 0.9, 0.95, 1, 1.05):
                scale = to_bfloat16(np.float32(largest / end * stretch)).astype(np.float64)
                off = np.abs(group[:, None] / scale - levels).min(1) * scale
                squares.append((off**2).sum())
        assert (error.astype(np.float64) ** 2).sum() == pytest.approx(min(squares), rel=1e-3)


@pytest.mark.parametrize(("of_table", "of_grid"), [(32, 64), (64, 128)])
def test_bell_shaped_weights_lose_a_third_less_than_on_even_grids_of_as_many_bits(
    of_table, of_grid
):
    weight = RNG.standard_normal((64, 1024)).astype(np.float32)
    table, grid = table_format("iq4_nl", of_table), grid_format("int4", of_grid)
    assert table.stored_bits == grid.stored_bits
    made = quantize_to_table(weight, table), quantize_to_grid(weight, grid)
    lost = [np.square(dequantize_weight(each) - weight).sum() for each in made]

    assert lost[0] < 0.7 * lost[1]


@pytest.mark.parametrize("group", [None, 32, 128])
def test_the_last_group_may_be_shorter_and_zeros_stay(group):
    weight = np.concatenate([WEIGHT[:3, :77], np.zeros((1, 77), np.float32)])

    made = quantize_to_table(weight, table_format("iq4_nl", group))

    assert made.scales.shape == (4, 1 if group is None else -(-77 // group))
    numbers = dequantize_weight(made)
    np.testing.assert_array_equal(numbers[3], 0)
    assert np.square(numbers[:3] - weight[:3]).sum() < 0.01 * np.square(weight[:3]).sum()
