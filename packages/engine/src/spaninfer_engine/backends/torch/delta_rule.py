"""The gated delta rule on torch: a token by the formula, more of them in chunks.

See spaninfer_kernels_cpu/delta_rule/chunk.py for the formulas of a chunk, and
spaninfer_op_reference.delta_rule for what they compute. Everything is computed in float32, in which
states are kept.
"""

from __future__ import annotations

import torch
from spaninfer_op_reference import UNIT_EPS
from torch import Tensor

CHUNK = 64  # tokens


def delta_rule(
    query: Tensor, key: Tensor, value: Tensor, g: Tensor, beta: Tensor, state: Tensor
) -> tuple[Tensor, Tensor]:
    """Return o[T H E] and the state[H D E] behind it, in float32."""
    ratio, scale = value.shape[1] // key.shape[1], query.shape[-1] ** -0.5
    query, key = (
        _unit(each.float()).transpose(0, 1).repeat_interleave(ratio, 0) for each in (query, key)
    )
    query, value, g, beta = query * scale, value.float().transpose(0, 1), g.T, beta.T
    made: list[Tensor] = []
    compute = _token if g.shape[1] == 1 else _chunk
    for first in range(0, g.shape[1], CHUNK):
        part = slice(first, first + CHUNK)
        out, state = compute(
            query[:, part], key[:, part], value[:, part], g[:, part], beta[:, part], state
        )
        made.append(out)
    return torch.cat(made, 1).transpose(0, 1), state


def _unit(x: Tensor) -> Tensor:
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + UNIT_EPS)


def _token(
    query: Tensor, key: Tensor, value: Tensor, g: Tensor, beta: Tensor, state: Tensor
) -> tuple[Tensor, Tensor]:
    state = state * g.exp()[..., None]
    state = state + key.mT @ (beta[..., None] * (value - key @ state))
    return query @ state, state


def _chunk(
    query: Tensor, key: Tensor, value: Tensor, g: Tensor, beta: Tensor, state: Tensor
) -> tuple[Tensor, Tensor]:
    sums = g.cumsum(-1)
    above = torch.ones(2 * sums.shape[1:], dtype=torch.bool, device=g.device).triu(1)
    between = (sums[:, :, None] - sums[:, None, :]).masked_fill(above, -torch.inf)
    decay, since = between.exp(), sums.exp()[..., None]
    written = torch.linalg.solve_triangular(
        beta[..., None] * decay * (key @ key.mT),  # of which the rows below the diagonal are read
        beta[..., None] * (value - since * (key @ state)),
        upper=False,
        unitriangular=True,
    )
    out = since * (query @ state) + (decay * (query @ key.mT)) @ written
    last = sums[:, -1:, None]
    return out, last.exp() * state + (key * (last - sums[..., None]).exp()).mT @ written
