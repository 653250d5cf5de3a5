"""The operators on plain torch: correct on every device that torch knows, fast on none.

Computes in float32, bfloat16 or float16; norms, softmax, rotations and routing in float32.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial
from typing import Unpack

import torch
import torch.nn.functional as F  # noqa: N812
from spaninfer_op_reference import CLAMP
from torch import Tensor

from spaninfer_engine.backends.rounded_weights import turned_experts
from spaninfer_engine.backends.torch import moe, text_attention
from spaninfer_engine.backends.torch.attention import LayerSpans, attend_slice
from spaninfer_engine.backends.torch.pooling import TextRows, pool_texts
from spaninfer_engine.backends.torch.sparse_attention import attend_selected_slice, select_slice
from spaninfer_engine.backends.torch.states import convolve_pieces, learn_pieces
from spaninfer_engine.backends.torch.tensors import TorchTensors
from spaninfer_engine.ops.bound import BoundProgram
from spaninfer_engine.ops.fuse import joined_linears
from spaninfer_engine.ops.scoring import RaggedScoring, Scoring
from spaninfer_engine.ops.step import AttentionMetadata, Step
from spaninfer_engine.ops.table import Claim, ExpertWeights
from spaninfer_engine.spec.attention_nodes import RopeStyle
from spaninfer_engine.spec.mlp_nodes import ActivationName, GateName, Routing
from spaninfer_engine.spec.pooling_nodes import PoolKind
from spaninfer_engine.step.batch import Run


class TorchOps(TorchTensors):
    """ops.table.Ops on torch tensors of one dtype on one device."""

    name = "torch"

    @property
    def claims(self) -> tuple[Claim, ...]:
        """Projections of one input become one."""
        experts = () if self._grid is None else (turned_experts(self),)
        return (joined_linears(self, 3), joined_linears(self, 2), *experts)

    def chain(self, program: BoundProgram[Tensor]) -> BoundProgram[Tensor]:
        """Every kernel by itself."""
        return program

    def prepare(self, step: Step[Tensor]) -> None:
        """Operators read everything from the step."""

    # ---- embedding -------------------------------------------------------------------------------

    def embed(self, step: Step[Tensor], *, table: Tensor, scale: float) -> Tensor:
        """Rows of the table by token id; the scale is rounded to the table's dtype."""
        x = F.embedding(step.token_ids, table)
        return x if scale == 1.0 else x * torch.tensor(scale, dtype=self.dtype)

    def replace_rows(self, step: Step[Tensor], x: Tensor) -> Tensor:
        """Put media embeddings in place."""
        if step.replaced is None:
            return x
        return x.index_copy(0, step.replaced.rows, step.replaced.vectors.to(self.dtype))

    def add_rows(self, step: Step[Tensor], x: Tensor, *, layer: int) -> Tensor:
        """Add what the step brings for this layer."""
        rows = None if step.added is None else step.added.get(layer)
        return x if rows is None else x.index_add(0, rows.rows, rows.vectors.to(self.dtype))

    def add_types(self, step: Step[Tensor], x: Tensor, *, table: Tensor) -> Tensor:
        """Rows of the table by token type."""
        return x + F.embedding(self.from_host(step.attention.token_types()), table)

    def learned_positions(self, step: Step[Tensor], *, table: Tensor, offset: int) -> Tensor:
        """Rows of the table by position."""
        return F.embedding(step.positions[0] + offset, table)

    def sinusoidal_positions(self, step: Step[Tensor], *, dim: int, offset: int) -> Tensor:
        """Sines and cosines of positions."""
        index = torch.arange(dim // 2, device=self.device, dtype=torch.float32)
        angles = (step.positions[0] + offset)[:, None] * torch.exp(
            index * -(math.log(10000) / (dim // 2 - 1))
        )
        return torch.cat([angles.sin(), angles.cos()], 1).to(self.dtype)

    def features(self, step: Step[Tensor]) -> Tensor:
        """Return the media features of the step, in this backend's dtype."""
        assert step.features is not None
        return step.features.to(self.dtype)

    def blended_positions(self, step: Step[Tensor], *, table: Tensor, square: int) -> Tensor:
        """Weighted sums of rows of the table, in float32."""
        rows, weights = step.blends[square]
        return (F.embedding(rows, table).float() * weights[..., None]).sum(1).to(self.dtype)

    def learned_queries(self, step: Step[Tensor], *, table: Tensor) -> Tensor:
        """The table once for each slice."""
        return table.repeat(step.attention.batch.num_slices, 1)

    def join_rows(self, x: Tensor, *, count: int) -> Tensor:
        """A view of neighbouring rows side by side."""
        return x.reshape(len(x) // count, count * x.shape[1])

    def gather_rows(self, step: Step[Tensor], x: Tensor) -> Tensor:
        """Rows that get logits; without a copy where they are all rows."""
        return x if len(step.logit_indices) == len(x) else x[step.logit_indices]

    # ---- rows ------------------------------------------------------------------------------------

    def linear(self, x: Tensor, *, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """X @ weight.T + bias."""
        return F.linear(x, weight, bias)

    def head_linear(self, x: Tensor, *, weight: Tensor) -> Tensor:
        """One matrix per head."""
        return torch.bmm(x.transpose(0, 1), weight).transpose(0, 1)

    def rms_norm(self, x: Tensor, *, weight: Tensor, eps: float, plus_one: bool) -> Tensor:
        """Over the last axis, in float32."""
        wide = x.float()
        wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
        return (wide * (weight.float() + 1.0 if plus_one else weight.float())).to(x.dtype)

    def layer_norm(
        self, x: Tensor, *, weight: Tensor, eps: float, bias: Tensor | None = None
    ) -> Tensor:
        """Over the last axis, in float32."""
        wide_bias = None if bias is None else bias.float()
        return F.layer_norm(x.float(), x.shape[-1:], weight.float(), wide_bias, eps).to(x.dtype)

    def add(self, x: Tensor, y: Tensor, *, scale: float) -> Tensor:
        """X + y * scale."""
        return torch.add(x, y, alpha=scale)

    def scale(self, x: Tensor, *, factor: float) -> Tensor:
        """X * factor."""
        return x * factor

    def softcap(self, x: Tensor, *, cap: float) -> Tensor:
        """Cap * tanh(x / cap), in float32."""
        return torch.tanh(x.float() / cap) * cap

    def activation(self, x: Tensor, *, act: ActivationName) -> Tensor:
        """act(x)."""
        match act:
            case "silu":
                return F.silu(x)
            case "gelu":
                return F.gelu(x)
            case "gelu_tanh":
                return F.gelu(x, approximate="tanh")
            case "relu":
                return F.relu(x)
            case "quick_gelu":
                return x * torch.sigmoid(1.702 * x)

    def gate(self, gate: Tensor, up: Tensor, *, act: GateName) -> Tensor:
        """act(gate) * up."""
        if act == "clamped_swiglu":
            opened = self.activation(gate.clamp(max=CLAMP), act="quick_gelu")
            return opened * (up.clamp(-CLAMP, CLAMP) + 1)
        return self.activation(gate, act=act) * up

    def sigmoid_gate(self, x: Tensor, gate: Tensor) -> Tensor:
        """X * sigmoid(gate)."""
        return x * torch.sigmoid(gate)

    def scale_rows(self, x: Tensor, factor: Tensor) -> Tensor:
        """X * factor."""
        return (x * factor).to(x.dtype)

    # ---- heads -----------------------------------------------------------------------------------

    def split(self, x: Tensor, *, sizes: tuple[int, ...]) -> tuple[Tensor, ...]:
        """Views of parts of the last axis."""
        return torch.split(x, list(sizes), -1)

    def concat(self, x: Tensor, y: Tensor) -> Tensor:
        """[x | y]."""
        return torch.cat([x, y], -1)

    def split_heads(self, x: Tensor, *, heads: int) -> Tensor:
        """A view with an axis for heads."""
        return x.reshape(len(x), heads, x.shape[-1] // heads)

    def merge_heads(self, x: Tensor) -> Tensor:
        """The heads side by side."""
        return x.flatten(1)

    def split_groups(
        self, x: Tensor, *, heads: int, kv_heads: int
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Per kv head its queries, key and value."""
        ratio = heads // kv_heads
        grouped = x.reshape(len(x), kv_heads, ratio + 2, x.shape[1] // (kv_heads * (ratio + 2)))
        query, key, value = torch.split(grouped, [ratio, 1, 1], 2)
        return query.flatten(1, 2), key.flatten(1, 2), value.flatten(1, 2)

    def rotate(self, step: Step[Tensor], x: Tensor, *, rope: int, style: RopeStyle) -> Tensor:
        """Rotate the first channels, in float32."""
        cos, sin = (part[:, None] for part in step.rotations[rope])
        width = 2 * cos.shape[-1]
        rotated, rest = x[..., :width].float(), x[..., width:]
        if style == "half":
            a, b = rotated.chunk(2, -1)
            rotated = torch.cat([a * cos - b * sin, b * cos + a * sin], -1)
        else:
            a, b = rotated[..., 0::2], rotated[..., 1::2]
            rotated = torch.stack([a * cos - b * sin, b * cos + a * sin], -1).flatten(-2)
        return torch.cat([rotated.to(x.dtype), rest], -1)

    def logn(self, step: Step[Tensor], x: Tensor, *, base: int) -> Tensor:
        """Queries beyond `base` positions grow with the logarithm of their position."""
        factor = torch.log(step.positions[0] + 1.0) / math.log(base)
        return (x * factor.clamp(min=1.0)[:, None, None]).to(x.dtype)

    def llama4_scale(
        self, step: Step[Tensor], x: Tensor, *, beta: float, length: int, offset: int
    ) -> Tensor:
        """Queries grow by a step per `length` positions."""
        steps = (step.positions[0] + offset) // length
        factor = 1 + beta * torch.log1p(steps.float())
        return (x * factor[:, None, None]).to(x.dtype)

    # ---- attention -------------------------------------------------------------------------------

    def append(
        self,
        step: Step[Tensor],
        key: Tensor,
        value: Tensor | None = None,
        *,
        group: int,
        layer: int,
    ) -> None:
        """Write keys and values into the spans."""
        step.attention.append(key, value, group=group, layer=layer)

    def attend(
        self,
        step: Step[Tensor],
        query: Tensor,
        *,
        group: int,
        layer: int,
        scoring: Scoring,
        sinks: Tensor | None = None,
    ) -> Tensor:
        """Request by request, over spans gathered into one piece."""
        metadata: AttentionMetadata[Tensor] = step.attention
        keys, values = (part[layer] for part in metadata.caches[group][:2])
        out = query.new_empty(*query.shape[:2], values.shape[-1])
        until = None if metadata.until is None else self.from_host(metadata.until)
        for run, rows, table in self._runs(metadata, group):
            ends = None if until is None else until[rows]
            out[rows] = attend_slice(
                query[rows], LayerSpans(keys, values, table), run, scoring, sinks, ends
            )
        return out

    def select_keys(
        self,
        step: Step[Tensor],
        query: Tensor,
        weights: Tensor,
        *,
        group: int,
        layer: int,
        top_k: int,
    ) -> Tensor:
        """Request by request, over spans gathered into one piece."""
        metadata: AttentionMetadata[Tensor] = step.attention
        keys = metadata.caches[group].keys[layer]
        width = min(top_k, metadata.batch.max_seq_len)
        out = torch.full((len(query), width), -1, dtype=torch.int32, device=self.device)
        for run, rows, table in self._runs(metadata, group):
            selected = select_slice(query[rows], weights[rows], keys, table, run, top_k)
            out[rows, : selected.shape[1]] = selected
        return out

    def attend_selected(
        self,
        step: Step[Tensor],
        query: Tensor,
        selected: Tensor,
        *,
        group: int,
        layer: int,
        scale: float,
    ) -> Tensor:
        """Request by request, over the keys that each row reads, gathered for it."""
        metadata: AttentionMetadata[Tensor] = step.attention
        keys, values = (part[layer] for part in metadata.caches[group][:2])
        out = query.new_empty(*query.shape[:2], values.shape[-1])
        for run, rows, table in self._runs(metadata, group):
            out[rows] = attend_selected_slice(
                query[rows], (keys, values), table, run, selected[rows], scale
            )
        return out

    def attend_ragged(
        self,
        step: Step[Tensor],
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        scoring: RaggedScoring,
        position_bias: Tensor | None = None,
    ) -> Tensor:
        """Texts of one length at a time, with torch's own attention where it has this kind."""
        out = query.new_empty(*query.shape[:2], value.shape[-1])
        starts = step.attends_in(windows=scoring.in_windows).batch.query_start_loc
        for rows in map(self.from_host, text_attention.equal_texts(starts, query.shape[1])):
            q, k, v = (each[rows] for each in (query, key, value))
            out[rows] = text_attention.attend_texts(q, k, v, scoring, position_bias)
        return out

    def _runs(
        self, metadata: AttentionMetadata[Tensor], group: int
    ) -> Iterator[tuple[Run, slice, Tensor]]:
        """Yield each slice, its rows, and the numbers of its spans."""
        for run in metadata.batch.runs():
            table = torch.from_numpy(metadata.tables[group][run.row]).to(self.device)
            yield run, slice(run.first, run.last), table

    def cross_attend(
        self, step: Step[Tensor], query: Tensor, key: Tensor, value: Tensor, *, scale: float
    ) -> Tensor:
        """Frame by frame, with torch's own attention."""
        batch = step.attention.batch
        return text_attention.cross_attend_slices(query, key, value, batch, scale)

    def convolve(
        self, step: Step[Tensor], x: Tensor, *, weight: Tensor, group: int, layer: int
    ) -> Tensor:
        """Piece by piece, in float32."""
        return convolve_pieces(step.attention, x, weight, group, layer)

    def delta_gates(
        self, a: Tensor, b: Tensor, *, a_log: Tensor, dt_bias: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Decays and rates, in float32."""
        return -a_log.exp() * F.softplus(a.float() + dt_bias), b.float().sigmoid()

    def delta_rule(
        self,
        step: Step[Tensor],
        query: Tensor,
        key: Tensor,
        value: Tensor,
        g: Tensor,
        beta: Tensor,
        *,
        group: int,
        layer: int,
    ) -> Tensor:
        """Piece by piece, in float32."""
        return learn_pieces(step.attention, (query, key, value, g, beta), group, layer)

    def pool(self, step: Step[Tensor], x: Tensor, *, kinds: tuple[PoolKind, ...]) -> Tensor:
        """All texts at once; means are summed in float32."""
        texts = TextRows.of(step.attention.batch.query_start_loc, self.from_host)
        return torch.cat([pool_texts(x, texts, kind) for kind in kinds], 1)

    # ---- experts ---------------------------------------------------------------------------------

    def router(self, x: Tensor, *, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """The scores of experts, in float32."""
        return F.linear(x.float(), weight.float(), None if bias is None else bias.float())

    def route(
        self, logits: Tensor, *, routing: Routing, correction: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Choose experts, in float32."""
        return moe.route(logits, routing=routing, correction=correction)

    def experts(
        self,
        x: Tensor,
        ids: Tensor,
        weights: Tensor,
        *,
        act: GateName,
        **mlps: Unpack[ExpertWeights[Tensor]],
    ) -> Tensor:
        """Expert by expert, over the tokens that chose it."""
        return moe.experts(x, ids, weights, gated=partial(self.gate, act=act), **mlps)
