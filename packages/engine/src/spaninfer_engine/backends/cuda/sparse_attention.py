"""Sparse attention on CUDA: the decodes and prefills of one step, by plain torch operators.

There are no kernels of our own yet; docs/decisions/0049 says which there will be.
"""

from __future__ import annotations

import torch
from torch import Tensor

from spaninfer_engine.backends.cuda.attention import Plan
from spaninfer_engine.backends.torch.sparse_attention import (
    attend_selected_rows,
    attend_selected_slice,
    select_rows,
    select_slice,
)


def select_keys(
    plan: Plan, query: Tensor, weights: Tensor, group: int, layer: int, top_k: int
) -> Tensor:
    """Return the positions[T k] of the keys that each row of a step reads, see `ops.table`.

    k depends on the spans of the tables that the step has, which the host knows.
    """
    slices, keys = plan.slices, plan.caches[group].keys[layer]
    tables, count = slices.tables[group], slices.num_decodes
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


def attend_selected(
    plan: Plan, query: Tensor, selected: Tensor, group: int, layer: int, scale: float
) -> Tensor:
    """Return what query[T H D] reads at the positions selected[T k], [T H E]."""
    slices, (keys, values) = plan.slices, (part[layer] for part in plan.caches[group][:2])
    tables, count = slices.tables[group], slices.num_decodes
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
