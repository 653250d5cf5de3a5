import numpy as np
import pytest
from spaninfer_op_reference import head_linear, linear, normalize_rows, scale_rows

torch = pytest.importorskip("torch", reason="torch is the second opinion")
F = torch.nn.functional

RNG = np.random.default_rng(0)


@pytest.mark.parametrize("rows", [0, 1, 7])
def test_linear_is_that_of_torch(rows):
    x, weight, bias = RNG.normal(size=(rows, 12)), RNG.normal(size=(5, 12)), RNG.normal(size=5)

    with_bias, without = linear(x, weight, bias), linear(x, weight)

    tensors = [torch.from_numpy(a) for a in (x, weight, bias)]
    np.testing.assert_allclose(with_bias, F.linear(*tensors), atol=1e-14)
    np.testing.assert_allclose(without, F.linear(*tensors[:2]), atol=1e-14)


def test_every_head_has_a_matrix_of_its_own():
    x, weight = RNG.normal(size=(3, 4, 6)), RNG.normal(size=(4, 6, 5))

    y = head_linear(x, weight)

    np.testing.assert_allclose(y, np.einsum("tha,hab->thb", x, weight), atol=1e-14)


def test_rows_are_scaled_one_by_one():
    y = scale_rows(np.ones((2, 3)), np.array([2.0, -1.0]))

    assert y.tolist() == [[2.0, 2.0, 2.0], [-1.0, -1.0, -1.0]]


def test_rows_are_normalized_as_torch_does_even_rows_of_zeros():
    x = RNG.normal(size=(4, 9))
    x[2] = 0

    y = normalize_rows(x)

    np.testing.assert_allclose(y, F.normalize(torch.from_numpy(x), dim=-1), atol=1e-15)
