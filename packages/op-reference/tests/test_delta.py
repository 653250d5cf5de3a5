"""The gated delta rule, against loops over the published formulas."""

import numpy as np
import pytest
from spaninfer_op_reference import convolve, delta_gates, delta_rule, unit_rows

T, K, H, D, E = 7, 2, 4, 6, 5


def operands(tokens=T, seed=0):
    rng = np.random.default_rng(seed)
    shapes = ((tokens, K, D), (tokens, K, D), (tokens, H, E), (tokens, H), (tokens, H))
    query, key, value, g, beta = (rng.normal(size=shape) for shape in shapes)
    return query, key, value, -np.abs(g), 1 / (1 + np.exp(-beta))


def test_a_convolution_sums_the_last_inputs():
    rng = np.random.default_rng(1)
    x, weight, before = (rng.normal(size=shape) for shape in ((5, 3), (3, 4), (3, 3)))

    y, kept = convolve(x, weight, before)

    inputs = np.concatenate([before, x])
    for t in range(5):
        for c in range(3):
            wanted = sum(inputs[t + i, c] * weight[c, i] for i in range(4))
            assert y[t, c] == pytest.approx(wanted)
    assert (kept == inputs[-3:]).all()


def test_a_convolution_of_fewer_rows_than_taps_keeps_rows_of_before():
    x, before = np.ones((1, 2)), np.arange(6.0).reshape(3, 2)

    _, kept = convolve(x, np.ones((2, 4)), before)

    assert kept.tolist() == [[2, 3], [4, 5], [1, 1]]


def test_gates_are_those_of_mamba_2_and_of_deltanet():
    a, b, a_log, dt_bias = (np.array([[value]]) for value in (0.3, -0.7, 1.1, 0.2))

    g, beta = delta_gates(a, b, a_log[0], dt_bias[0])

    assert g[0, 0] == pytest.approx(-np.exp(1.1) * np.log1p(np.exp(0.5)))
    assert beta[0, 0] == pytest.approx(1 / (1 + np.exp(0.7)))


def test_the_rule_is_that_of_the_paper():
    """S_t = S_{t-1} (alpha_t (I - beta_t k_t k_t^T)) + beta_t v_t k_t^T, with S as [E D]."""
    query, key, value, g, beta = operands()
    state = np.random.default_rng(9).normal(size=(H, D, E))

    out, behind = delta_rule(query, key, value, g, beta, state)

    for h in range(H):
        s = state[h].T
        for t in range(T):
            k, q = (each[t, h // (H // K)] for each in (key, query))
            k, q = k / np.sqrt(k @ k + 1e-6), q / np.sqrt(q @ q + 1e-6)
            s = s @ (np.exp(g[t, h]) * (np.eye(D) - beta[t, h] * np.outer(k, k)))
            s = s + beta[t, h] * np.outer(value[t, h], k)
            np.testing.assert_allclose(out[t, h], s @ q / np.sqrt(D), rtol=1e-10)
        np.testing.assert_allclose(behind[h].T, s, rtol=1e-10)


def test_a_sequence_in_parts_is_the_whole_one_to_the_bit():
    whole = operands()
    state = np.zeros((H, D, E))
    expected, last = delta_rule(*whole, state)

    parts = []
    for cut in (slice(0, 1), slice(1, 5), slice(5, T)):
        out, state = delta_rule(*(each[cut] for each in whole), state)
        parts.append(out)

    assert (np.concatenate(parts) == expected).all()
    assert (state == last).all()


def test_with_a_rate_of_one_and_no_decay_a_state_says_what_it_was_told_last():
    """S^T k is v for the key of the last token, whatever came before."""
    query, key, value, _, _ = operands()

    _, state = delta_rule(query, key, value, np.zeros((T, H)), np.ones((T, H)), np.zeros((H, D, E)))

    k = np.repeat(unit_rows(key[-1]), H // K, axis=0)
    np.testing.assert_allclose(np.einsum("hde,hd->he", state, k), value[-1], rtol=1e-5)
