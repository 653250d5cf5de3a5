"""Sparse attention on CUDA: the decodes and prefills of one step.

By kernels of span_attention for their sizes on Hopper, else by plain torch operators.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from typing import NamedTuple

import torch
from span_attention import BatchMLA, BatchSelected, Readers
from torch import Tensor

from spaninfer_engine.backends.cuda.attention.plan import GroupCache, Plan
from spaninfer_engine.backends.cuda.attention.slices import AttentionSlices
from spaninfer_engine.backends.cuda.kernels.kernels import Kernels
from spaninfer_engine.backends.torch.sparse_attention import (
    attend_selected_rows,
    attend_selected_slice,
    select_rows,
    select_slice,
)
from spaninfer_engine.ops.scoring import Scoring


class At(NamedTuple):
    """A layer of a cache group in a step, and what computes it."""

    plan: Plan
    kernels: Kernels
    group: int
    layer: int

    @property
    def cache(self) -> GroupCache:
        """The KV cache of the group."""
        return self.plan.groups[self.group]

    @property
    def tables(self) -> Tensor:
        """The span tables of the group."""
        return self.plan.slices.tables[self.group]


class Part(NamedTuple):
    """Adjacent rows of a step that one launch reads, those of `slices`.

    Where none of them sees more positions than are selected, attention is `dense`: to all of them.
    """

    rows: slice
    slices: slice
    lengths: Tensor  # [T] positions that each row sees
    readers: Readers
    dense: bool


def select_keys(at: At, query: Tensor, weights: Tensor, top_k: int) -> Tensor:
    """Return the positions[T k] of the keys that each row of a step reads, see `ops.table`.

    k depends on the spans of the tables that the step has, which the host knows.
    """
    if not at.kernels.attention.has_selection(at.cache.layout, query.shape[1]):
        return _select_plainly(at, query, weights, top_k)
    width = min(top_k, at.tables.shape[1] * at.cache.layout.span_len)
    parts = _parts(at, width)
    if any(part.dense for part in parts):
        key = "all positions", at.group, width
        out = at.plan.once(key, lambda: _all_positions(parts, len(query), width))
        if all(part.dense for part in parts):
            return out
        out = out.clone()
    else:
        out = torch.empty(len(query), width, dtype=torch.int32, device=query.device)
    for part in parts:
        if not part.dense:
            at.kernels.attention.select_keys(
                query[part.rows],
                weights[part.rows],
                at.cache.spans[at.layer],
                part.readers,
                top_k=width,
                out=out[part.rows],
            )
    return out


def attend_selected(at: At, query: Tensor, selected: Tensor, scale: float) -> Tensor:
    """Return what query[T H D] reads at the positions selected[T k], [T H E]."""
    if not at.kernels.attention.has_selected(at.cache.layout):
        return _attend_plainly(at, query, selected, scale)
    rows, heads, _ = query.shape
    top_k, size = selected.shape[1], at.cache.layout.value_size
    parts = _parts(at, top_k)
    if all(part.dense for part in parts):
        dense = at.plan.attend(query, at.group, at.layer, Scoring(scale))
        return dense.view(rows, heads, size)
    query, out = query.contiguous(), at.kernels.empty(rows, heads, size)
    spans, stream = at.cache.spans[at.layer], at.kernels.stream
    key = "selected", at.group, heads, top_k
    planned = at.plan.once(key, lambda: _planned(at, parts, query, top_k))
    for part, attention in zip(parts, planned, strict=True):
        if isinstance(attention, BatchMLA):
            whole = query.data_ptr(), spans
            attention.run(*whole, softmax_scale=scale, out=out.data_ptr(), stream=stream)
        else:
            own = query[part.rows], spans, selected[part.rows]
            attention.run(*own, softmax_scale=scale, out=out[part.rows], stream=stream)
    return out


def _planned(
    at: At, parts: tuple[Part, ...], query: Tensor, top_k: int
) -> tuple[BatchMLA | BatchSelected, ...]:
    """Return the attention of each part of a step."""
    rows, heads, _ = query.shape
    planned: list[BatchMLA | BatchSelected] = []
    for part in parts:
        if part.dense:
            dense = at.kernels.attention.batch_mla(at.cache.layout, heads)
            planned.append(at.plan.plan_slices(dense, at.group, part.slices, rows))
        else:
            batch = at.kernels.attention.batch_selected(at.cache.layout, heads)
            batch.plan(part.readers, top_k=top_k, stream=at.kernels.stream)
            planned.append(batch)
    return tuple(planned)


def _parts(at: At, top_k: int) -> tuple[Part, ...]:
    key = "parts", at.group, top_k
    span_len = at.cache.layout.span_len
    return at.plan.once(key, lambda: tuple(parts_of(at.plan.slices, at.tables, span_len, top_k)))


def parts_of(slices: AttentionSlices, tables: Tensor, span_len: int, top_k: int) -> Iterator[Part]:
    """Yield the parts of a step: its decodes, each prompt that sees more than `top_k` positions,
    and together the prompts between these that do not. tables[N M] are the spans of a cache group.
    """
    count = slices.num_decodes
    if count:
        own, lengths = slice(count), slices.lengths[:count]
        readers = Readers(tables, slices.rows[:count], lengths)
        yield Part(own, own, lengths, readers, tables.shape[1] * span_len <= top_k)
    number = count
    for dense, runs in groupby(slices.prefills, key=lambda run: run.stop <= top_k):
        group = list(runs)
        for together in [group] if dense else [[run] for run in group]:
            rows = slice(together[0].first, together[-1].last)
            part = slice(number, number + len(together))
            number += len(together)
            table_rows, lengths = _rows_of_prompts(slices, rows)
            readers = Readers(tables, table_rows, lengths, one_sequence=len(together) == 1)
            yield Part(rows, part, lengths, readers, dense)


def _rows_of_prompts(slices: AttentionSlices, rows: slice) -> tuple[Tensor, Tensor]:
    """Return the row of the span tables of each row of prompts, and how much it sees."""
    device = slices.bounds.device
    row = torch.arange(rows.start, rows.stop, dtype=torch.int32, device=device)
    # By the bounds between slices: while kernels are recorded all are 0, and rows are the last's.
    of_slice = torch.searchsorted(slices.bounds[1:-1], row, right=True)
    behind = slices.bounds[1:][of_slice] - row  # itself included
    return slices.rows[of_slice], slices.lengths[of_slice] - behind + 1


def _all_positions(parts: tuple[Part, ...], rows: int, width: int) -> Tensor:
    """Return the positions[T k] that each row of a dense part sees, and -1."""
    (first, *_) = parts
    places = torch.arange(width, dtype=torch.int32, device=first.lengths.device)
    out = places.new_full((rows, width), -1)
    for part in parts:
        if part.dense:
            out[part.rows] = places.where(places < part.lengths[:, None], -1)
    return out


# ---- plain operators -----------------------------------------------------------------------------


def _select_plainly(at: At, query: Tensor, weights: Tensor, top_k: int) -> Tensor:
    slices, keys = at.plan.slices, at.plan.caches[at.group].keys[at.layer]
    tables, count = at.tables, slices.num_decodes
    width = min(top_k, tables.shape[1] * keys.shape[1])
    out = torch.full((len(query), width), -1, dtype=torch.int32, device=query.device)
    if count:
        which = tables[slices.rows[:count]], slices.lengths[:count]
        out[:count] = select_rows(query[:count], weights[:count], keys, *which, top_k)
    for run in slices.prefills:
        rows = slice(run.first, run.last)
        selected = select_slice(query[rows], weights[rows], keys, tables[run.row], run, top_k)
        out[rows, : selected.shape[1]] = selected
    return out


def _attend_plainly(at: At, query: Tensor, selected: Tensor, scale: float) -> Tensor:
    slices = at.plan.slices
    keys, values = (part[at.layer] for part in at.plan.caches[at.group][:2])
    tables, count = at.tables, slices.num_decodes
    out = query.new_empty(*query.shape[:2], values.shape[-1])
    if count:
        which = tables[slices.rows[:count]], slices.lengths[:count], selected[:count]
        out[:count] = attend_selected_rows(query[:count], (keys, values), *which, scale)
    for run in slices.prefills:
        rows = slice(run.first, run.last)
        out[rows] = attend_selected_slice(
            query[rows], (keys, values), tables[run.row], run, selected[rows], scale
        )
    return out
