"""Attention among the tokens of one text, with torch's own attention where it has this kind."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor


class TextScoring(NamedTuple):
    """Transformations of q.k before the softmax; see `ops.table.Ops.attend_ragged`."""

    scale: float
    softcap: float | None
    window: int | None
    ahead: int | None


def attend_text(
    query: Tensor, key: Tensor, value: Tensor, scoring: TextScoring, position_bias: Tensor | None
) -> Tensor:
    """Return what query[T H D] of one text reads of its keys and values [T K D], [T H E]."""
    length, ratio = len(query), query.shape[1] // key.shape[1]
    q, k, v = (each.transpose(0, 1)[None] for each in (query, key, value))
    k, v = (each.repeat_interleave(ratio, 1) for each in (k, v))
    added = _visible(length, scoring.window, scoring.ahead, query.device)
    if position_bias is not None:
        added = _biases(position_bias.to(q.dtype), length, added)
    if scoring.softcap is None:
        read = F.scaled_dot_product_attention(q, k, v, added, scale=scoring.scale)
    else:
        scores = torch.tanh((q.float() @ k.float().mT) * (scoring.scale / scoring.softcap))
        scores = scores * scoring.softcap
        if added is not None:
            scores = _masked(scores, added)
        read = (scores.softmax(-1) @ v.float()).to(v.dtype)
    return read[0].transpose(0, 1)


def _visible(
    length: int, window: int | None, ahead: int | None, device: torch.device
) -> Tensor | None:
    """[T T]: which tokens each one of a text sees; None: all of them."""
    if window is None and ahead is None:
        return None
    places = torch.arange(length, device=device)
    behind = places[:, None] - places
    visible = torch.ones_like(behind, dtype=torch.bool)
    if window is not None:
        visible &= behind < window
    if ahead is not None:
        visible &= behind >= -ahead
    return visible


def _biases(position_bias: Tensor, length: int, visible: Tensor | None) -> Tensor:
    """[H T T]: the biases of scores, -inf where a token does not see the other."""
    reach = position_bias.shape[1] // 2
    places = torch.arange(length, device=position_bias.device)
    distances = (places - places[:, None]).clamp(-reach, reach)
    biases = position_bias[:, reach + distances]
    return biases if visible is None else biases.masked_fill(~visible, -math.inf)


def _masked(scores: Tensor, mask: Tensor) -> Tensor:
    """[1 H T T]: scores with biases added, or -inf where the mask is False."""
    return scores.masked_fill(~mask, -math.inf) if mask.dtype == torch.bool else scores + mask
