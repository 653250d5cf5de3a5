"""Latent attention (MLA) as one step of the program: absorbed, or by keys and values of all heads.

Absorbed, a query and a key cost 2176 operations per head; with keys and values made of the latents
640, and 262,144 once per key and head. So prompts of many new tokens read those by keys and values,
and what was cached before them, if anything, absorbed; both are merged by their log-sum-exps.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import torch
from span_attention import ArrayStrides, BatchPrefill, SpanLayout, Spans, merge
from torch import Tensor

from spaninfer_engine.backends.cuda.attention import Plan
from spaninfer_engine.backends.cuda.fusions_attention import Backend
from spaninfer_engine.backends.cuda.kernels import FORMATS, Kernels
from spaninfer_engine.backends.cuda.slices import AttentionSlices
from spaninfer_engine.ops.fuse import single, use_of
from spaninfer_engine.ops.operation import Operation
from spaninfer_engine.ops.step import Step
from spaninfer_engine.ops.table import Claim, Pack

MANY_TOKENS: Final = 256
"""New tokens of prompts from which on they are read by keys and values: 170 break even in
operations (V2 and V3), and what is made around them takes as long as 80 more."""

_SPAN_LEN: Final = 32
_PATTERN: Final = (
    *("l = head_linear n", "t = rotate r", "q = concat l t"),
    *("d = linear x", "c p = split d", "m = rms_norm c"),
    *("h = split_heads m", "e = split_heads p", "f = rotate e", "k = concat h f"),
    *("= append k", "o = attend q", "v = head_linear o", "y = merge_heads v"),
)


def claim_latent_attention(ops: Backend) -> Claim:
    """Return the claim of latent attention, from queries without positions to what heads read."""
    return Claim(
        "latent_attention",
        _PATTERN,
        "y",
        lambda taken, pack: _LatentAttention(ops, taken, pack),
        lambda taken: not ops.is_plain(taken[11]),
    )


class _LatentAttention:
    """The latent attention of one layer."""

    def __init__(self, ops: Backend, taken: Sequence[Operation], pack: Pack) -> None:
        self._kernels = ops.kernels
        self._key_up, self._rotate, self._concat = (single(each, ops, pack) for each in taken[:3])
        self._make_keys = tuple(single(each, ops, pack) for each in taken[3:10])
        self._append, self._attend, self._value_up, self._merge_heads = (
            single(each, ops, pack) for each in taken[10:]
        )
        self._ups = tuple(
            pack([use_of(each, "weight")], ops.layout("head_linear", "weight"))
            for each in (taken[0], taken[12])
        )  # [H nope latent], [H latent value]
        attention = taken[11]
        self._group, self._layer = int(attention.number("group")), int(attention.number("layer"))
        self._scale = attention.number("scale")

    def __call__(self, step: Step[Tensor], nope: Tensor, rope: Tensor, x: Tensor) -> Tensor:
        """Return what the queries nope[T H D] and rope[T H R] read, [T H*E], after the append."""
        rotated = self._rotate(step, rope)
        latent, key_rope = self._write_keys(step, x)
        plan: Plan = step.attention
        queries = _Queries(step, nope, rotated)
        if self._has_many_new_tokens(plan, len(nope)):
            read = self._by_keys(plan, queries, latent, key_rope)
        else:
            read = self._value_up(step, self._attend(step, self._absorb(queries)))
        merged: Tensor = self._merge_heads(step, read)
        return merged

    def _absorb(self, queries: _Queries) -> Tensor:
        """Return the queries as they meet latents: [W_UK^T nope | rotated]."""
        step, nope, rotated = queries
        absorbed: Tensor = self._concat(step, self._key_up(step, nope), rotated)
        return absorbed

    def _write_keys(self, step: Step[Tensor], x: Tensor) -> tuple[Tensor, Tensor]:
        """Write the latents and rotated keys of x[T C] into the spans; return them, one head."""
        linear, split, norm, split_latent, split_rope, rotate, concat = self._make_keys
        latent, rope = split(step, linear(step, x))
        latent = split_latent(step, norm(step, latent))
        rope = rotate(step, split_rope(step, rope))
        self._append(step, concat(step, latent, rope))
        return latent, rope

    def _has_many_new_tokens(self, plan: Plan, tokens: int) -> bool:
        kernels, slices = self._kernels, plan.slices
        if kernels.batch_invariant or slices.until is not None:
            return False
        if tokens - slices.num_decodes < MANY_TOKENS:
            return False
        return kernels.has_mla(plan.pools[self._group].layout)

    def _by_keys(self, plan: Plan, queries: _Queries, latent: Tensor, key_rope: Tensor) -> Tensor:
        """Return what heads read, [T H E], with keys and values of all heads for new tokens."""
        first, heads = plan.slices.num_decodes, queries.nope.shape[1]
        sizes = queries.nope.shape[2], key_rope.shape[2], self._ups[1].shape[2]
        own = plan.once(
            ("new tokens", heads), lambda: _NewTokens(plan, self._kernels, heads, sizes)
        )
        memory = own.write(latent[first:], key_rope[first:], *self._ups)
        query = torch.cat([queries.nope[first:], queries.rotated[first:]], dim=-1)
        if own.is_all:
            return own.attend(query, memory, self._scale)
        outputs = query.new_zeros(2, len(latent), heads, sizes[2])
        sums = torch.full(outputs.shape[:3], -torch.inf, device=query.device)
        own.attend(query, memory, self._scale, (outputs[1, first:], sums[1, first:]))
        absorbed = self._concat(
            queries.step, self._key_up(queries.step, queries.nope), queries.rotated
        )
        read = self._before(plan, absorbed, sums[0])
        outputs[0] = self._value_up(queries.step, read)
        merged, total = torch.empty_like(outputs[0]), torch.empty_like(sums[0])
        merge.merge(outputs, sums, out=(merged, total), stream=self._kernels.stream)
        return merged

    def _before(self, plan: Plan, query: Tensor, sums: Tensor) -> Tensor:
        """Return what query[T H D] reads of the tokens before those of prompts, and of decodes all;
        log-sum-exps to sums[T H].
        """
        pool, kernels = plan.pools[self._group], self._kernels
        query = query.contiguous()
        read = query.new_zeros(*query.shape[:2], pool.layout.value_size)
        for attention in plan.once(
            ("before", self._group, query.shape[1]),
            lambda: plan.plan_before(self._group, *query.shape[:2]),
        ):
            attention.run(
                query.data_ptr(),
                pool.spans[self._layer],
                softmax_scale=self._scale,
                out=(read.data_ptr(), sums.data_ptr()),
                stream=kernels.stream,
            )
        return read


class _Queries(NamedTuple):
    """The queries of a step, the part without positions and the rotated one."""

    step: Step[Tensor]
    nope: Tensor
    rotated: Tensor


class _NewTokens:
    """The slices of a step behind its decodes, over keys and values of their own tokens.

    These lie in memory of the step as spans of all heads: [slots H key | value], each slice from a
    multiple of a span on.
    """

    def __init__(
        self, plan: Plan, kernels: Kernels, heads: int, sizes: tuple[int, int, int]
    ) -> None:
        slices = plan.slices
        first = slices.num_decodes
        self.is_all = first == 0 and _begin_texts(slices)
        nope, rope, value = sizes
        self._nope, self._key_size, self._kernels = nope, nope + rope, kernels
        self._layout = _layout(kernels, heads, nope + rope, value)
        bounds = slices.bounds[first:] - first
        counts = bounds.diff()
        tokens = len(slices.slots[0]) - first
        ends = ((counts + _SPAN_LEN - 1) // _SPAN_LEN * _SPAN_LEN).cumsum(0, dtype=torch.int32)
        begins = torch.cat([ends.new_zeros(1), ends])
        places = torch.arange(tokens, dtype=torch.int32, device=bounds.device)
        which = torch.searchsorted(bounds[1:].contiguous(), places, right=True)
        self._slots = begins[which] + places - bounds[which]
        self._capacity = tokens + (_SPAN_LEN - 1) * len(counts)
        longest = torch.arange(-(-tokens // _SPAN_LEN), dtype=torch.int32, device=bounds.device)
        self._attention = BatchPrefill(
            self._layout, num_heads=heads, dtype=kernels.element, lse=not self.is_all
        )
        self._attention.plan(
            bounds,
            counts,
            begins[:-1, None] // _SPAN_LEN + longest,
            table_rows=torch.arange(len(counts), dtype=torch.int32, device=bounds.device),
            num_tokens=tokens,
            stream=kernels.stream,
        )

    def write(self, latent: Tensor, rope: Tensor, key_up: Tensor, value_up: Tensor) -> Tensor:
        """Return keys and values of latent[T 1 L] and rope[T 1 R] in their slots."""
        heads, nope, _ = key_up.shape
        memory = self._kernels.empty(self._capacity, heads, self._key_size + value_up.shape[2])
        latents = latent[:, 0]
        keys = torch.mm(latents, key_up.reshape(heads * nope, -1).T).view(-1, heads, nope)
        values = torch.matmul(latents, value_up).transpose(0, 1)
        memory[self._slots] = torch.cat([keys, rope.expand(-1, heads, -1), values], dim=-1)
        return memory

    def attend(
        self,
        query: Tensor,
        memory: Tensor,
        scale: float,
        out: tuple[Tensor, Tensor] | None = None,
    ) -> Tensor:
        """Return what query[T H D] reads, [T H E]; to `out` with log-sum-exps, where given."""
        read = self._kernels.empty(*query.shape[:2], self._layout.value_size)
        self._attention.run(
            query.data_ptr(),
            Spans(memory.data_ptr(), self._layout),
            softmax_scale=scale,
            out=read.data_ptr() if out is None else tuple(each.data_ptr() for each in out),
            stream=self._kernels.stream,
        )
        return read


def _begin_texts(slices: AttentionSlices) -> bool:
    """Return True if the host knows that nothing was cached before any prompt of the step."""
    return bool(slices.prefills) and all(run.start == 0 for run in slices.prefills)


def _layout(kernels: Kernels, heads: int, key_size: int, value_size: int) -> SpanLayout:
    """Return spans of [tokens heads key | value]."""
    head = (key_size + value_size) * kernels.dtype.itemsize
    span = _SPAN_LEN * heads * head
    return SpanLayout(
        span_len=_SPAN_LEN,
        kv_heads=heads,
        key_size=key_size,
        value_size=value_size,
        format=FORMATS[kernels.dtype],
        num_layers=1,
        span_stride=span,
        layer_stride=span,
        keys=ArrayStrides(0, head, heads * head),
        values=ArrayStrides(key_size * kernels.dtype.itemsize, head, heads * head),
        key_scales=None,
        value_scales=None,
    )
