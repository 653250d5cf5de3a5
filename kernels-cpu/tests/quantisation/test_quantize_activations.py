"""Quantised activations against the formats that the module documents."""

import numpy as np
import pytest
from numba import njit
from spaninfer_kernels_cpu.quantisation.quantize_activations import (
    RowSizes,
    quantize_row,
    quantize_row_in_parts,
)

PADDED = {16: 16, 32: 32, 64: 64, 20: 24, 130: 144}
BEYOND = 77


@njit
def write(x, group, padded, channel_bytes, most, out):
    sizes = RowSizes(x.size, group, padded, channel_bytes, 8, -(-x.size // group), most, 1)
    quantize_row(x.ctypes.data, sizes, out.ctypes.data)


@njit
def write_in_parts(x, group, groups, offset, parts, out):
    sizes = RowSizes(x.size, group, group, 1, offset, groups, 127, parts)
    quantize_row_in_parts(x.ctypes.data, sizes, out.ctypes.data)


def coded(x, group, channel_bytes, most=127):
    """Return codes[G padded] in order, scales[G], sums[G] and starts[G] for the centre 8."""
    groups, padded = -(-x.size // group), PADDED[group]
    code_bytes = groups * padded * channel_bytes
    out = np.full(code_bytes + 12 * groups + 1, BEYOND, np.uint8)
    write(x, group, padded, channel_bytes, most, out)
    assert out[-1] == BEYOND
    codes = out[:code_bytes].view(np.int8 if channel_bytes == 1 else np.int16)
    if channel_bytes == 2:
        codes = codes.reshape(-1, 4)[:, [0, 2, 1, 3]]
    parameters = out[code_bytes:-1].copy()
    return (
        codes.reshape(groups, padded),
        parameters.view(np.float32)[::3],
        parameters.view(np.float32)[1::3],
        parameters.view(np.int32)[2::3],
    )


@pytest.mark.parametrize(("channel_bytes", "most"), [(1, 127), (2, 127), (2, 2056), (2, 32767)])
@pytest.mark.parametrize(
    ("channels", "group"), [(96, 32), (80, 64), (130, 130), (50, 20), (16, 16)]
)
def test_codes_are_nearest_integers_of_a_scale_per_group_and_groups_are_filled_up_with_zeros(
    channels, group, channel_bytes, most
):
    x = np.random.default_rng(channels).standard_normal(channels).astype(np.float32)

    codes, scales, sums, starts = coded(x, group, channel_bytes, most)

    for number, start in enumerate(range(0, channels, group)):
        part = x[start : start + group]
        scale = np.abs(part).max() / np.float32(most)
        assert scales[number] == scale
        np.testing.assert_array_equal(codes[number, : part.size], np.rint(part / scale))
        assert not codes[number, part.size :].any()
        assert sums[number] == codes[number].sum()
        assert starts[number] == -8 * sums[number]


@pytest.mark.parametrize("channel_bytes", [1, 2])
@pytest.mark.parametrize("exponent", [-130, -126, -80, -64, 0, 60, 120])
def test_codes_are_those_of_a_division_to_the_bit_at_any_size_and_in_the_middle_of_two(
    exponent, channel_bytes
):
    rng = np.random.default_rng(5)
    middles = np.array([127, *(rng.integers(-127, 127, 63) + 0.5)], np.float32)
    anything = rng.standard_normal(64).astype(np.float32)
    x = np.ldexp(np.concatenate([middles, anything]), exponent).astype(np.float32)

    codes, scales, _, _ = coded(x, 64, channel_bytes)

    np.testing.assert_array_equal(codes, np.rint(x.reshape(2, 64) / scales[:, None]))
    np.testing.assert_array_equal(codes[0], np.rint(middles))


def test_zeros_have_the_scale_1_and_nan_is_the_scale_of_its_group_alone():
    x = np.zeros(96, np.float32)
    x[40], x[70] = np.nan, -2

    codes, scales, _, _ = coded(x, 32, 1)

    assert scales[0] == 1
    assert np.isnan(scales[1])
    assert scales[2] == np.float32(2) / np.float32(127)
    assert not codes[0].any()
    assert codes[2, 70 - 64] == -127


@pytest.mark.parametrize("offset", [0, 32])
@pytest.mark.parametrize("parts", [8, 16])
def test_groups_in_parts_end_with_a_scale_and_the_sum_of_each_part(parts, offset):
    """300 channels fill a group of 256 and a part of one, and leave a third empty."""
    x = np.random.default_rng(parts).standard_normal(300).astype(np.float32)
    end = np.dtype([("scale", "<f4"), ("sums", "<i2", (parts, 2) if offset else (parts, 1))])
    out = np.full(3 * (256 + end.itemsize) + 1, BEYOND, np.uint8)

    write_in_parts(x, 256, 3, offset, parts, out)

    codes, ends = out[:768].view(np.int8).reshape(3, 256), out[768:-1].copy().view(end)
    whole = np.concatenate([x, np.zeros(468, np.float32)]).reshape(3, 256)
    largest = np.abs(whole).max(1)
    scales = np.where(largest == 0, np.float32(1), largest / np.float32(127))
    np.testing.assert_array_equal(ends["scale"], scales)
    np.testing.assert_array_equal(codes, np.rint(whole / scales[:, None]))
    sums = codes.reshape(3, parts, -1, 2, 2).sum((2, 4))
    expected = -offset * sums if offset else sums.sum(2, keepdims=True)
    np.testing.assert_array_equal(ends["sums"], expected)
    assert out[-1] == BEYOND
