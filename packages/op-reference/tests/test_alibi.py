import numpy as np
import pytest
from spaninfer_op_reference import alibi_bias, alibi_slopes, falcon_alibi_bias

torch = pytest.importorskip("torch", reason="torch is the second opinion")
pytest.importorskip("transformers", reason="transformers is the second opinion")

from transformers.models.bloom.modeling_bloom import build_alibi_tensor as bloom  # noqa: E402
from transformers.models.falcon.modeling_falcon import build_alibi_tensor as falcon  # noqa: E402

N = 300  # from 257 on, bfloat16 cannot hold every whole number


@pytest.mark.parametrize("heads", [1, 2, 7, 8, 12, 40, 71])
def test_the_bias_is_blooms_for_any_number_of_heads(heads):
    bias = alibi_bias(alibi_slopes(heads), np.arange(N))

    expected = bloom(torch.ones(1, N), heads, torch.float32)[:, 0]
    np.testing.assert_allclose(bias, expected, rtol=3e-6)


@pytest.mark.parametrize("heads", [8, 12, 71])
def test_falcons_bias_is_rounded_where_falcon_rounds(heads):
    bias = falcon_alibi_bias(alibi_slopes(heads), np.arange(N), 0.125)

    expected = falcon(torch.ones(1, N, dtype=torch.int64), heads, torch.float32)[:, 0] * 0.125
    np.testing.assert_array_equal(bias, expected)


def test_a_bias_by_position_and_one_by_distance_give_the_same_weights():
    slopes, positions = alibi_slopes(4), np.arange(9)

    by_position = np.exp(alibi_bias(slopes, positions))
    by_distance = np.exp(alibi_bias(slopes, positions - 8))

    np.testing.assert_allclose(
        by_position / by_position.sum(-1, keepdims=True),
        by_distance / by_distance.sum(-1, keepdims=True),
    )
