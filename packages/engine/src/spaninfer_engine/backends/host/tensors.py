"""Numpy arrays as tensors of a backend: weights, spans, slots."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import spaninfer_op_reference as definition
from numpy.typing import NDArray
from spaninfer_op_reference import WeightFormat

from spaninfer_engine.backends.host.states import as_rows, state_cache
from spaninfer_engine.backends.host_memory import HOST_SHARE, available_bytes
from spaninfer_engine.ops.operation import Packable
from spaninfer_engine.ops.step import SpanCache
from spaninfer_engine.ops.tensors import span_buffer_shape
from spaninfer_engine.request.media import Levels
from spaninfer_engine.spec.nodes import CacheGroup

Array = NDArray[Any]


class HostTensors:
    """The memory of a backend whose operators compute with numpy arrays."""

    cache_share = HOST_SHARE
    memory_errors = (MemoryError,)

    def __init__(self, dtype: Literal["float32", "float64"]) -> None:
        self.dtype: np.dtype[Any] = np.dtype(dtype)

    def layout(self, operator: str, argument: str) -> str:  # noqa: ARG002
        """Tables of which a step reads a few rows stay as they are stored; the rest is widened."""
        return "stored" if argument == "table" else "wide"

    def expanded_layout(self, layout: str) -> str:
        """Layouts differ in how numbers lie."""
        return layout

    def coded_layout(self, layout: str) -> str:
        """Nothing is computed with codes."""
        return layout

    def pack(self, arrays: Sequence[Packable], layout: str) -> Array:
        """Return the array in a layout; without a copy where it already has it."""
        array = np.asarray(arrays[0]) if len(arrays) == 1 else np.concatenate(arrays)
        if layout == "stored":
            return array
        return np.require(array, self.dtype, ["C", "ALIGNED"])

    def quantized_packer(self, formats: Sequence[WeightFormat], layout: str) -> Any:  # noqa: ARG002
        """None: the definitions compute with expanded weights."""
        return None

    def cache(self, group: CacheGroup, num_spans: int, span_len: int) -> SpanCache[Array]:
        """Allocate the spans of a cache group; the system gives memory when spans are written."""
        if group.state is not None:
            return state_cache(group.state, num_spans, len(group.layers), self.dtype)
        buffer = np.empty(span_buffer_shape(group, num_spans, span_len), self.dtype)
        cut = span_len * group.kv_heads * group.key_size
        keys = _heads(buffer[..., :cut], span_len, group.kv_heads)
        rows = as_rows(buffer)
        if group.values_in_keys:
            return SpanCache(keys, keys[..., : group.value_size], rows)
        return SpanCache(keys, _heads(buffer[..., cut:], span_len, group.kv_heads), rows)

    def host_slots(self, cache: SpanCache[Array], num_slots: int) -> Array:
        """Allocate slots; the system gives memory when they are written."""
        return np.empty((num_slots, cache.rows.shape[1]), np.uint8)

    def from_host(self, array: Array) -> Array:
        """Indices as they are, floating-point numbers in the dtype of this backend."""
        return array.astype(self.dtype, copy=False) if array.dtype.kind == "f" else array

    def from_levels(self, codes: NDArray[np.uint8], levels: Levels) -> Array:
        """Return the numbers that bytes of patches stand for."""
        return self.from_host(levels.numbers(codes))

    def end_packing(self) -> None:
        """Packing takes nothing beside the weights."""

    def warm(self) -> None:
        """Nothing is shared: what a step needs is made ready by the first one (`warm_up`)."""

    def available_bytes(self) -> int:
        """Return what this process can take without pushing others out."""
        return available_bytes()

    def to_host(self, array: Array) -> NDArray[np.float32]:
        """Return the array as float32."""
        return array.astype(np.float32, copy=False)

    def take_rows(self, x: Array, rows: Array) -> Array:
        """Return a copy of these rows."""
        return x[rows]

    def stack_rows(self, parts: Sequence[Array]) -> Array:
        """Return the rows of all parts."""
        return np.concatenate(parts)

    def mix_rows(self, x: Array, rows: Array, weights: NDArray[np.float32]) -> Array:
        """Return weighted sums."""
        return definition.blend_rows(x, rows, weights.astype(x.dtype, copy=False))


def _heads(buffer: Array, span_len: int, kv_heads: int) -> Array:
    """[N S L K D] as a view of buffer[S N L*K*D]."""
    spans, layers, size = buffer.shape
    shape = (spans, layers, span_len, kv_heads, size // (span_len * kv_heads))
    heads = buffer.reshape(shape).swapaxes(0, 1)
    assert np.may_share_memory(heads, buffer)
    return heads
