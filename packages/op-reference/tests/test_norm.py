import numpy as np
import pytest
from spaninfer_op_reference import layer_norm, rms_norm

torch = pytest.importorskip("torch", reason="torch is the second opinion")
F = torch.nn.functional


def numbers(*shape, dtype=np.float64, seed=0):
    return np.random.default_rng(seed).normal(size=shape, loc=0.5).astype(dtype)


@pytest.mark.parametrize("shape", [(7, 48), (5, 3, 16), (0, 8), (1, 1)])
@pytest.mark.parametrize(("dtype", "error"), [(np.float64, 1e-14), (np.float32, 2e-6)])
def test_both_norms_are_those_of_torch(shape, dtype, error):
    x, weight, bias = (
        numbers(*shape, dtype=dtype),
        numbers(shape[-1], seed=1, dtype=dtype),
        numbers(shape[-1], seed=2, dtype=dtype),
    )

    rms = rms_norm(x, weight, 0.02)
    layer = layer_norm(x, weight, bias, 0.02)

    wide, w, b = (torch.from_numpy(a).double() for a in (x, weight, bias))
    assert (rms.dtype, layer.dtype) == (dtype, dtype)
    np.testing.assert_allclose(rms, F.rms_norm(wide, shape[-1:], w, 0.02), rtol=0, atol=error)
    np.testing.assert_allclose(layer, F.layer_norm(wide, shape[-1:], w, b, 0.02), atol=error)


def test_gemmas_norm_adds_one_to_the_weight():
    x, weight = numbers(4, 6), numbers(6, seed=1)

    y = rms_norm(x, weight, 1e-6, plus_one=True)

    np.testing.assert_allclose(y, rms_norm(x, weight + 1, 1e-6), rtol=1e-15)


def test_layer_norm_without_bias_adds_nothing():
    x, weight = numbers(4, 6), numbers(6, seed=1)

    y = layer_norm(x, weight, None, 1e-5)

    np.testing.assert_array_equal(y, layer_norm(x, weight, np.zeros(6), 1e-5))
