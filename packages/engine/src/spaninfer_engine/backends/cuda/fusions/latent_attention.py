"""Latent attention (MLA) as one step of the program: absorbed, or by keys and values of all heads.

Absorbed, a query and a key cost 2176 operations per head; with keys and values made of the latents
640, and 262,144 once per key and head. So prompts of many new tokens read those by keys and values,
and what was cached before them likewise, in chunks. What decodes and short prompts find cached they
read absorbed. The parts are merged by their log-sum-exps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, NamedTuple

import torch
from span_attention import merge
from torch import Tensor

from spaninfer_engine.backends.cuda.attention import latent_keys
from spaninfer_engine.backends.cuda.attention.latent_keys import (
    CachedTokens,
    HeadSizes,
    Latents,
    NewTokens,
    Read,
    Ups,
    chunks_of,
    long_slices,
)
from spaninfer_engine.backends.cuda.attention.plan import Plan
from spaninfer_engine.backends.cuda.fusions.attention import Backend
from spaninfer_engine.ops.fuse import single, use_of
from spaninfer_engine.ops.operation import Operation
from spaninfer_engine.ops.step import Step
from spaninfer_engine.ops.table import Claim, Pack

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
        self._ups = Ups(
            *(
                pack([use_of(each, "weight")], ops.layout("head_linear", "weight"))
                for each in (taken[0], taken[12])
            )
        )
        attention = taken[11]
        self._group, self._layer = int(attention.number("group")), int(attention.number("layer"))
        self._scale = attention.scoring().scale

    def __call__(self, step: Step[Tensor], nope: Tensor, rope: Tensor, x: Tensor) -> Tensor:
        """Return what the queries nope[T H D] and rope[T H R] read, [T H*E], after the append."""
        rotated = self._rotate(step, rope)
        latent, key_rope = self._write_keys(step, x)
        plan: Plan = step.attention
        queries = _Queries(step, nope, rotated)
        if self._has_many_new_tokens(plan, len(nope)):
            read = self._by_keys(plan, queries, Latents(latent, key_rope))
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
        if tokens - slices.num_decodes < latent_keys.MANY_TOKENS:
            return False
        return kernels.attention.has_mla(plan.groups[self._group].layout)

    def _by_keys(self, plan: Plan, queries: _Queries, latents: Latents) -> Tensor:
        """Return what heads read, [T H E], with keys and values of all heads for new tokens, and
        for what was cached before long slices.
        """
        first, sizes = plan.slices.num_decodes, self._sizes(queries, latents)
        own = plan.once(("new tokens", sizes), lambda: NewTokens(plan, self._kernels, sizes))
        new = Latents(latents.latent[first:], latents.rope[first:])
        query = torch.cat([queries.nope[first:], queries.rotated[first:]], dim=-1)
        if own.is_all:
            return own.attend(query, new, self._ups, self._scale)
        read = _Merged(queries.nope, sizes.value, self._kernels.stream)
        read.add(partial(own.attend, query, new, self._ups, self._scale), first)
        cache = plan.caches[self._group].keys[self._layer]
        for chunk in plan.once(
            ("cached tokens", self._group, sizes),
            lambda: self._chunks(plan, sizes, room=max(len(query), latent_keys.CHUNK_TOKENS)),
        ):
            read.add(partial(chunk.attend, query, cache, self._ups, self._scale), first)
        if not self._reads_all_by_keys(plan):
            read.add(partial(self._absorbed, plan, queries))
        return read.result

    def _sizes(self, queries: _Queries, latents: Latents) -> HeadSizes:
        _, heads, nope = queries.nope.shape
        return HeadSizes(heads, nope, latents.rope.shape[2], self._ups.value.shape[2])

    def _chunks(self, plan: Plan, sizes: HeadSizes, room: int) -> tuple[CachedTokens, ...]:
        """Return what was cached before long slices, in chunks of up to `room` tokens."""
        return tuple(
            CachedTokens(plan, self._kernels, sizes, self._group, pieces)
            for pieces in chunks_of(self._long(plan), room)
        )

    def _long(self, plan: Plan) -> tuple[tuple[int, int], ...]:
        return plan.once(("long slices", self._group), lambda: long_slices(plan, self._group))

    def _reads_all_by_keys(self, plan: Plan) -> bool:
        """Return True if no slice has anything left that it would read absorbed."""
        slices = plan.slices
        if slices.num_decodes or not slices.prefills:
            return False
        long = {number for number, _ in self._long(plan)}
        return all(run.start == 0 or number in long for number, run in enumerate(slices.prefills))

    def _absorbed(self, plan: Plan, queries: _Queries, part: Read) -> None:
        """Read what decodes and short slices find cached, absorbed."""
        read = self._before(plan, self._absorb(queries), part.lse)
        part.out.copy_(self._value_up(queries.step, read))

    def _before(self, plan: Plan, query: Tensor, sums: Tensor) -> Tensor:
        """Return what query[T H D] reads of all tokens of decodes, and of those cached before short
        prompts; log-sum-exps to sums[T H].
        """
        group_cache, kernels = plan.groups[self._group], self._kernels
        query, (rows, heads, _) = query.contiguous(), query.shape
        read = query.new_zeros(rows, heads, group_cache.layout.value_size)
        for attention in plan.once(
            ("before", self._group, heads),
            lambda: plan.plan_before(
                self._group, rows, heads, [number for number, _ in self._long(plan)]
            ),
        ):
            attention.run(
                query.data_ptr(),
                group_cache.spans[self._layer],
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


class _Merged:
    """The values that queries have read of all parts so far, [T H E] in float32."""

    def __init__(self, queries: Tensor, value_size: int, stream: int) -> None:
        rows, heads, _ = queries.shape
        self._like, self._stream, self._num_parts = queries, stream, 0
        shape = (2, rows, heads)
        self._outputs = queries.new_empty(*shape, value_size, dtype=torch.float32)
        self._sums = torch.empty(shape, device=queries.device)

    def add(self, attend: Callable[[Read], object], first: int = 0) -> None:
        """Merge the part that `attend` writes for the rows from `first` on; it may leave some."""
        _, rows, heads, size = self._outputs.shape
        out = self._like.new_zeros(rows, heads, size)
        sums = torch.full((rows, heads), -torch.inf, device=out.device)
        attend(Read(out[first:], sums[first:]))
        place = min(self._num_parts, 1)
        self._outputs[place], self._sums[place] = out, sums
        self._num_parts += 1
        if self._num_parts > 1:
            merged = torch.empty_like(self._outputs[0]), torch.empty_like(self._sums[0])
            merge.merge(self._outputs, self._sums, out=merged, stream=self._stream)
            self._outputs[0], self._sums[0] = merged

    @property
    def result(self) -> Tensor:
        """The whole, in the queries' type."""
        return self._outputs[0].to(self._like.dtype)
