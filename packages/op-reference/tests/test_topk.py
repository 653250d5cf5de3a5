import numpy as np
import pytest
from spaninfer_op_reference import topk


@pytest.mark.parametrize("k", [1, 3, 10, 99])
def test_the_largest_come_first_and_equal_ones_in_the_order_of_their_indices(k):
    x = np.random.default_rng(0).integers(0, 4, size=(5, 99)).astype(np.float32)

    values, indices = topk(x, k)

    for row, row_values, row_indices in zip(x, values, indices, strict=True):
        best = sorted(range(99), key=lambda index, row=row: (-row[index], index))[:k]
        assert row_indices.tolist() == best
        assert row_values.tolist() == row[best].tolist()


def test_it_works_along_the_last_axis_of_any_shape_and_with_minus_infinity():
    x = np.array([[[1.0, -np.inf, 3.0]], [[-np.inf, -np.inf, 0.0]]])

    _, indices = topk(x, 2)

    assert indices.tolist() == [[[2, 0]], [[2, 0]]]
