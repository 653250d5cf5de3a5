"""The gated delta rule (Yang et al. 2024, arXiv 2412.06464, equation 10), and what comes before.

A value head keeps a matrix S [D E] in place of keys and values. Per token, with a decay exp(g) and
a rate beta in (0, 1), and with q and k of unit length:

    S <- exp(g) S
    S <- S + k (beta (v - S^T k))^T      what S says of k becomes v, by beta
    o  = S^T q / sqrt(D)

Letters: T tokens of one sequence, C channels, n taps, K heads of queries and keys, H of values, D
and E the size of a key and a value.
"""

from __future__ import annotations

import numpy as np

from spaninfer_op_reference.activation import sigmoid
from spaninfer_op_reference.arrays import Floats

UNIT_EPS = 1e-6
"""What is added to the sum of squares of a query or a key before it is divided by its length."""


def convolve(x: Floats, weight: Floats, before: Floats) -> tuple[Floats, Floats]:
    """Return the causal convolution [T C] of x[T C] by weight[C n], and the last n - 1 inputs.

    before[n-1 C] are the inputs in front of x: y[t] sums weight[:, i] * input[t - (n - 1) + i].
    """
    taps = weight.shape[1]
    inputs = np.concatenate([before.astype(x.dtype, copy=False), x])
    y = np.zeros_like(x)
    for tap in range(taps):
        y += inputs[tap : tap + len(x)] * weight[:, tap]
    return y, inputs[len(x) :]


def delta_gates(a: Floats, b: Floats, a_log: Floats, dt_bias: Floats) -> tuple[Floats, Floats]:
    """Return g = -exp(a_log) * softplus(a + dt_bias) and beta = sigmoid(b), all [T H]."""
    g: Floats = -np.exp(a_log) * np.logaddexp(0, a + dt_bias)
    return g, sigmoid(b)


def unit_rows(x: Floats) -> Floats:
    """Return x over its length along the last axis."""
    y: Floats = x / np.sqrt((x * x).sum(-1, keepdims=True) + UNIT_EPS)
    return y


def delta_rule(
    query: Floats, key: Floats, value: Floats, g: Floats, beta: Floats, state: Floats
) -> tuple[Floats, Floats]:
    """Return o[T H E] and the state[H D E] behind it, token by token from state[H D E].

    query[T K D] and key[T K D] are made unit here; value head h reads key head h // (H / K).
    value[T H E], g[T H], beta[T H].
    """
    ratio = value.shape[1] // key.shape[1]
    query, key = (np.repeat(unit_rows(each), ratio, axis=1) for each in (query, key))
    scale, state = query.shape[-1] ** -0.5, state.copy()
    out = np.empty_like(value)
    for t in range(len(value)):
        state *= np.exp(g[t])[:, None, None]
        known = np.einsum("hde,hd->he", state, key[t])
        state += np.einsum("hd,he->hde", key[t], beta[t][:, None] * (value[t] - known))
        out[t] = np.einsum("hde,hd->he", state, query[t]) * scale
    return out, state
