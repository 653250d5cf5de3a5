"""States of linear attention on torch: their spans, and operators piece by piece, in float32."""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from spaninfer_engine.backends.torch.delta_rule import delta_rule
from spaninfer_engine.ops.states import Piece
from spaninfer_engine.ops.step import AttentionMetadata, SpanCache
from spaninfer_engine.spec.delta_nodes import StateShape


def state_cache(
    state: StateShape, shape: tuple[int, ...], device: torch.device
) -> SpanCache[Tensor]:
    """Allocate the spans [S N numbers] of a state group."""
    buffer = torch.empty(shape, dtype=torch.float32, device=device)
    cut, sizes = state.conv_numbers, (state.heads, state.key_size, state.value_size)
    inputs = torch.unflatten(buffer[..., :cut], -1, (state.inputs, state.channels))
    matrices = torch.unflatten(buffer[..., cut:], -1, sizes)
    rows = buffer.view(torch.uint8).flatten(1)
    return SpanCache(inputs.transpose(0, 1), matrices.transpose(0, 1), rows)


def convolve_pieces(
    metadata: AttentionMetadata[Tensor], x: Tensor, weight: Tensor, group: int, layer: int
) -> Tensor:
    """[T C]: every piece behind the inputs that its state keeps."""
    inputs, out = metadata.caches[group].keys[layer], torch.empty_like(x)
    taps = weight.float()[:, None]
    for first, last, source, target in _pieces(metadata, group):
        before = torch.zeros_like(inputs[target]) if source is None else inputs[source]
        rows = torch.cat([before, x[first:last].float()])
        out[first:last] = F.conv1d(rows.T, taps, groups=len(taps)).T
        inputs[target] = rows[last - first :]
    return out


def learn_pieces(
    metadata: AttentionMetadata[Tensor], operands: tuple[Tensor, ...], group: int, layer: int
) -> Tensor:
    """[T H E]: of query, key, value, g and beta, what the rule makes of every piece and a state."""
    states, out = metadata.caches[group].values[layer], torch.empty_like(operands[2])
    for first, last, source, target in _pieces(metadata, group):
        state = torch.zeros_like(states[target]) if source is None else states[source]
        query, key, value, g, beta = (each[first:last] for each in operands)
        out[first:last], states[target] = delta_rule(query, key, value, g, beta, state)
    return out


def _pieces(metadata: AttentionMetadata[Tensor], group: int) -> tuple[Piece, ...]:
    assert metadata.states is not None, "a model with states has spans for them"
    return metadata.states[group]
