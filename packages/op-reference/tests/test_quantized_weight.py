import numpy as np
import pytest
from spaninfer_op_reference import (
    E2M1,
    QuantizedWeight,
    WeightFormat,
    concatenate_rows,
    dequantize_weight,
    interleave_rows,
    stack_weights,
)

RNG = np.random.default_rng(0)


def _format(**fields: object) -> WeightFormat:
    known = {
        "name": "made",
        "values": "integer",
        "bits": 4,
        "group_rows": 1,
        "group_columns": 4,
        "scale": "float16",
        "stored_bits": 4.5,
    }
    return WeightFormat(**{**known, **fields})


def _floats(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float16).astype(np.float32)


def _expected(weight: QuantizedWeight, value, rows: int, columns: int, outer: int = 1):
    """The formula, number by number."""
    out = np.empty(weight.shape, np.float32)
    for n, k in np.ndindex(*weight.shape):
        group = int(weight.group_of[k]) if weight.group_of is not None else k // columns
        at = n // rows, group
        number = value(int(weight.codes[n, k]))
        if weight.zeros is not None:
            number -= float(weight.zeros[at])
        scale = float(weight.scales[at])
        scale *= 1 if weight.outer is None else float(weight.outer[n // rows, group // outer])
        number *= scale
        if weight.minimums is not None:
            above = weight.outer_minimums
            least = float(weight.minimums[at])
            number -= least * (1 if above is None else float(above[n // rows, group // outer]))
        out[n, k] = number
    return out


def test_codes_are_shifted_and_scaled_by_group():
    format = _format(zero="integer")
    weight = QuantizedWeight(
        format,
        codes=RNG.integers(0, 16, (5, 10)).astype(np.uint8),
        scales=_floats(5, 3),  # the last group has two columns
        zeros=RNG.integers(0, 16, (5, 3)),
    )

    np.testing.assert_array_equal(dequantize_weight(weight), _expected(weight, float, 1, 4))


def test_columns_may_name_their_groups():
    weight = QuantizedWeight(
        _format(zero="integer", permuted=True),
        codes=RNG.integers(0, 16, (3, 8)).astype(np.uint8),
        scales=_floats(3, 2),
        zeros=RNG.integers(0, 16, (3, 2)),
        group_of=np.array([1, 0, 0, 1, 1, 0, 1, 0]),
    )

    np.testing.assert_array_equal(dequantize_weight(weight), _expected(weight, float, 1, 4))


def test_scales_of_two_levels_and_minimums():
    weight = QuantizedWeight(
        _format(scale="integer", outer="float16", zero="minimum"),
        codes=RNG.integers(0, 16, (3, 16)).astype(np.uint8),
        scales=RNG.integers(0, 64, (3, 4)).astype(np.uint8),
        minimums=RNG.integers(0, 64, (3, 4)).astype(np.uint8),
        outer=_floats(3, 2),
        outer_minimums=_floats(3, 2),
    )

    np.testing.assert_array_equal(dequantize_weight(weight), _expected(weight, float, 1, 4, 2))


def test_tables_and_blocks_of_rows():
    table = QuantizedWeight(
        _format(values="table", table=E2M1),
        codes=RNG.integers(0, 16, (2, 8)).astype(np.uint8),
        scales=_floats(2, 2),
    )
    blocks = QuantizedWeight(
        _format(bits=8, group_rows=3, group_columns=4),
        codes=RNG.integers(-128, 128, (7, 9)).astype(np.int8),
        scales=_floats(3, 3),
    )

    np.testing.assert_array_equal(
        dequantize_weight(table), _expected(table, lambda code: E2M1[code], 1, 4)
    )
    np.testing.assert_array_equal(dequantize_weight(blocks), _expected(blocks, float, 3, 4))


def test_e4m3_is_what_ml_dtypes_says():
    ml_dtypes = pytest.importorskip("ml_dtypes")
    codes = np.arange(256, dtype=np.uint8)[None]
    weight = QuantizedWeight(
        _format(values="e4m3", bits=8, group_rows=None, group_columns=None, scale="float32"),
        codes,
        np.ones((1, 1), np.float32),
    )

    expected = codes.view(ml_dtypes.float8_e4m3fn).astype(np.float32)
    np.testing.assert_array_equal(dequantize_weight(weight), expected)


def test_large_weights_are_the_same_in_pieces():
    codes = RNG.integers(-8, 8, (700, 256)).astype(np.int8)
    scales = _floats(700, 64)
    weight = QuantizedWeight(_format(), codes, scales)

    np.testing.assert_array_equal(dequantize_weight(weight), codes * np.repeat(scales, 4, axis=1))


def test_stacked_weights_and_moved_rows_keep_their_scales():
    format = _format(zero="integer")
    parts = [
        QuantizedWeight(
            format,
            RNG.integers(0, 16, (4, 8)).astype(np.uint8),
            _floats(4, 2),
            RNG.integers(0, 16, (4, 2)),
        )
        for _ in range(3)
    ]
    each = [dequantize_weight(part) for part in parts]
    order = np.array([2, 0, 3, 1])

    np.testing.assert_array_equal(dequantize_weight(stack_weights(parts)), np.stack(each))
    np.testing.assert_array_equal(dequantize_weight(parts[0].rows(order)), each[0][order])


def test_rows_of_two_weights_take_turns_or_follow_each_other():
    parts = [
        QuantizedWeight(_format(), RNG.integers(-8, 8, (3, 4, 8)).astype(np.int8), _floats(3, 4, 2))
        for _ in range(2)
    ]
    first, second = map(dequantize_weight, parts)

    both = dequantize_weight(interleave_rows(*parts))

    np.testing.assert_array_equal(both[:, ::2], first)
    np.testing.assert_array_equal(both[:, 1::2], second)
    joined = dequantize_weight(concatenate_rows(parts))
    np.testing.assert_array_equal(joined, np.concatenate([first, second], axis=1))


def test_rows_that_share_scales_cannot_be_moved():
    blocks = QuantizedWeight(
        _format(group_rows=2), np.zeros((4, 8), np.int8), np.ones((2, 2), np.float32)
    )

    with pytest.raises(ValueError, match="rows of made share scales"):
        blocks.rows(np.array([1, 0, 2, 3]))
    with pytest.raises(ValueError, match="rows of made share scales"):
        interleave_rows(blocks, blocks)


@pytest.mark.parametrize(
    "fields", [{"values": "table"}, {"table": (0.0,)}, {"values": "table", "table": (0.0, 1.0)}]
)
def test_a_format_that_contradicts_itself_is_refused(fields):
    with pytest.raises(ValueError, match="made"):
        _format(**fields)
