import numpy as np
import pytest
from spaninfer_engine.ops import products
from spaninfer_engine.ops.products import Products
from threadpoolctl import threadpool_info


@pytest.mark.parametrize("threads", [1, 2, 3, 7])
@pytest.mark.parametrize(("rows", "inner", "outputs"), [(1, 4096, 2051), (67, 301, 513), (0, 5, 6)])
def test_a_split_product_is_the_whole_product(threads, rows, inner, outputs):
    rng = np.random.default_rng(rows)
    x = rng.standard_normal((rows, inner), dtype=np.float32)
    weight = rng.standard_normal((outputs, inner), dtype=np.float32)

    y = Products(threads)(x, weight)

    truth = x.astype(np.float64) @ weight.astype(np.float64).T
    assert y.shape == truth.shape
    np.testing.assert_allclose(y, truth, atol=1e-5 * inner)


def test_every_output_of_a_split_product_is_written(monkeypatch):
    monkeypatch.setattr(products.np, "empty", lambda shape, dtype: np.full(shape, np.nan, dtype))
    x, weight = np.ones((3, 2000), np.float32), np.ones((1999, 2000), np.float32)

    assert (Products(4)(x, weight) == 2000).all()


def test_blas_keeps_to_one_thread():
    Products()

    assert {each["num_threads"] for each in threadpool_info() if each["user_api"] == "blas"} == {1}


def test_an_error_in_another_thread_is_raised_here():
    x, weight = np.ones((9, 4000), np.float32), np.ones((4000, 3999), np.float32)

    with pytest.raises(ValueError, match="mismatch"):
        Products(3)(x, weight)
