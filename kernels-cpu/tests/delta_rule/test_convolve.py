"""The causal convolution over states that lie in spans, against its definition."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import spaninfer_op_reference as definition
from spaninfer_kernels_cpu import KernelError, convolve


def pieces_of(*rows: tuple[int, int, int, int]) -> Any:
    return np.array(rows, np.int32).reshape(-1, 4)


def drawn(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


def expected_of(x: Any, weight: Any, before: Any, *, silu: bool = False) -> tuple[Any, Any]:
    x, weight, before = (each.astype(np.float64) for each in (x, weight, before))
    y, behind = definition.convolve(x, weight.T, before)
    return (y / (1 + np.exp(-y)) if silu else y), behind


@pytest.mark.parametrize("taps", [2, 4, 5])
@pytest.mark.parametrize("channels", [1, 20, 511, 512, 1031])
@pytest.mark.parametrize("silu", [False, True])
def test_few_and_many_tokens_follow_the_inputs_that_a_state_keeps(
    taps: int, channels: int, *, silu: bool
) -> None:
    for tokens in (1, 2, 3, 4, 7, 130):
        x, weight = drawn(tokens, channels), drawn(taps, channels, seed=1)
        states, out = drawn(3, taps - 1, channels, seed=2), np.full_like(x, np.nan)
        before = states.copy()

        convolve(x, weight, states, pieces_of((0, tokens, 1, 1)), out=out, silu=silu)

        expected, behind = expected_of(x, weight, before[1], silu=silu)
        np.testing.assert_allclose(out, expected, rtol=1e-5, atol=2e-6)
        np.testing.assert_array_equal(states[1], behind)
        np.testing.assert_array_equal(states[[0, 2]], before[[0, 2]])


def test_sequences_and_their_pieces_read_and_leave_their_own_inputs() -> None:
    x, weight, states = drawn(21, 33), drawn(4, 33, seed=1), np.full((5, 3, 33), np.nan, np.float32)
    states[4] = drawn(3, 33, seed=2)
    before, out = states.copy(), np.full_like(x, np.nan)
    pieces = pieces_of((0, 1, -1, 0), (1, 3, 0, 2), (3, 12, 2, 0), (12, 12, 4, 3), (14, 20, 4, 1))

    convolve(x, weight, states, pieces, out=out)

    expected, behind = expected_of(x[:12], weight, np.zeros((3, 33)))
    np.testing.assert_allclose(out[:12], expected, rtol=1e-5, atol=2e-6)
    np.testing.assert_array_equal(states[0], behind)
    np.testing.assert_array_equal(states[2], x[:3])
    np.testing.assert_array_equal(states[3], before[4])
    expected, behind = expected_of(x[14:20], weight, before[4])
    np.testing.assert_allclose(out[14:20], expected, rtol=1e-5, atol=2e-6)
    np.testing.assert_array_equal(states[1], behind)
    np.testing.assert_array_equal(states[4], before[4])
    assert np.isnan(out[[12, 13, 20]]).all()


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"x": np.zeros((9, 8))}, "float64"),
        ({"x": np.zeros((9, 16), np.float32)[:, ::2]}, "contiguous"),
        ({"x": np.zeros((9, 7), np.float32)}, "out has shape"),
        ({"weight": np.zeros((4, 7), np.float32)}, "differ in C"),
        ({"weight": np.zeros((8, 4), np.float32).T}, "contiguous"),
        ({"weight": np.zeros((1, 8), np.float32)}, "at least 2 taps"),
        ({"weight": np.zeros((3, 8), np.float32)}, "states of shape"),
        ({"states": np.zeros((2, 3, 8))}, "float64"),
        ({"states": np.zeros((2, 2, 8), np.float32)}, "states of shape"),
        ({"states": np.zeros((2, 3, 16), np.float32)[..., ::2]}, "contiguous"),
        ({"pieces": pieces_of((0, 10, 0, 0))}, "there are 9"),
        ({"pieces": pieces_of((0, 9, 0, 2))}, "2 spans"),
        ({"out": np.zeros((9, 8), np.float64)}, "float64"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(changed: dict[str, Any], message: str) -> None:
    good: dict[str, Any] = {
        "x": np.zeros((9, 8), np.float32),
        "weight": np.zeros((4, 8), np.float32),
        "states": np.zeros((2, 3, 8), np.float32),
        "pieces": pieces_of((0, 9, 0, 0)),
        "out": np.zeros((9, 8), np.float32),
    }

    with pytest.raises(KernelError, match=message):
        convolve(**{**good, **changed})


def test_the_result_must_not_overwrite_inputs_that_later_tokens_read() -> None:
    x = drawn(9, 8)

    with pytest.raises(KernelError, match="shares memory"):
        convolve(x, drawn(4, 8), drawn(2, 3, 8), pieces_of((0, 9, 0, 0)), out=x)
