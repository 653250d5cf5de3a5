import math

import numpy as np
import pytest
from spaninfer_op_reference import (
    alibi_bias,
    alibi_slopes,
    attend,
    attend_part,
    attend_ragged,
    head_linear,
    merge,
)

torch = pytest.importorskip("torch", reason="torch is the second opinion")

D, E = 8, 5


def qkv(tokens, keys, heads=4, kv_heads=2, seed=0):
    rng = np.random.default_rng(seed)
    shapes = (tokens, heads, D), (keys, kv_heads, D), (keys, kv_heads, E)
    return tuple(rng.normal(size=shape) for shape in shapes)


def one_by_one(query, keys, values, query_positions, key_positions, *, window=None, cap=None):
    """Return attention by loops over tokens, heads and keys, in Python's own numbers."""
    out = np.zeros((*query.shape[:2], values.shape[-1]))
    for t, i in enumerate(query_positions):
        for h in range(query.shape[1]):
            kv = h * keys.shape[1] // query.shape[1]
            seen = [
                n
                for n, j in enumerate(key_positions)
                if j <= i and (window is None or j > i - window)
            ]
            dots = [sum(map(float, query[t, h] * keys[n, kv])) * 0.3 for n in seen]
            scores = [cap * math.tanh(dot / cap) if cap else dot for dot in dots]
            weights = [math.exp(score) for score in scores]
            rows = [weight * values[n, kv] for weight, n in zip(weights, seen, strict=True)]
            out[t, h] = sum(rows) / sum(weights)
    return out


@pytest.mark.parametrize("heads", [(4, 4), (4, 2), (7, 1)])
@pytest.mark.parametrize("window", [None, 1, 3])
@pytest.mark.parametrize("cap", [None, 2.0])
def test_attention_is_what_loops_compute(heads, window, cap):
    query, keys, values = qkv(5, 9, *heads)
    places = np.arange(4, 9), np.arange(9)

    y = attend(query, keys, values, *places, scale=0.3, window=window, softcap=cap)

    expected = one_by_one(query, keys, values, *places, window=window, cap=cap)
    np.testing.assert_allclose(y, expected, rtol=1e-12)


def test_a_whole_prompt_is_torchs_causal_attention():
    query, keys, values = qkv(20, 20)

    y = attend(query, keys, values, np.arange(20), np.arange(20), scale=0.25)

    tensors = [torch.from_numpy(x).swapaxes(0, 1) for x in (query, keys, values)]
    expected = torch.nn.functional.scaled_dot_product_attention(
        *tensors, is_causal=True, scale=0.25, enable_gqa=True
    )
    np.testing.assert_allclose(y, expected.swapaxes(0, 1), rtol=1e-12)


def test_keys_may_come_in_any_order():
    query, keys, values = qkv(3, 9)
    order = np.random.default_rng(1).permutation(9)
    places = np.arange(6, 9)

    y = attend(query, keys[order], values[order], places, order, scale=0.3, window=4)

    expected = attend(query, keys, values, places, np.arange(9), scale=0.3, window=4)
    np.testing.assert_allclose(y, expected, rtol=1e-12)


def test_float32_stays_float32_with_a_bias_in_float64():
    query, keys, values = (x.astype(np.float32) for x in qkv(2, 4))
    bias = alibi_bias(alibi_slopes(4), np.arange(4))

    y = attend(query, keys, values, np.array([2, 3]), np.arange(4), scale=0.3, bias=bias)

    assert y.dtype == np.float32


def test_a_bias_is_added_after_scale_and_cap():
    query, keys, values = qkv(1, 6)
    bias = np.full((4, 6), -np.inf)
    bias[np.arange(4), [5, 0, 3, 3]] = 7.0

    y = attend(query, keys, values, np.array([5]), np.arange(6), scale=0.3, softcap=1.0, bias=bias)

    chosen = values[[5, 0, 3, 3], [0, 0, 1, 1]]
    np.testing.assert_allclose(y[0], chosen)


@pytest.mark.parametrize("window", [None, 3])
def test_parts_merge_into_the_whole_even_where_one_sees_no_key(window):
    query, keys, values = qkv(5, 9)
    places = np.arange(4, 9)
    cuts = [slice(0, 1), slice(1, 6), slice(6, 9)]

    parts = [
        attend_part(
            *(query, keys[cut], values[cut], places, np.arange(9)[cut]), scale=0.3, window=window
        )
        for cut in cuts
    ]
    outputs, lse = (np.stack(each) for each in zip(*parts, strict=True))
    y, total = merge(outputs, lse)

    whole = attend_part(query, keys, values, places, np.arange(9), scale=0.3, window=window)
    np.testing.assert_allclose(y, whole[0], rtol=1e-12)
    np.testing.assert_allclose(total, whole[1], rtol=1e-12)
    np.testing.assert_allclose(
        whole[0], attend(query, keys, values, places, np.arange(9), scale=0.3, window=window)
    )


def test_merging_nothing_but_blind_parts_gives_zeros_and_not_nan():
    y, total = merge(np.zeros((2, 1, 1, 3)), np.full((2, 1, 1), -np.inf))

    assert y.tolist() == [[[0.0, 0.0, 0.0]]]
    assert total.tolist() == [[-math.inf]]


def test_mla_in_its_absorbed_form_is_mla():
    rng = np.random.default_rng(2)
    tokens, heads, latent, nope, rope, value = 6, 3, 10, 4, 2, 5
    c, k_rope = rng.normal(size=(tokens, latent)), rng.normal(size=(tokens, 1, rope))
    q_nope, q_rope = rng.normal(size=(tokens, heads, nope)), rng.normal(size=(tokens, heads, rope))
    key_up, value_up = (
        rng.normal(size=(heads, nope, latent)),
        rng.normal(size=(heads, latent, value)),
    )
    places = np.arange(tokens), np.arange(tokens)

    keys = np.concatenate(
        [np.einsum("hal,nl->nha", key_up, c), np.repeat(k_rope, heads, axis=1)], -1
    )
    values = np.einsum("hlb,nl->nhb", value_up, c)
    query = np.concatenate([q_nope, q_rope], -1)
    plain = attend(query, keys, values, *places, scale=0.4)

    cached = np.concatenate([c[:, None], k_rope], -1)  # one head, [latent | rope]
    absorbed = np.concatenate([head_linear(q_nope, key_up), q_rope], -1)
    read = attend(absorbed, cached, cached[..., :latent], *places, scale=0.4)

    np.testing.assert_allclose(head_linear(read, value_up), plain, rtol=1e-10)


def test_without_a_mask_every_query_sees_every_key():
    query, keys, values = qkv(6, 6)

    read = attend_ragged(query, keys, values, scale=0.3)

    positions = np.full(6, 5)  # behind all keys
    np.testing.assert_allclose(read, one_by_one(query, keys, values, positions, np.arange(6)))
