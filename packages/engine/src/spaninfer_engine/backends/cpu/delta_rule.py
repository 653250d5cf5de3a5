"""The gated delta rule as products of matrices, one per head: a token, or a chunk of them.

Within a chunk, with G the sums of decays g up to each token, S the state in front, and L the rows
below the diagonal,

    (1 + L[beta exp(G_t - G_i) k_t.k_i]) U = beta (V - exp(G) K S)
    O = exp(G) Q S + (exp(G_t - G_i) q_t.k_i for i <= t) U
    S <- exp(G_last) S + (exp(G_last - G) K)^T U

U are the values that the rule writes for each key, which the recursion of the definition
(spaninfer_op_reference.delta_rule) gives one by one (Yang et al. 2024, section 3.3).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from spaninfer_op_reference import unit_rows

Array = NDArray[Any]

CHUNK = 64  # tokens: the work within a chunk grows with its square, that between chunks does not


def delta_rule_of_token(
    query: Array, key: Array, value: Array, g: Array, beta: Array, state: Array
) -> tuple[Array, Array]:
    """Return o[1 H E] and the state[H D E] behind it, by the formulas of the definition."""
    ratio, scale = value.shape[1] // key.shape[1], query.shape[-1] ** -0.5
    query, key = (np.repeat(unit_rows(each[0]), ratio, axis=0)[:, None] for each in (query, key))
    state = state * np.exp(g[0])[:, None, None]
    state += key.swapaxes(1, 2) * (beta[0][:, None, None] * (value[0][:, None] - key @ state))
    return (query @ state)[None, :, 0] * scale, state


def delta_rule_in_chunks(
    query: Array, key: Array, value: Array, g: Array, beta: Array, state: Array
) -> tuple[Array, Array]:
    """Return o[T H E] and the state[H D E] behind it; see spaninfer_op_reference.delta_rule."""
    ratio, scale = value.shape[1] // key.shape[1], query.shape[-1] ** -0.5
    # Heads first: products of matrices, one per head.
    query, key = (np.repeat(unit_rows(each).swapaxes(0, 1), ratio, axis=0) for each in (query, key))
    heads, g, beta = value.swapaxes(0, 1), g.T, beta.T
    out = np.empty_like(value)
    for first in range(0, len(value), CHUNK):
        part = slice(first, first + CHUNK)
        made, state = _chunk(
            query[:, part] * scale, key[:, part], heads[:, part], g[:, part], beta[:, part], state
        )
        out[part] = made.swapaxes(0, 1)
    return out, state


def _chunk(
    query: Array, key: Array, value: Array, g: Array, beta: Array, state: Array
) -> tuple[Array, Array]:
    sums = np.cumsum(g, -1)  # [H t]
    count = sums.shape[1]
    between = sums[:, :, None] - sums[:, None, :]
    below = np.tri(count, dtype=bool)
    decay = np.exp(np.where(below, between, -np.inf))  # [H t i], zero above the diagonal
    since = np.exp(sums)[..., None]
    system = beta[..., None] * decay * (key @ key.swapaxes(1, 2))
    system[:, ~np.tri(count, k=-1, dtype=bool)] = 0
    written = np.linalg.solve(
        system + np.eye(count, dtype=g.dtype), beta[..., None] * (value - since * (key @ state))
    )
    out = since * (query @ state) + (decay * (query @ key.swapaxes(1, 2))) @ written
    last = sums[:, -1:, None]
    key = key * np.exp(last - sums[..., None])
    return out, np.exp(last) * state + key.swapaxes(1, 2) @ written
