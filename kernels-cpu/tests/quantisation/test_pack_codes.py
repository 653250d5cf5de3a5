"""Codes that others made come out of packed weights as they went in."""

import ml_dtypes
import numpy as np
import pytest
from spaninfer_kernels_cpu import (
    Format,
    FormatError,
    GroupedCodes,
    ShapeError,
    pack_codes,
    unpack,
)

OFFSET = {"int8": 128, "int4": 8}
FORMATS = [Format(kind, group) for kind in OFFSET for group in (None, 32, 64, 128)]


def _made(format: Format, *size: int, seed: int = 0) -> GroupedCodes:
    rng = np.random.default_rng(seed)
    groups = (*size[:2], -(-size[2] // (format.group or size[2])))
    scales, biases = rng.standard_normal((2, *groups)).astype(ml_dtypes.bfloat16)
    codes = rng.integers(0, 2 * OFFSET[format.kind], size).astype(np.uint8)
    return GroupedCodes(codes, scales.astype(np.float32), biases.astype(np.float32))


def _numbers(made: GroupedCodes, format: Format) -> np.ndarray:
    columns = made.codes.shape[2]
    each = format.group or columns
    scales, biases = (
        np.repeat(array, each, axis=2)[..., :columns] for array in (made.scales, made.biases)
    )
    return (made.codes - np.float32(OFFSET[format.kind])) * scales + biases


@pytest.mark.parametrize("format", FORMATS, ids=str)
@pytest.mark.parametrize("size", [(1, 1, 1), (1, 64, 256), (1, 1030, 128), (2, 67, 77)], ids=str)
def test_a_weight_is_what_its_codes_scales_and_biases_say(format, size):
    made = _made(format, *size)

    packed = pack_codes([made], format)

    assert packed.count == size[0]
    for number in range(size[0]):
        np.testing.assert_array_equal(unpack(packed[number]), _numbers(made, format)[number])


def test_parts_lie_below_one_another():
    format = Format("int4", 32)
    parts = [_made(format, 2, rows, 96, seed=rows) for rows in (3, 70, 64)]

    packed = pack_codes(parts, format)

    below = np.concatenate([_numbers(part, format) for part in parts], axis=1)
    np.testing.assert_array_equal(unpack(packed[1]), below[1])


def test_codes_without_scales_for_their_groups_are_refused():
    made = _made(Format("int8", 32), 1, 4, 64)

    with pytest.raises(ShapeError, match=r"scales and biases \(1, 4, 1\), got .*\(1, 4, 2\)"):
        pack_codes([made], Format("int8", 64))
    with pytest.raises(FormatError, match="float32; codes are packed in int8 or int4"):
        pack_codes([made], Format("float32"))
