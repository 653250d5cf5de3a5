import numpy as np
import pytest
from spaninfer_op_reference import add_rows, add_types, embed, replace_rows, sinusoidal

m2m = pytest.importorskip(
    "transformers.models.m2m_100.modeling_m2m_100", reason="transformers is the second opinion"
)


def test_embeddings_are_rows_of_the_table_times_the_scale():
    table = np.arange(12.0).reshape(4, 3)

    y = embed(np.array([3, 0, 3]), table, scale=2.0)

    assert y.tolist() == [[18.0, 20.0, 22.0], [0.0, 2.0, 4.0], [18.0, 20.0, 22.0]]


@pytest.mark.parametrize("dim", [8, 64])
def test_sinusoidal_positions_are_those_of_m2m100(dim):
    table = m2m.M2M100SinusoidalPositionalEmbedding.get_embedding(50, dim)

    y = sinusoidal(np.arange(50), dim)

    np.testing.assert_allclose(y, table, atol=5e-6)  # theirs has angles in float32


def test_rows_from_elsewhere_take_the_place_of_rows_or_are_added_and_nothing_else_changes():
    hidden, vectors = np.ones((4, 2)), np.array([[5.0, 6.0], [7.0, 8.0]])

    replaced = replace_rows(hidden, np.array([3, 1]), vectors)
    added = add_rows(hidden, np.array([3, 1]), vectors)

    assert replaced.tolist() == [[1, 1], [7, 8], [1, 1], [5, 6]]
    assert added.tolist() == [[1, 1], [8, 9], [1, 1], [6, 7]]
    assert hidden.tolist() == [[1, 1]] * 4


def test_the_row_of_its_type_is_added_to_every_token():
    y = add_types(np.ones((3, 2)), np.array([0, 1, 1]), np.array([[1.0, 2.0], [5.0, 6.0]]))

    assert y.tolist() == [[2.0, 3.0], [6.0, 7.0], [6.0, 7.0]]
