"""GEMMs of scaled codes, term by term."""

import numpy as np
from spaninfer_op_reference import SCALE_BLOCK, block_scaled_linear, scaled_linear


def codes(*shape, seed=0):
    return np.random.default_rng(seed).integers(-9, 10, shape).astype(np.float64)


def scales(*shape):
    return np.random.default_rng(1).uniform(0.5, 2, shape)


def test_a_scale_belongs_to_a_row():
    x, weight, bias = codes(3, 5), codes(4, 5, seed=1), codes(4, seed=2)
    of_x, of_weight = scales(3), scales(4)

    y = scaled_linear(x, weight, of_x, of_weight, bias)

    for token, row in np.ndindex(3, 4):
        expected = of_x[token] * of_weight[row] * (x[token] * weight[row]).sum() + bias[row]
        assert np.isclose(y[token, row], expected)


def test_a_scale_belongs_to_a_block_of_rows_and_of_their_sum():
    inner, outputs = SCALE_BLOCK + 5, SCALE_BLOCK + 2
    x, weight = codes(2, inner), codes(outputs, inner, seed=1)
    of_x, of_weight = scales(2, 2), scales(2, 2)

    y = block_scaled_linear(x, weight, of_x, of_weight)

    for token, row in [(0, 0), (1, SCALE_BLOCK - 1), (0, SCALE_BLOCK), (1, outputs - 1)]:
        expected = sum(
            of_x[k // SCALE_BLOCK, token]
            * of_weight[row // SCALE_BLOCK, k // SCALE_BLOCK]
            * x[token, k]
            * weight[row, k]
            for k in range(inner)
        )
        assert np.isclose(y[token, row], expected)


def test_blocks_of_a_gated_weight_begin_anew_with_its_second_half():
    half = SCALE_BLOCK + 2
    x, weight = codes(2, 8), codes(2 * half, 8, seed=1)
    of_x, of_weight = scales(1, 2), scales(4, 1)

    y = block_scaled_linear(x, weight, of_x, of_weight, gated=True)

    gate = block_scaled_linear(x, weight[:half], of_x, of_weight[:2])
    up = block_scaled_linear(x, weight[half:], of_x, of_weight[2:])
    np.testing.assert_allclose(y, np.concatenate([gate, up], axis=1))
