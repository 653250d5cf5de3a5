import math

import numpy as np
import pytest
from spaninfer_op_reference import cos_sin, llama4_scale, logn, rotate

torch = pytest.importorskip("torch", reason="torch is the second opinion")
pytest.importorskip("transformers", minversion="5.0", reason="transformers is the second opinion")

from transformers.models.glm import modeling_glm  # noqa: E402
from transformers.models.llama import modeling_llama  # noqa: E402
from transformers.models.qwen2_vl import modeling_qwen2_vl  # noqa: E402
from transformers.models.qwen3_vl import modeling_qwen3_vl  # noqa: E402

DIM, T, H = 16, 7, 3
INVERSE = (1 / 100 ** (np.arange(0, DIM, 2, dtype=np.float32) / DIM)).astype(np.float32)


@pytest.mark.parametrize(
    ("style", "theirs"),
    [
        ("half", modeling_llama.apply_rotary_pos_emb),
        ("interleaved", modeling_glm.apply_rotary_pos_emb),
    ],
)
def test_rotated_heads_are_those_of_transformers(style, theirs):
    x = np.random.default_rng(0).normal(size=(T, H, DIM)).astype(np.float32)
    cos, sin = cos_sin(np.arange(T) * 13, INVERSE)

    y = rotate(x, cos, sin, style)

    query = torch.from_numpy(x).swapaxes(0, 1)[None]
    twice = [torch.from_numpy(np.concatenate([part, part], -1))[None] for part in (cos, sin)]
    expected = theirs(query, query, *twice)[0][0].swapaxes(0, 1)
    assert y.dtype == np.float32
    np.testing.assert_allclose(y, expected, atol=1e-6)


@pytest.mark.parametrize("style", ["half", "interleaved"])
def test_channels_beyond_the_rotated_ones_pass_through_and_lengths_stay(style):
    x = np.random.default_rng(1).normal(size=(T, H, DIM + 5))
    before = x.copy()

    y = rotate(x, *cos_sin(np.arange(T), INVERSE.astype(np.float64)), style)

    np.testing.assert_array_equal(y[..., DIM:], x[..., DIM:])
    np.testing.assert_allclose(np.linalg.norm(y, axis=-1), np.linalg.norm(x, axis=-1))
    np.testing.assert_array_equal(x, before)


def test_dot_products_of_rotated_vectors_depend_on_the_distance_alone():
    q, k = np.random.default_rng(2).normal(size=(2, 1, 1, DIM))

    def product(i, j):
        turned = [
            rotate(x, *cos_sin(np.array([place]), INVERSE.astype(np.float64)))
            for x, place in ((q, i), (k, j))
        ]
        return float((turned[0] * turned[1]).sum())

    assert product(5, 2) == pytest.approx(product(905, 902))


def test_an_unknown_style_is_named():
    with pytest.raises(ValueError, match="'spiral'"):
        rotate(np.zeros((1, 1, 2)), np.ones((1, 1)), np.zeros((1, 1)), "spiral")


@pytest.mark.parametrize(
    ("module", "rotary", "config", "interleaved"),
    [
        (modeling_qwen2_vl, "Qwen2VLRotaryEmbedding", "Qwen2VLTextConfig", False),
        (modeling_qwen3_vl, "Qwen3VLTextRotaryEmbedding", "Qwen3VLTextConfig", True),
    ],
)
def test_three_axes_share_the_frequencies_as_in_qwen_vl(module, rotary, config, interleaved):
    sections = (4, 2, 2)
    parameters = {"rope_type": "default", "rope_theta": 100.0, "mrope_section": list(sections)}
    theirs = getattr(module, rotary)(
        getattr(module, config)(
            hidden_size=2 * DIM, num_attention_heads=2, head_dim=DIM, rope_parameters=parameters
        )
    )
    positions = np.random.default_rng(3).integers(0, 40, size=(3, T))

    cos, sin = cos_sin(positions, INVERSE, 1.0, sections, interleaved)

    expected = theirs(torch.zeros(1), torch.from_numpy(positions)[:, None])
    np.testing.assert_allclose(cos, expected[0][0, :, : DIM // 2], atol=5e-6)
    np.testing.assert_allclose(sin, expected[1][0, :, : DIM // 2], atol=5e-6)


def test_the_factor_multiplies_both_and_frequencies_may_differ_by_token():
    positions = np.array([3, 3])
    inverse = np.array([[0.5, 0.1], [0.25, 0.05]])

    cos, sin = cos_sin(positions, inverse, 2.0)

    np.testing.assert_allclose(cos, 2 * np.cos([[1.5, 0.3], [0.75, 0.15]]))
    np.testing.assert_allclose(sin, 2 * np.sin([[1.5, 0.3], [0.75, 0.15]]))


def test_queries_within_the_base_stay_and_later_ones_grow_with_their_logarithm():
    x = np.ones((3, 1, 2), np.float32)

    y = logn(x, np.array([0, 99, 9999]), base=100)

    assert y.dtype == np.float32
    np.testing.assert_allclose(y[:, 0, 0], [1, 1, math.log(10_000, 100)], rtol=1e-6)


def test_queries_of_llama_4_grow_by_a_step_per_length() -> None:
    x = np.ones((4, 1, 2))

    y = llama4_scale(x, np.array([0, 14, 15, 63]), beta=0.5, length=16, offset=1)

    np.testing.assert_allclose(y[:, 0, 0], 1 + 0.5 * np.log([1, 1, 2, 5]))
