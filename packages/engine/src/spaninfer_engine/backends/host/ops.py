"""The common part of the numpy backends: array duties, and operators that move numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import spaninfer_op_reference as definition
from numpy.typing import NDArray
from spaninfer_op_reference import WeightFormat

from spaninfer_engine.backends.host.states import (
    as_rows,
    convolve_pieces,
    learn_pieces,
    state_cache,
)
from spaninfer_engine.media import Levels
from spaninfer_engine.memory import HOST_SHARE, available_bytes
from spaninfer_engine.ops.bound import BoundProgram
from spaninfer_engine.ops.operation import Packable
from spaninfer_engine.ops.step import AttentionMetadata, SpanCache, Step
from spaninfer_engine.ops.table import AlibiKind, span_buffer_shape
from spaninfer_engine.spec.nodes import CacheGroup
from spaninfer_engine.spec.pooling_nodes import PoolKind
from spaninfer_engine.step.batch import Run

Array = NDArray[Any]


class HostOps:
    """The part of ops.table.Ops that is the same for every backend on numpy arrays."""

    cache_share = HOST_SHARE
    memory_errors = (MemoryError,)

    def __init__(self, dtype: Literal["float32", "float64"]) -> None:
        self.dtype: np.dtype[Any] = np.dtype(dtype)

    # ---- tensors ---------------------------------------------------------------------------------

    def chain(self, program: BoundProgram[Array]) -> BoundProgram[Array]:
        """Every kernel by itself."""
        return program

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
        """Nothing is made ready before a step calls it (`run.runner.Runner.rehearse`)."""

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

    def prepare(self, step: Step[Array]) -> None:
        """Operators read everything from the step."""

    # ---- operators that move numbers -------------------------------------------------------------

    def embed(self, step: Step[Array], *, table: Array, scale: float) -> Array:
        """Rows of the table by token id, widened."""
        x = table[step.token_ids].astype(self.dtype, copy=False)
        return x if scale == 1.0 else x * self.dtype.type(scale)

    def replace_rows(self, step: Step[Array], x: Array) -> Array:
        """Put media embeddings in place."""
        return x if step.replaced is None else definition.replace_rows(x, *step.replaced)

    def add_rows(self, step: Step[Array], x: Array, *, layer: int) -> Array:
        """Add what the step brings for this layer."""
        rows = None if step.added is None else step.added.get(layer)
        return x if rows is None else definition.add_rows(x, *rows)

    def add_types(self, step: Step[Array], x: Array, *, table: Array) -> Array:
        """Rows of the table by token type, widened."""
        types = step.attention.token_types()
        return definition.add_types(x, types, table.astype(self.dtype, copy=False))

    def learned_positions(self, step: Step[Array], *, table: Array, offset: int) -> Array:
        """Rows of the table by position."""
        rows: Array = table[step.positions[0] + offset].astype(self.dtype, copy=False)
        return rows

    def sinusoidal_positions(self, step: Step[Array], *, dim: int, offset: int) -> Array:
        """Sines and cosines of positions."""
        return definition.sinusoidal(step.positions[0] + offset, dim, self.dtype)

    def features(self, step: Step[Array]) -> Array:
        """Return the media features of the step."""
        assert step.features is not None
        return step.features

    def blended_positions(self, step: Step[Array], *, table: Array, square: int) -> Array:
        """Weighted sums of rows of the table."""
        return definition.blend_rows(table, *step.blends[square]).astype(self.dtype, copy=False)

    def learned_queries(self, step: Step[Array], *, table: Array) -> Array:
        """The table once for each slice."""
        return np.tile(table.astype(self.dtype, copy=False), (step.attention.batch.num_slices, 1))

    def join_rows(self, x: Array, *, count: int) -> Array:
        """A view of neighbouring rows side by side."""
        return definition.join_rows(x, count)

    def gather_rows(self, step: Step[Array], x: Array) -> Array:
        """Rows that get logits; without a copy where they are all rows."""
        return x if len(step.logit_indices) == len(x) else x[step.logit_indices]

    def add(self, x: Array, y: Array, *, scale: float) -> Array:
        """X + y * scale."""
        return x + y if scale == 1.0 else x + y * self.dtype.type(scale)

    def scale(self, x: Array, *, factor: float) -> Array:
        """X * factor."""
        y: Array = x * self.dtype.type(factor)
        return y

    def split(self, x: Array, *, sizes: tuple[int, ...]) -> tuple[Array, ...]:
        """Views of parts of the last axis."""
        parts, start = [], 0
        for size in sizes:
            parts.append(x[..., start : start + size])
            start += size
        return tuple(parts)

    def concat(self, x: Array, y: Array) -> Array:
        """[x | y]."""
        return np.concatenate([x, y], -1)

    def split_heads(self, x: Array, *, heads: int) -> Array:
        """A view with an axis for heads."""
        return x.reshape(len(x), heads, x.shape[-1] // heads)

    def merge_heads(self, x: Array) -> Array:
        """The heads side by side."""
        return x.reshape(len(x), math.prod(x.shape[1:]))

    def split_groups(self, x: Array, *, heads: int, kv_heads: int) -> tuple[Array, Array, Array]:
        """Per kv head its queries, key and value."""
        ratio = heads // kv_heads
        grouped = x.reshape(len(x), kv_heads, ratio + 2, x.shape[1] // (kv_heads * (ratio + 2)))
        query = grouped[:, :, :ratio].reshape(len(x), heads, grouped.shape[-1])
        return query, grouped[:, :, ratio], grouped[:, :, ratio + 1]

    def logn(self, step: Step[Array], x: Array, *, base: int) -> Array:
        """Queries beyond `base` positions grow with the logarithm of their position."""
        return definition.logn(x, step.positions[0], base)

    def llama4_scale(
        self, step: Step[Array], x: Array, *, beta: float, length: int, offset: int
    ) -> Array:
        """Queries grow by a step per `length` positions."""
        return definition.llama4_scale(x, step.positions[0], beta, length, offset)

    # ---- attention and experts -------------------------------------------------------------------

    def append(
        self,
        step: Step[Array],
        key: Array,
        value: Array | None = None,
        *,
        group: int,
        layer: int,
    ) -> None:
        """Write keys and values into the spans."""
        metadata: AttentionMetadata[Array] = step.attention
        assert metadata.slot_mapping is not None, "a model with a KV cache has slots"
        cache, slots = metadata.caches[group], metadata.slot_mapping[group]
        cache.keys[layer][slots] = key
        if value is not None:
            cache.values[layer][slots] = value

    def attend_ragged(
        self,
        step: Step[Array],
        query: Array,
        key: Array,
        value: Array,
        *,
        in_windows: bool = False,
        position_bias: Array | None = None,
        **scores: Any,
    ) -> Array:
        """Text by text."""
        out = np.empty((*query.shape[:2], value.shape[-1]), query.dtype)
        for first, last, *_ in step.attends_in(windows=in_windows).batch.runs():
            parts = (each[first:last] for each in (query, key, value))
            if position_bias is not None:
                scores["bias"] = definition.relative_position_bias(position_bias, last - first)
            out[first:last] = definition.attend_ragged(*parts, **scores)
        return out

    def cross_attend(
        self, step: Step[Array], query: Array, key: Array, value: Array, *, scale: float
    ) -> Array:
        """Frame by frame."""
        runs = step.attention.batch.runs()
        queries = np.split(query, step.attention.batch.num_slices)
        return np.concatenate(
            [
                definition.attend_ragged(
                    part, key[run.first : run.last], value[run.first : run.last], scale=scale
                )
                for part, run in zip(queries, runs, strict=True)
            ]
        )

    def convolve(
        self, step: Step[Array], x: Array, *, weight: Array, group: int, layer: int
    ) -> Array:
        """Piece by piece."""
        return convolve_pieces(step.attention, x, weight, group, layer)

    def delta_gates(
        self, a: Array, b: Array, *, a_log: Array, dt_bias: Array
    ) -> tuple[Array, Array]:
        """Decays and rates."""
        return definition.delta_gates(a, b, a_log, dt_bias)

    def delta_rule(
        self,
        step: Step[Array],
        query: Array,
        key: Array,
        value: Array,
        g: Array,
        beta: Array,
        *,
        group: int,
        layer: int,
    ) -> Array:
        """Piece by piece."""
        return learn_pieces(step.attention, (query, key, value, g, beta), group, layer)

    def pool(self, step: Step[Array], x: Array, *, kinds: tuple[PoolKind, ...]) -> Array:
        """Text by text."""
        texts = [x[run.first : run.last] for run in step.attention.batch.runs()]
        vectors = [np.stack([definition.pool(text, kind) for text in texts]) for kind in kinds]
        return np.concatenate(vectors, 1)

    def route(
        self, logits: Array, *, correction: Array | None = None, **scores: Any
    ) -> tuple[Array, Array]:
        """Choose experts."""
        return definition.route(logits, correction=correction, **scores)


def attend_by_definition(
    step: Step[Array],
    query: Array,
    group: int,
    layer: int,
    *,
    scale: float,
    softcap: float | None,
    window: int | None,
    chunked: bool,
    alibi: AlibiKind | None,
    sinks: Array | None,
) -> Array:
    """[T H E]: request by request, as spaninfer_op_reference says."""
    metadata: AttentionMetadata[Array] = step.attention
    keys, values = (part[layer] for part in metadata.caches[group][:2])
    slopes = definition.alibi_slopes(query.shape[1])
    until = metadata.until
    out = np.empty((*query.shape[:2], values.shape[-1]), query.dtype)
    for run in metadata.batch.runs():
        first, spans = _spans_of(run, metadata.tables[group][run.row], keys.shape[1], window)
        positions = np.arange(first, run.stop)
        out[run.first : run.last] = definition.attend(
            query[run.first : run.last],
            definition.gather_spans(keys, spans, len(positions)),
            definition.gather_spans(values, spans, len(positions)),
            np.arange(run.start, run.stop),
            positions,
            scale=scale,
            softcap=softcap,
            window=window,
            chunked=chunked,
            bias=_bias(alibi, slopes, positions, scale),
            sinks=sinks,
            until=None if until is None else until[run.first : run.last],
        )
    return out


def select_by_definition(
    step: Step[Array], query: Array, weights: Array, group: int, layer: int, top_k: int
) -> Array:
    """[T k]: request by request, as spaninfer_op_reference says."""
    metadata: AttentionMetadata[Array] = step.attention
    batch, keys = metadata.batch, metadata.caches[group].keys[layer]
    out = np.full((len(query), min(top_k, batch.max_seq_len)), -1, np.int32)
    for run in batch.runs():
        _, spans = _spans_of(run, metadata.tables[group][run.row], keys.shape[1], None)
        rows = slice(run.first, run.last)
        selected = definition.select_keys(
            query[rows],
            weights[rows],
            definition.gather_spans(keys, spans, run.stop)[:, 0],
            np.arange(run.start, run.stop),
            top_k,
        )
        out[rows, : selected.shape[1]] = selected
    return out


def attend_selected_by_definition(
    step: Step[Array], query: Array, selected: Array, group: int, layer: int, scale: float
) -> Array:
    """[T H E]: request by request, as spaninfer_op_reference says."""
    metadata: AttentionMetadata[Array] = step.attention
    keys, values = (part[layer] for part in metadata.caches[group][:2])
    out = np.empty((*query.shape[:2], values.shape[-1]), query.dtype)
    for run in metadata.batch.runs():
        _, spans = _spans_of(run, metadata.tables[group][run.row], keys.shape[1], None)
        rows = slice(run.first, run.last)
        out[rows] = definition.attend_selected(
            query[rows],
            definition.gather_spans(keys, spans, run.stop),
            definition.gather_spans(values, spans, run.stop),
            selected[rows],
            scale=scale,
        )
    return out


def _spans_of(run: Run, table: Array, span_len: int, window: int | None) -> tuple[int, Array]:
    """Return the first position of the spans that a run's rows see, and their numbers.

    Spans behind the window may hold another request's keys by now.
    """
    low = 0 if window is None else max(0, run.start - window + 1) // span_len
    return low * span_len, table[low : -(-run.stop // span_len)]


def _bias(kind: AlibiKind | None, slopes: Array, positions: Array, scale: float) -> Array | None:
    """[H N]: the ALiBi bias of key positions."""
    match kind:
        case None:
            return None
        case "rounded":
            return definition.falcon_alibi_bias(slopes, positions, scale)
        case "scaled":
            return definition.alibi_bias(slopes, positions) * scale
        case "plain":
            return definition.alibi_bias(slopes, positions)


def _heads(buffer: Array, span_len: int, kv_heads: int) -> Array:
    """[N S L K D] as a view of buffer[S N L*K*D]."""
    spans, layers, size = buffer.shape
    shape = (spans, layers, span_len, kv_heads, size // (span_len * kv_heads))
    heads = buffer.reshape(shape).swapaxes(0, 1)
    assert np.may_share_memory(heads, buffer)
    return heads
