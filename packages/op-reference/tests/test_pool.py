import numpy as np
from spaninfer_op_reference import pool
from spaninfer_op_reference.pool import POOLINGS

HIDDEN = np.array([[1.0, 5.0], [2.0, 6.0], [6.0, 1.0]])


def test_a_text_is_its_first_row_its_mean_its_largest_numbers_or_its_last_row():
    assert pool(HIDDEN, "cls").tolist() == [1.0, 5.0]
    assert pool(HIDDEN, "mean").tolist() == [3.0, 4.0]
    assert pool(HIDDEN, "max").tolist() == [6.0, 6.0]
    assert pool(HIDDEN, "last").tolist() == [6.0, 1.0]


def test_rows_are_summed_over_the_root_of_their_number_or_weigh_more_the_later_they_come():
    np.testing.assert_allclose(pool(HIDDEN, "mean_sqrt"), np.array([9.0, 12.0]) / np.sqrt(3))
    np.testing.assert_allclose(pool(HIDDEN, "weighted_mean"), np.array([23.0, 20.0]) / 6)


def test_of_a_single_row_all_are_that_row():
    assert all(pool(HIDDEN[:1], kind).tolist() == [1.0, 5.0] for kind in POOLINGS)
