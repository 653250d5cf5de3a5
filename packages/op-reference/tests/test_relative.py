import numpy as np
import pytest
from spaninfer_op_reference import relative_position_bias, relative_position_buckets

DISTANCES = np.arange(-5000, 5001)


@pytest.mark.parametrize(("buckets", "far"), [(32, 128), (32, 64), (64, 300), (8, 20)])
def test_buckets_are_those_of_mpnet_and_t5(buckets: int, far: int) -> None:
    torch = pytest.importorskip("torch")
    mpnet = pytest.importorskip("transformers.models.mpnet.modeling_mpnet")
    t5 = pytest.importorskip("transformers.models.t5.modeling_t5")
    distances = torch.from_numpy(DISTANCES)

    actual = relative_position_buckets(DISTANCES, buckets, far)

    of_mpnet = mpnet.MPNetEncoder.relative_position_bucket(distances, buckets, far)
    of_t5 = t5.T5Attention._relative_position_bucket(distances, True, buckets, far)
    np.testing.assert_array_equal(actual, of_mpnet)
    np.testing.assert_array_equal(actual, of_t5)


def test_a_bias_counts_for_its_distance_and_the_last_ones_for_all_beyond() -> None:
    table = np.array([[-2.0, -1.0, 0.0, 1.0, 2.0], [7.0, 8.0, 9.0, 10.0, 11.0]])

    biases = relative_position_bias(table, 4)

    assert biases[0].tolist() == [[0, 1, 2, 2], [-1, 0, 1, 2], [-2, -1, 0, 1], [-2, -2, -1, 0]]
    np.testing.assert_array_equal(biases[1], biases[0] + 9)
