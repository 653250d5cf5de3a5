"""Attention without a KV cache, with torch's own where it has this kind: among the tokens of texts
of one length, and of queries to the rows of their slice.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from numpy.typing import NDArray
from torch import Tensor

from spaninfer_engine.ops.scoring import RaggedScoring
from spaninfer_engine.step.batch import Batch

MAX_SCORES = 1 << 27
"""Scores of texts that are computed at once: 512 MiB where they are held in float32."""


def equal_texts(starts: NDArray[np.int32], heads: int) -> Iterator[NDArray[np.int32]]:
    """Yield the rows [N L] of texts of one length, as many at once as `MAX_SCORES` allow.

    Text r is the rows starts[r] .. starts[r + 1]; those without rows are left out.
    """
    lengths = np.diff(starts)
    for length in np.unique(lengths[lengths > 0]).tolist():
        first = starts[:-1][lengths == length]
        most = max(1, MAX_SCORES // (heads * length * length))
        for begin in range(0, len(first), most):
            rows: NDArray[np.int32] = first[begin : begin + most, None] + np.arange(
                length, dtype=np.int32
            )
            yield rows


def attend_texts(
    query: Tensor, key: Tensor, value: Tensor, scoring: RaggedScoring, position_bias: Tensor | None
) -> Tensor:
    """Return what query[N L H D] of N texts reads of their keys and values [N L K D], [N L H E]."""
    length, ratio = query.shape[1], query.shape[2] // key.shape[2]
    q, k, v = (each.transpose(1, 2) for each in (query, key, value))
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
    return read.transpose(1, 2)


def cross_attend_slices(
    query: Tensor, key: Tensor, value: Tensor, batch: Batch, scale: float
) -> Tensor:
    """Return what query[W H D], as many for each slice, reads of key[T H D] and value[T H E] of
    the slice's rows, [W H E].
    """
    read = []
    for part, run in zip(query.chunk(batch.num_slices), batch.runs(), strict=True):
        rows = slice(run.first, run.last)
        q, k, v = (each.transpose(0, 1)[None] for each in (part, key[rows], value[rows]))
        made = F.scaled_dot_product_attention(q, k, v, scale=scale)
        read.append(made[0].transpose(0, 1))
    return torch.cat(read)


def _visible(
    length: int, window: int | None, ahead: int | None, device: torch.device
) -> Tensor | None:
    """[L L]: which tokens each one of a text sees; None: all of them."""
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
    """[H L L]: the biases of scores, -inf where a token does not see the other."""
    reach = position_bias.shape[1] // 2
    places = torch.arange(length, device=position_bias.device)
    distances = (places - places[:, None]).clamp(-reach, reach)
    biases = position_bias[:, reach + distances]
    return biases if visible is None else biases.masked_fill(~visible, -math.inf)


def _masked(scores: Tensor, mask: Tensor) -> Tensor:
    """[N H L L]: scores with biases added, or -inf where the mask is False."""
    return scores.masked_fill(~mask, -math.inf) if mask.dtype == torch.bool else scores + mask
