"""The gated delta rule over spans against its definition, token by token and in chunks."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import spaninfer_op_reference as definition
from spaninfer_kernels_cpu import DeltaInputs, KernelError, delta_rule

# Heads of queries and keys, heads of values, sizes of a key and of a value.
SHAPES = [
    (1, 1, 1, 1),
    (2, 4, 8, 6),
    (1, 3, 7, 13),
    (2, 2, 16, 80),
    (1, 2, 128, 128),
    (3, 6, 33, 150),
]
LENGTHS = [1, 2, 7, 8, 9, 16, 61, 63, 64, 65, 128, 131]


def inputs_of(shape: tuple[int, ...], tokens: int, seed: int = 0, pace: float = 0.3) -> DeltaInputs:
    rng = np.random.default_rng(seed)
    key_heads, heads, size, width = shape

    def numbers(*axes: int) -> Any:
        return rng.standard_normal((tokens, *axes), np.float32)

    g = -np.abs(numbers(heads)) * np.float32(pace)
    beta = rng.uniform(size=(tokens, heads)).astype(np.float32)
    query, key = numbers(key_heads, size), numbers(key_heads, size)
    return DeltaInputs(query, key, numbers(heads, width), g, beta)


def arrays(inputs: DeltaInputs, rows: slice = slice(None)) -> list[Any]:
    all_rows = (inputs.query, inputs.key, inputs.value, inputs.g, inputs.beta)
    return [each[rows].astype(np.float64) for each in all_rows]


def pieces_of(*rows: tuple[int, int, int, int]) -> Any:
    return np.array(rows, np.int32).reshape(-1, 4)


def run(inputs: DeltaInputs, states: Any, pieces: Any) -> Any:
    out = np.full(inputs.value.shape, np.nan, np.float32)
    delta_rule(inputs, states, pieces, out=out)
    return out


def spans(shape: tuple[int, ...], count: int, seed: int = 1) -> Any:
    rng = np.random.default_rng(seed)
    return rng.standard_normal((count, *shape[1:]), np.float32)


def check(actual: Any, expected: Any, tolerance: float = 5e-6) -> None:
    """Assert that errors are small beside the numbers, or beside values and states, of size 1."""
    assert np.abs(actual - expected).max() < tolerance * max(1.0, np.abs(expected).max())


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_any_number_of_tokens_is_what_the_recursion_makes_of_it(shape: tuple[int, ...]) -> None:
    for tokens in LENGTHS:
        inputs, states = inputs_of(shape, tokens, tokens), spans(shape, 3)
        before = states.copy()

        out = run(inputs, states, pieces_of((0, tokens, 2, 2)))

        expected, behind = definition.delta_rule(*arrays(inputs), before[2].astype(np.float64))
        check(out, expected)
        check(states[2], behind)
        np.testing.assert_array_equal(states[:2], before[:2])


def test_sequences_of_different_lengths_share_a_step() -> None:
    shape, lengths = (2, 4, 24, 40), [1, 70, 3, 64, 1, 200, 11]
    inputs, states = inputs_of(shape, sum(lengths)), spans(shape, 2 * len(lengths))
    before, bounds = states.copy(), np.cumsum([0, *lengths])
    rows = [
        (int(first), int(first) + count, -1 if number % 3 == 0 else 2 * number, 2 * number + 1)
        for number, (first, count) in enumerate(zip(bounds, lengths, strict=False))
    ]

    out = run(inputs, states, pieces_of(*rows))

    for first, last, source, target in rows:
        begin = np.zeros(shape[1:]) if source < 0 else before[source].astype(np.float64)
        expected, behind = definition.delta_rule(*arrays(inputs, slice(first, last)), begin)
        check(out[first:last], expected)
        check(states[target], behind)
    np.testing.assert_array_equal(states[::2], before[::2])


def test_a_chain_of_pieces_leaves_snapshots_on_its_way() -> None:
    shape = (1, 2, 16, 16)
    inputs, states = inputs_of(shape, 100), np.full((4, *shape[1:]), np.nan, np.float32)

    out = run(inputs, states, pieces_of((0, 13, -1, 3), (13, 90, 3, 1), (90, 100, 1, 0)))

    for span, stop in ((3, 13), (1, 90), (0, 100)):
        expected, behind = definition.delta_rule(*arrays(inputs, slice(stop)), np.zeros(shape[1:]))
        check(out[:stop], expected)
        check(states[span], behind)
    assert np.isnan(states[2]).all()


def test_rows_and_spans_of_no_piece_stay_as_they_are() -> None:
    shape = (1, 1, 8, 8)
    inputs, states = inputs_of(shape, 20), spans(shape, 2)
    before = states.copy()

    out = run(inputs, states, pieces_of((5, 5, 0, 0), (6, 18, -1, 1)))

    assert np.isnan(out[:6]).all()
    assert np.isnan(out[18:]).all()
    assert np.isfinite(out[6:18]).all()
    np.testing.assert_array_equal(states[0], before[0])
    assert np.isnan(run(inputs, states, pieces_of())).all()


def test_a_sequence_that_begins_does_not_read_its_span() -> None:
    shape = (1, 2, 8, 8)
    for tokens in (1, 30):
        inputs = inputs_of(shape, tokens)
        states = np.full((1, *shape[1:]), np.nan, np.float32)

        out = run(inputs, states, pieces_of((0, tokens, -1, 0)))

        expected, behind = definition.delta_rule(*arrays(inputs), np.zeros(shape[1:]))
        check(out, expected)
        check(states[0], behind)


@pytest.mark.parametrize("pace", [1e-4, 5.0, 80.0, 3000.0])
def test_slow_and_fast_decays_stay_exact_and_finite(pace: float) -> None:
    shape = (1, 2, 32, 32)
    inputs, states = inputs_of(shape, 150, pace=pace), spans(shape, 1)
    before = states[0].astype(np.float64)

    out = run(inputs, states, pieces_of((0, 150, 0, 0)))

    expected, behind = definition.delta_rule(*arrays(inputs), before)
    check(out, expected, 2e-5)
    check(states[0], behind, 2e-5)


def test_thousands_of_tokens_do_not_drift() -> None:
    shape = (1, 1, 64, 64)
    inputs, states = inputs_of(shape, 4000, pace=0.01), spans(shape, 1)
    before = states[0].astype(np.float64)

    out = run(inputs, states, pieces_of((0, 4000, 0, 0)))

    expected, behind = definition.delta_rule(*arrays(inputs), before)
    check(out, expected, 1e-5)
    check(states[0], behind, 1e-5)


def test_spans_may_lie_in_longer_rows() -> None:
    shape = (1, 2, 8, 6)
    inputs, buffer = inputs_of(shape, 9), spans((0, 300), 3)
    before = buffer.copy()
    states = buffer[:, 100 : 100 + 96].reshape(3, *shape[1:])
    assert np.shares_memory(states, buffer)

    run(inputs, states, pieces_of((0, 9, 1, 1)))

    _, behind = definition.delta_rule(*arrays(inputs), before[1, 100:196].reshape(shape[1:]))
    check(states[1], behind)
    buffer[1, 100:196] = before[1, 100:196]
    np.testing.assert_array_equal(buffer, before)


GOOD = pieces_of((0, 4, 0, 0), (4, 9, -1, 1))


@pytest.mark.parametrize(
    ("pieces", "message"),
    [
        (pieces_of((0, 10, 0, 0)), "there are 9"),
        (pieces_of((-1, 4, 0, 0)), "rows -1 to 4"),
        (pieces_of((4, 3, 0, 0)), "in order"),
        (pieces_of((0, 5, 0, 0), (4, 9, 1, 1)), "in order"),
        (pieces_of((0, 9, 2, 0)), "there are 3 spans"),
        (pieces_of((0, 9, -2, 0)), "source"),
        (pieces_of((0, 9, 0, 2)), "holds 2; there are 2 spans"),
        (pieces_of((0, 9, 0, -1)), "holds -1"),
        (pieces_of((0, 4, 0, 0), (4, 9, 1, 0)), "write span 0"),
        (pieces_of((0, 4, 0, 0), (4, 6, -1, 1), (6, 9, 0, 1)), "write span 1"),
        (pieces_of((0, 4, 1, 0), (4, 9, -1, 1)), "read span 1"),
        (GOOD.astype(np.int64), "int64"),
        (GOOD[:, :3].copy(), "first, last, source, target"),
        (GOOD.T.copy().T, "contiguous"),
    ],
)
def test_pieces_beyond_rows_and_spans_are_refused(pieces: Any, message: str) -> None:
    shape = (1, 2, 8, 6)
    states = spans(shape, 2)
    before = states.copy()

    with pytest.raises(KernelError, match=message):
        run(inputs_of(shape, 9), states, pieces)

    np.testing.assert_array_equal(states, before)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"query": np.zeros((9, 1, 7), np.float32)}, "query has shape"),
        ({"key": np.zeros((8, 1, 8), np.float32)}, "key has shape"),
        ({"key": np.zeros((9, 1, 8))}, "float64"),
        ({"value": np.zeros((9, 2, 12), np.float32)[..., ::2]}, "contiguous"),
        ({"value": np.zeros((9, 1, 6), np.float32)}, "value has shape"),
        ({"g": np.zeros((9, 3), np.float32)}, "g has shape"),
        ({"beta": np.zeros(9, np.float32)}, "beta: expected axes"),
    ],
)
def test_rows_that_do_not_fit_are_refused(changed: dict[str, Any], message: str) -> None:
    shape = (1, 2, 8, 6)
    inputs = replace(inputs_of(shape, 9), **changed)

    with pytest.raises(KernelError, match=message):
        delta_rule(inputs, spans(shape, 2), GOOD, out=np.empty((9, 2, 6), np.float32))


@pytest.mark.parametrize(
    ("states", "message"),
    [
        (np.zeros((2, 2, 8, 6)), "float64"),
        (np.zeros((2, 8, 6), np.float32), "S H D E"),
        (np.zeros((2, 2, 6, 8), np.float32).swapaxes(2, 3), "contiguous"),
        (np.zeros((2, 3, 8, 6), np.float32), "value has shape"),
        (np.zeros((4, 2, 8, 6), np.float32)[::-1], "contiguous"),
        (np.broadcast_to(np.zeros((2, 8, 6), np.float32), (2, 2, 8, 6)), "contiguous"),
    ],
)
def test_states_that_kernels_cannot_read_are_refused(states: Any, message: str) -> None:
    inputs = inputs_of((1, 2, 8, 6), 9)

    with pytest.raises(KernelError, match=message):
        delta_rule(inputs, states, GOOD, out=np.empty((9, 2, 6), np.float32))


def test_out_is_checked_and_heads_are_shared_evenly() -> None:
    inputs, states = inputs_of((1, 2, 8, 6), 9), spans((1, 2, 8, 6), 2)
    locked = np.zeros((9, 2, 6), np.float32)
    locked.flags.writeable = False

    for out, message in ((locked, "read-only"), (np.zeros((8, 2, 6), np.float32), "out has shape")):
        with pytest.raises(KernelError, match=message):
            delta_rule(inputs, states, GOOD, out=out)
    three = inputs_of((2, 3, 8, 6), 9)
    with pytest.raises(KernelError, match="3 heads, not a multiple of 2"):
        delta_rule(three, spans((2, 3, 8, 6), 2), GOOD, out=np.empty((9, 3, 6), np.float32))
