import numpy as np
from spaninfer_op_reference import pool

HIDDEN = np.array([[1.0, 5.0], [2.0, 6.0], [6.0, 1.0]])


def test_a_text_is_its_first_row_its_mean_or_its_last_row():
    assert pool(HIDDEN, "cls").tolist() == [1.0, 5.0]
    assert pool(HIDDEN, "mean").tolist() == [3.0, 4.0]
    assert pool(HIDDEN, "last").tolist() == [6.0, 1.0]


def test_of_a_single_row_all_are_that_row():
    assert all(pool(HIDDEN[:1], kind).tolist() == [1.0, 5.0] for kind in ("cls", "mean", "last"))
