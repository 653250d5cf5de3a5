"""Mixture of experts with plain torch operators: the choice per token, and the chosen MLPs."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal, Unpack

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from spaninfer_engine.ops.table import ExpertWeights
from spaninfer_engine.spec.mlp_nodes import Routing

Layout = Literal["oi", "io"]


def route(
    logits: Tensor,
    *,
    routing: Routing,
    correction: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """Return expert ids [T k] and weights [T k] of logits[T X]; see `ops.table.Ops.route`."""
    scores = logits.softmax(-1) if routing.kind == "softmax" else logits.sigmoid()
    choice = scores if correction is None else scores + correction.float()
    if routing.groups > 1:
        per_group = choice.shape[1] // routing.groups
        grouped = choice.view(len(choice), routing.groups, per_group)  # [T G X/G]
        best = 1 if routing.group_score == "max" else 2
        group_ids = grouped.topk(best, -1).values.sum(-1).topk(routing.group_topk, -1).indices
        keep = torch.zeros(grouped.shape[:2], dtype=torch.bool, device=logits.device)
        keep.scatter_(1, group_ids, True)
        choice = grouped.masked_fill(~keep[..., None], -math.inf).flatten(1)
    ids = choice.topk(routing.top_k, -1).indices
    weights = scores.gather(1, ids)
    if routing.normalise:
        weights = weights / (weights.sum(-1, keepdim=True) + 1e-20)
    return ids, weights * routing.scale


def experts(
    x: Tensor,
    ids: Tensor,
    weights: Tensor,
    *,
    gated: Callable[[Tensor, Tensor], Tensor],
    **mlps: Unpack[ExpertWeights[Tensor]],
) -> Tensor:
    """Return the weighted sum of the chosen experts' MLPs; see `ops.table.Ops.experts`.

    Expert by expert, over the tokens that chose it; `gated` is the activation of both projections.
    """
    layout, gate_up, down = mlps["layout"], mlps.get("gate_up"), mlps["down"]
    out = torch.zeros(x.shape, dtype=torch.float32, device=x.device)
    for expert in np.unique(ids.cpu().numpy()).tolist():
        token, choice = (ids == expert).nonzero(as_tuple=True)
        rows = x[token]
        if gate_up is None:
            gate, up = mlps["gate"][expert], mlps["up"][expert]
            inner = gated(F.linear(rows, gate), F.linear(rows, up))
        else:
            both = _linear(rows, gate_up[expert], layout, mlps.get("gate_up_bias"), expert)
            inner = gated(*both.chunk(2, -1))
        y = _linear(inner, down[expert], layout, mlps.get("down_bias"), expert)
        out.index_add_(0, token, y.float() * weights[token, choice, None])
    return out.to(x.dtype)


def _linear(
    x: Tensor, weight: Tensor, layout: Layout, biases: Tensor | None, expert: int
) -> Tensor:
    bias = None if biases is None else biases[expert]
    return F.linear(x, weight if layout == "oi" else weight.T, bias)
