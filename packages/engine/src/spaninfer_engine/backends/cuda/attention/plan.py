"""Attention over spans: the decodes and prefills of one step, planned once for all layers."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple, TypeAlias, TypeVar

import torch
from span_attention import BatchDecode, BatchMLA, BatchPrefill, SpanLayout, Spans, append
from torch import Tensor

from spaninfer_engine.backends.cuda.attention.expanded import (
    ExpandedPrefill,
    PromptSlices,
    are_better_expanded,
)
from spaninfer_engine.backends.cuda.attention.slices import AttentionSlices
from spaninfer_engine.backends.cuda.kernels.kernels import Kernels
from spaninfer_engine.backends.torch.attention import (
    LayerSpans,
    attend_rows,
    attend_slice,
    slopes_of,
)
from spaninfer_engine.ops.scoring import Scoring
from spaninfer_engine.ops.step import Rotation, SpanCache

Made = TypeVar("Made")
Attention: TypeAlias = BatchDecode | BatchMLA | BatchPrefill | ExpandedPrefill


class GroupCache(NamedTuple):
    """The device memory of one cache group: the layout of its spans, and those of each layer."""

    layout: SpanLayout
    spans: tuple[Spans, ...]

    @classmethod
    def at(cls, address: int, layout: SpanLayout) -> GroupCache:
        """Return the cache whose memory begins at `address`."""
        return cls(layout, tuple(Spans(address, layout, n) for n in range(layout.num_layers)))


class Plan:
    """Attention metadata that all layers of a step share.

    A kernel plans when the first layer of its group attends, on the stream of the step: a captured
    step captures its plans too, and lengths are read whenever it is replayed.
    """

    def __init__(
        self,
        slices: AttentionSlices,
        caches: tuple[SpanCache[Tensor], ...],
        groups: Mapping[int, GroupCache],
        kernels: Kernels,
    ) -> None:
        self.slices, self.groups = slices, groups
        self._caches, self._kernels = caches, kernels
        self._planned: dict[tuple[int, int, int | None, bool], tuple[Attention, ...]] = {}
        self._rotaries: dict[int, append.Rotary] = {}
        self._made: dict[Hashable, Any] = {}

    def of_logits(self, logit_indices: Tensor) -> Plan | None:
        """Return the plan of the rows wanted[W] alone; None where all rows are to be computed.

        A row gets other bits by the kernel of decodes than in its prompt, so that batches are not
        invariant, and other products.
        """
        slices = None if self._kernels.batch_invariant else self.slices.of_logits(logit_indices)
        return None if slices is None else Plan(slices, self._caches, self.groups, self._kernels)

    def once(self, key: Hashable, make: Callable[[], Made]) -> Made:
        """Return what `make` returned when this step first needed `key`."""
        if key not in self._made:
            self._made[key] = make()
        made: Made = self._made[key]
        return made

    def rotary(
        self, rotations: Sequence[Rotation[Tensor]], rope: int, interleaved: bool
    ) -> append.Rotary:
        """Return a rotary embedding of the step, as kernels take it."""
        if rope not in self._rotaries:
            cos, sin = rotations[rope]
            pointers = cos.data_ptr(), sin.data_ptr()
            self._rotaries[rope] = append.Rotary(*pointers, 2 * cos.shape[1], interleaved)
        return self._rotaries[rope]

    def attend(
        self, query: Tensor, group: int, layer: int, scoring: Scoring, sinks: Tensor | None = None
    ) -> Tensor:
        """Return what query[T H D] reads, [T H*E], by kernels of span_attention; by plain operators
        in a step some of whose rows see later ones. sinks[H] are float32.
        """
        if self.slices.until is not None:
            return self.attend_plainly(query, group, layer, scoring, sinks).flatten(1)
        group_cache, kernels = self.groups[group], self._kernels
        rows, heads, _ = query.shape
        is_mla = sinks is None and _is_mla(group_cache.layout, scoring)
        key = group, heads, scoring.window, is_mla
        planned = self._planned.get(key)
        if planned is None:
            if is_mla:
                planned = tuple(self._plan_mla(group, heads, rows))
            else:
                planned = self._plan(group, heads, scoring.window, rows)
            self._planned[key] = planned
        query = query.contiguous()
        out = kernels.empty(rows, heads * group_cache.layout.value_size)
        scores: dict[str, Any] = {}
        if not is_mla:
            slopes = None if scoring.alibi is None else _slopes(heads, scoring, query.device)
            scores = {"softcap": scoring.softcap, "alibi_slopes": slopes, "sinks": sinks}
        for attention in planned:
            attention.run(
                query.data_ptr(),
                group_cache.spans[layer],
                softmax_scale=scoring.scale,
                out=out.data_ptr(),
                stream=kernels.stream,
                **scores,
            )
        return out

    def _plan(self, group: int, heads: int, window: int | None, rows: int) -> tuple[Attention, ...]:
        slices, kernels = self.slices, self._kernels
        layout, tables, stream = self.groups[group].layout, slices.tables[group], kernels.stream
        # One kernel for both gives a row the same bits, drawn one by one or found in a prompt.
        decodes = 0 if kernels.batch_invariant else slices.num_decodes
        planned: list[Attention] = []
        if decodes:
            decode = kernels.attention.batch_decode(layout, heads)
            decode.plan(
                slices.lengths[:decodes],
                tables,
                table_rows=slices.rows[:decodes],
                window=window,
                stream=stream,
            )
            planned.append(decode)
        if len(slices.rows) > decodes:
            planned.append(self._plan_prefill(group, heads, window, rows, decodes))
        return tuple(planned)

    def _plan_prefill(
        self, group: int, heads: int, window: int | None, rows: int, decodes: int
    ) -> BatchPrefill | ExpandedPrefill:
        """Return the attention of the slices behind the decodes."""
        slices, kernels, layout = self.slices, self._kernels, self.groups[group].layout
        prompts = PromptSlices(
            slices.bounds[decodes:],
            slices.lengths[decodes:],
            slices.tables[group],
            slices.rows[decodes:],
        )
        # What a window hides may lie in spans that others have by now.
        capacity = 0 if window is not None else kernels.attention.most_expanded(layout)
        if capacity and are_better_expanded(slices.prefills, layout.span_len, capacity):
            expanded = ExpandedPrefill(kernels, layout, heads)
            expanded.plan(prompts, rows)
            return expanded
        prefill = kernels.attention.batch_prefill(layout, heads)
        prefill.plan(
            prompts.bounds,
            prompts.lengths,
            prompts.tables,
            table_rows=prompts.rows,
            num_tokens=rows,
            window=window,
            stream=kernels.stream,
        )
        return prefill

    def _plan_mla(self, group: int, heads: int, rows: int) -> Iterator[BatchMLA]:
        """Yield the latent attention of decodes, and that of longer slices."""
        decodes = 0 if self._kernels.batch_invariant else self.slices.num_decodes
        layout = self.groups[group].layout
        if decodes:
            decode = self._kernels.attention.batch_mla(layout, heads)
            yield self.plan_slices(decode, group, slice(decodes), decodes)
        if len(self.slices.rows) > decodes:
            prefill = self._kernels.attention.batch_mla(layout, heads)
            yield self.plan_slices(prefill, group, slice(decodes, None), rows)

    def plan_before(
        self, group: int, rows: int, heads: int, left_out: Sequence[int] = ()
    ) -> tuple[BatchMLA, ...]:
        """Return the latent attention of decodes, and that of longer slices to the tokens before
        their own, with log-sum-exps; slices `left_out`, counted behind decodes, read nothing.
        """
        decodes, layout = self.slices.num_decodes, self.groups[group].layout
        planned = []
        if decodes:
            decode = self._kernels.attention.batch_mla(layout, heads, lse=True)
            planned.append(self.plan_slices(decode, group, slice(decodes), decodes))
        before = self._kernels.attention.batch_mla(layout, heads, lse=True, causal=False)
        lengths = self.slices.lengths[decodes:] - self.slices.bounds[decodes:].diff()
        if left_out:
            lengths[list(left_out)] = 0
        planned.append(self.plan_slices(before, group, slice(decodes, None), rows, lengths))
        return tuple(planned)

    def plan_slices(
        self,
        attention: BatchMLA,
        group: int,
        part: slice,
        rows: int,
        lengths: Tensor | None = None,
    ) -> BatchMLA:
        """Plan for part of the slices, which see `lengths`, their own unless given."""
        slices = self.slices
        if lengths is None:
            lengths = slices.lengths[part]
        first = part.start or 0
        attention.plan(
            slices.bounds[first : first + len(lengths) + 1],
            lengths,
            slices.tables[group],
            table_rows=slices.rows[part],
            num_tokens=rows,
            stream=self._kernels.stream,
        )
        return attention

    def attend_plainly(
        self, query: Tensor, group: int, layer: int, scoring: Scoring, sinks: Tensor | None = None
    ) -> Tensor:
        """Return the same by plain torch operators."""
        slices, count = self.slices, self.slices.num_decodes
        keys, values = (part[layer] for part in self._caches[group][:2])
        tables = slices.tables[group]
        out = query.new_empty(*query.shape[:2], values.shape[-1])
        if count:
            which = slices.rows[:count], slices.lengths[:count]
            spans = LayerSpans(keys, values, tables)
            out[:count] = attend_rows(query[:count], spans, *which, scoring, sinks)
        for run in slices.prefills:
            rows = slice(run.first, run.last)
            spans = LayerSpans(keys, values, tables[run.row])
            until = None if slices.until is None else slices.until[rows]
            out[rows] = attend_slice(query[rows], spans, run, scoring, sinks, until)
        return out

    @property
    def caches(self) -> tuple[SpanCache[Tensor], ...]:
        """The spans of all cache groups, as plain operators read them."""
        return self._caches


@cache
def _slopes(heads: int, scoring: Scoring, device: torch.device) -> Tensor:
    """Return ALiBi's slopes [H]; they are kept."""
    return slopes_of(heads, device) * (scoring.scale if scoring.alibi == "scaled" else 1.0)


def _is_mla(layout: SpanLayout, scoring: Scoring) -> bool:
    """Return True for latents whose scores are dot products of queries and keys alone."""
    odd = scoring.softcap or scoring.window or scoring.alibi
    return layout.values == layout.keys and not odd
