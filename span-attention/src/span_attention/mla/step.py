"""Kernels and memory of a step of latent attention, over all keys or selected ones."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from spaninfer_kernel_launch import Result, ShapeError, get_gpu, prepared_once

from span_attention.layout import SpanLayout
from span_attention.mla.prepared import PreparedMLA, prepare
from span_attention.mla.tuning import Division
from span_attention.mla.variant import MLAOptions


class Heads(NamedTuple):
    """The query heads of a model, and whether several thread blocks may share a tile's keys."""

    number: int
    splits: bool


@prepared_once(256)
def kernels_for(
    options: MLAOptions, layout: SpanLayout, heads: Heads, division: Division, gpu: int
) -> PreparedMLA:
    """Return the attention of steps with this division on a GPU, compiled or cached."""
    return prepare(
        options, layout, division, heads=heads.number, gpu=get_gpu(gpu), splits=heads.splits
    )


def memory_of(
    prepared: PreparedMLA, slices: int, lines: int, *, splits: bool
) -> tuple[Result, Result]:
    """Return the plan, with the ends of its slices, and the workspace of a step of `lines` lines.

    Parts of results are kept only with `splits`.
    """
    division = prepared.division
    plan_bytes = division.words_bytes(lines, slices) + 4 * slices
    workspace_bytes = division.workspace_bytes(prepared.layout.value_size) if splits else 0
    return ("plan", (plan_bytes,), np.uint8, 16), ("workspace", (workspace_bytes,), np.uint8, 16)


def check_queries(prepared: PreparedMLA, query_stride: int) -> None:
    """Raise ShapeError unless the rows of queries, in elements, are dense."""
    dense = prepared.heads * prepared.layout.key_size
    if query_stride != dense:
        raise ShapeError(
            f"query has {query_stride} elements from row to row; latent attention takes dense "
            f"rows of {dense}"
        )
