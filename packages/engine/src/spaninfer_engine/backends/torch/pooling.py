"""Pooling of one text's hidden states."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from spaninfer_engine.spec.pooling_nodes import PoolKind


def pool_text(text: Tensor, kind: PoolKind) -> Tensor:
    """Return the rows of a text[T C] as one vector [C]; see op_reference.pool."""
    match kind:
        case "cls":
            return text[0]
        case "last":
            return text[-1]
        case "max":
            return text.amax(0)
        case "mean":
            return text.mean(0)
        case "mean_sqrt":
            return text.sum(0) / math.sqrt(len(text))
        case "weighted_mean":
            weights = torch.arange(1, len(text) + 1, device=text.device, dtype=text.dtype)
            return (weights / weights.sum()) @ text
