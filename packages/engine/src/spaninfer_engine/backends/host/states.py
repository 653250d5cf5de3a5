"""States of linear attention on numpy arrays: their spans, and operators piece by piece."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import spaninfer_op_reference as definition
from numpy.typing import NDArray

from spaninfer_engine.ops.states import Piece
from spaninfer_engine.ops.step import AttentionMetadata, SpanCache
from spaninfer_engine.spec.delta_nodes import StateShape

Array = NDArray[Any]


def state_cache(
    state: StateShape, num_spans: int, num_layers: int, dtype: np.dtype[Any]
) -> SpanCache[Array]:
    """Allocate the spans of a state group; the system gives memory when they are written."""
    buffer = np.empty((num_spans, num_layers, state.numbers), dtype)
    cut, spans = state.conv_numbers, buffer.shape[:2]
    inputs = buffer[..., :cut].reshape(*spans, state.inputs, state.channels)
    sizes = (state.heads, state.key_size, state.value_size)
    matrices = buffer[..., cut:].reshape(*spans, *sizes)
    assert np.may_share_memory(inputs, buffer) or not buffer.size
    return SpanCache(inputs.swapaxes(0, 1), matrices.swapaxes(0, 1), as_rows(buffer))


def as_rows(buffer: Array) -> NDArray[np.uint8]:
    """Return the spans of buffer[S ...] as rows of bytes [S span_bytes], in the same memory."""
    num_spans, *shape = buffer.shape
    span_bytes = math.prod(shape) * buffer.itemsize
    rows = buffer.view(np.uint8).reshape(num_spans, span_bytes)
    assert np.may_share_memory(rows, buffer) or not buffer.size
    return rows


def convolve_pieces(
    metadata: AttentionMetadata[Array], x: Array, weight: Array, group: int, layer: int
) -> Array:
    """[T C]: every piece behind the inputs that its state keeps."""
    inputs, out = metadata.caches[group].keys[layer], np.empty_like(x)
    for first, last, source, target in _pieces(metadata, group):
        before = np.zeros_like(inputs[target]) if source is None else inputs[source]
        out[first:last], inputs[target] = definition.convolve(x[first:last], weight, before)
    return out


def learn_pieces(
    metadata: AttentionMetadata[Array],
    operands: tuple[Array, ...],
    group: int,
    layer: int,
) -> Array:
    """[T H E]: of query, key, value, g and beta, what every piece reads of its state."""
    states, out = metadata.caches[group].values[layer], np.empty_like(operands[2])
    for first, last, source, target in _pieces(metadata, group):
        state = np.zeros_like(states[target]) if source is None else states[source]
        query, key, value, g, beta = (each[first:last] for each in operands)
        out[first:last], states[target] = definition.delta_rule(query, key, value, g, beta, state)
    return out


def _pieces(metadata: AttentionMetadata[Array], group: int) -> tuple[Piece, ...]:
    assert metadata.states is not None, "a model with states has spans for them"
    return metadata.states[group]
