"""Decays and rates against their definition."""

from __future__ import annotations

import numpy as np
import pytest
import spaninfer_op_reference as definition
from spaninfer_kernels_cpu import KernelError, Matrix, Script, delta_gates_call, shared_thread_pool


@pytest.mark.parametrize(("tokens", "heads"), [(1, 1), (5, 4), (300, 32), (2, 4999)])
@pytest.mark.parametrize("size", [1.0, 30.0])
def test_gates_are_those_of_the_definition(tokens: int, heads: int, size: float) -> None:
    rng = np.random.default_rng(0)
    inputs = (size * rng.standard_normal((2, tokens, heads))).astype(np.float32)
    a_log = np.log(rng.uniform(0.1, 16, heads)).astype(np.float32)
    dt_bias = rng.standard_normal(heads).astype(np.float32)
    made = np.full((2, tokens, heads + 3), np.nan, np.float32)  # rows among longer ones

    a, b, g, beta = map(Matrix.of, (*inputs, *made))
    call = delta_gates_call((a, b), a_log, dt_bias, out=(g, beta))
    shared_thread_pool().run(Script([call]), [tokens])

    weights = a_log.astype(np.float64), dt_bias.astype(np.float64)
    expected = definition.delta_gates(*inputs.astype(np.float64), *weights)
    np.testing.assert_allclose(made[0, :, :heads], expected[0], rtol=2e-6, atol=1e-15)
    np.testing.assert_allclose(made[1, :, :heads], expected[1], rtol=2e-6, atol=1e-15)
    assert np.isnan(made[..., heads:]).all()


def test_gates_of_different_numbers_of_heads_are_refused() -> None:
    rows = Matrix(0, 0)  # nothing here may get as far as touching it
    four, three = np.zeros(4, np.float32), np.zeros(3, np.float32)

    for a_log, dt_bias in ((four, three), (three[:0], three[:0]), (four.astype(float), four)):
        with pytest.raises(KernelError):
            delta_gates_call((rows, rows), a_log, dt_bias, out=(rows, rows))
