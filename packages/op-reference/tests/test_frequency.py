from dataclasses import dataclass

import numpy as np
import pytest
from spaninfer_op_reference import frequencies, yarn_mscale

transformers = pytest.importorskip(
    "transformers", minversion="5.0", reason="transformers is the second opinion"
)

MAX_LEN, ORIGINAL_LEN, DIM = 4096, 1024, 32
FACTORS = tuple(np.linspace(1.0, 3.0, DIM // 2).tolist())


@dataclass(frozen=True)
class Rule:
    kind: str = "default"
    dim: int = DIM
    theta: float = 10_000.0
    max_len: int = MAX_LEN
    original_len: int = ORIGINAL_LEN
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 1.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    mscale: float | None = None
    mscale_all_dim: float | None = None
    attention_factor: float | None = None
    truncate: bool = True
    short_factors: tuple[float, ...] = ()
    long_factors: tuple[float, ...] = ()


def of_transformers(length, **scaling):
    """Return the frequencies that transformers computes for a scaling table."""
    parameters = {"rope_theta": 10_000.0, "original_max_position_embeddings": ORIGINAL_LEN}
    config = transformers.LlamaConfig(
        hidden_size=4 * DIM,
        num_attention_heads=4,
        max_position_embeddings=MAX_LEN,
        rope_parameters=parameters | scaling,
    )
    init = transformers.modeling_rope_utils.ROPE_INIT_FUNCTIONS[scaling["rope_type"]]
    inverse, factor = init(config, "cpu", seq_len=length)
    return inverse.numpy(), factor


YARN = dict(factor=4.0)
LONGROPE = dict(factor=4.0, short_factors=(1.0,) * (DIM // 2), long_factors=FACTORS)
CASES = [
    ("linear", dict(factor=8.0), 10),
    ("dynamic", dict(factor=4.0), 10),
    ("dynamic", dict(factor=4.0), 2 * MAX_LEN),
    ("llama3", dict(factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0), 10),
    ("llama3", dict(factor=16.0, low_freq_factor=1.0, high_freq_factor=1.0), 10),
    ("yarn", YARN, 10),
    ("yarn", YARN | dict(truncate=False), 10),
    ("yarn", YARN | dict(beta_fast=16.0, beta_slow=2.0), 10),
    ("yarn", YARN | dict(mscale=0.7, mscale_all_dim=1.0), 10),
    ("yarn", YARN | dict(attention_factor=1.25), 10),
    ("longrope", LONGROPE, ORIGINAL_LEN),
    ("longrope", LONGROPE, ORIGINAL_LEN + 1),
    ("longrope", LONGROPE | dict(attention_factor=1.5), 10),
]


@pytest.mark.parametrize(("kind", "fields", "length"), CASES)
def test_scaled_frequencies_are_those_of_transformers(kind, fields, length):
    inverse, factor = frequencies(Rule(kind, **fields), length)

    theirs = {"short_factors": "short_factor", "long_factors": "long_factor"}
    table = {theirs.get(name, name): value for name, value in fields.items()}
    expected, expected_factor = of_transformers(length, rope_type=kind, **table)
    assert inverse.dtype == np.float32
    np.testing.assert_allclose(inverse, expected, rtol=3e-7)
    assert factor == pytest.approx(expected_factor, rel=1e-12)


def test_the_default_is_a_geometric_series_from_one():
    inverse, factor = frequencies(Rule(theta=16.0, dim=8), 10, np.float64)

    np.testing.assert_allclose(inverse, [1, 0.5, 0.25, 0.125], rtol=1e-15)
    assert factor == 1.0


@pytest.mark.parametrize(("prompt_len", "alpha"), [(7, 1), (1024, 1), (1025, 3), (2049, 7)])
def test_qwen_1_stretches_the_slowest_frequency_by_one_less_than_a_power_of_two(prompt_len, alpha):
    plain, _ = frequencies(Rule(), prompt_len, np.float64)

    inverse, factor = frequencies(Rule("ntk_prompt"), prompt_len, np.float64)

    assert plain[-1] / inverse[-1] == pytest.approx(alpha)
    assert inverse[0] == 1.0
    assert factor == 1.0


def test_an_unknown_kind_is_named():
    with pytest.raises(ValueError, match="'spiral'"):
        frequencies(Rule("spiral"), 10)


def test_deepseeks_scale_grows_with_the_logarithm_of_the_factor():
    assert yarn_mscale(40.0, 0.707) == pytest.approx(1.2608037774058994)
    assert yarn_mscale(0.5) == 1.0
