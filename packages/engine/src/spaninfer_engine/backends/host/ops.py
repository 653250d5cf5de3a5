"""The common part of the numpy backends: operators that move numbers."""

from __future__ import annotations

import math
from dataclasses import asdict

import numpy as np
import spaninfer_op_reference as definition

from spaninfer_engine.backends.host.states import convolve_pieces, learn_pieces
from spaninfer_engine.backends.host.tensors import Array, HostTensors
from spaninfer_engine.ops.bound import BoundProgram
from spaninfer_engine.ops.scoring import RaggedScoring
from spaninfer_engine.ops.step import Step
from spaninfer_engine.spec.mlp_nodes import Routing
from spaninfer_engine.spec.pooling_nodes import PoolKind


class HostOps(HostTensors):
    """The part of ops.table.Ops that is the same for every backend on numpy arrays."""

    def chain(self, program: BoundProgram[Array]) -> BoundProgram[Array]:
        """Every kernel by itself."""
        return program

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
        step.attention.append(key, value, group=group, layer=layer)

    def attend_ragged(
        self,
        step: Step[Array],
        query: Array,
        key: Array,
        value: Array,
        *,
        scoring: RaggedScoring,
        position_bias: Array | None = None,
    ) -> Array:
        """Text by text."""
        out = np.empty((*query.shape[:2], value.shape[-1]), query.dtype)
        for first, last, *_ in step.attends_in(windows=scoring.in_windows).batch.runs():
            bias = None
            if position_bias is not None:
                bias = definition.relative_position_bias(position_bias, last - first)
            out[first:last] = definition.attend_ragged(
                *(each[first:last] for each in (query, key, value)),
                scale=scoring.scale,
                softcap=scoring.softcap,
                window=scoring.window,
                ahead=scoring.ahead,
                bias=bias,
            )
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
        self, logits: Array, *, routing: Routing, correction: Array | None = None
    ) -> tuple[Array, Array]:
        """Choose experts."""
        return definition.route(logits, correction=correction, **asdict(routing))
