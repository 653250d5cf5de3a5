"""Mixture of experts: routing of tokens, and the sum of experts' results."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from spaninfer_op_reference.activation import gated, sigmoid, softmax
from spaninfer_op_reference.arrays import Floats, Ints
from spaninfer_op_reference.linear import linear
from spaninfer_op_reference.topk import topk


def route(
    logits: Floats,
    *,
    top_k: int,
    kind: str = "softmax",
    normalise: bool = False,
    scale: float = 1.0,
    groups: int = 1,
    group_topk: int = 1,
    group_score: str = "max",
    correction: Floats | None = None,
) -> tuple[Ints, Floats]:
    """Return the ids[T k] and weights[T k] of the experts that logits[T E] choose, best first.

    scores = softmax, sigmoid or sqrt(softplus) of the logits. The choice, and only the choice, sees
    scores + correction[E] (DeepSeek-V3). With groups > 1 it is made within the `group_topk` groups
    of E / groups neighbours that are best by their largest score ("max", DeepSeek-V2), or by the
    sum of their two largest ("top2", V3). The weights are the chosen scores, over their sum if
    `normalise`, times `scale`.
    """
    if kind not in _SCORES:
        raise ValueError(f"kind is {kind!r}; allowed are {', '.join(map(repr, _SCORES))}")
    scores = _SCORES[kind](logits)
    choice = scores if correction is None else scores + correction
    if groups > 1:
        choice = _within_best_groups(choice, groups, group_topk, group_score)
    ids = topk(choice, top_k)[1]
    weights = np.take_along_axis(scores, ids, -1)
    if normalise:
        weights = weights / (weights.sum(-1, keepdims=True) + 1e-20)  # sigmoids may all be 0
    return ids, weights * scale


def experts(
    x: Floats,
    gate: Floats,
    up: Floats,
    down: Floats,
    ids: Ints,
    weights: Floats,
    act: str,
    *,
    gate_up_bias: Floats | None = None,
    down_bias: Floats | None = None,
) -> Floats:
    """[T C]: the gated MLPs that ids[T k] name, summed with weights[T k].

    x[T C], gate[E I C], up[E I C], down[E C I]; the MLP of an expert is down (act(gate x) * up x),
    its matmuls plus gate_up_bias[E 2I], which is that of gate and then that of up, and
    down_bias[E C] where there are any.
    """
    y = np.zeros_like(x)
    for expert in np.unique(ids):
        tokens, choices = np.nonzero(ids == expert)
        opened, raised = linear(x[tokens], gate[expert]), linear(x[tokens], up[expert])
        if gate_up_bias is not None:
            of_gate, of_up = np.split(gate_up_bias[expert], 2)
            opened, raised = opened + of_gate, raised + of_up
        lowered = linear(gated(opened, raised, act), down[expert])
        if down_bias is not None:
            lowered = lowered + down_bias[expert]
        y[tokens] += lowered * weights[tokens, choices, None]
    return y


def _sqrt_softplus(logits: Floats) -> Floats:
    return np.sqrt(np.logaddexp(0, logits))


_SCORES: dict[str, Callable[[Floats], Floats]] = {
    "softmax": softmax,
    "sigmoid": sigmoid,
    "sqrt_softplus": _sqrt_softplus,
}


def _within_best_groups(choice: Floats, groups: int, group_topk: int, group_score: str) -> Floats:
    """[T E]: the scores of experts in the best groups, -inf elsewhere."""
    if group_score not in ("max", "top2"):
        raise ValueError(f"group_score is {group_score!r}; allowed are 'max' and 'top2'")
    grouped = choice.reshape(len(choice), groups, choice.shape[1] // groups)
    worth = topk(grouped, 1 if group_score == "max" else 2)[0].sum(-1)
    keep = np.zeros(worth.shape, np.bool_)
    np.put_along_axis(keep, topk(worth, group_topk)[1], True, -1)
    return np.where(keep[..., None], grouped, -np.inf).reshape(choice.shape)
