"""Attention of prompts over a quantised KV cache on Hopper: by the kernel that reads floats.

`BatchPrefill` over codes turns every block of keys into floats once for each tile of queries, and
has no kernel of Hopper's own. Where prompts are long, each layer's keys and values are expanded
once, into memory that the next layers use again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from span_attention import BatchPrefill, SpanLayout, Spans
from torch import Tensor

from spaninfer_engine.backends.cuda.kernels.kernels import Kernels
from spaninfer_engine.step.batch import Run

_MOST_TOKENS_PER_ROW = 4  # that are expanded: beyond, reading them costs as much as it saves


class Expansion(NamedTuple):
    """The tables of the slices whose spans are expanded, `columns` each."""

    tables: Tensor  # [N M]
    rows: Tensor  # [R]
    lengths: Tensor  # [R]
    columns: int


def columns_to_expand(runs: Sequence[Run], span_len: int) -> int | None:
    """Return how many spans each of these slices gets; None where they are better read as codes.

    The host must know the slices: those of a captured step, which has none here, may become any.
    """
    columns = max((-(-run.stop // span_len) for run in runs), default=0)
    rows = sum(run.last - run.first for run in runs)
    tokens = len(runs) * columns * span_len
    return columns if 0 < tokens <= _MOST_TOKENS_PER_ROW * rows else None


class ExpandedPrefill:
    """The attention of slices to spans of codes of this layout, planned once, run per layer."""

    def __init__(
        self, kernels: Kernels, layout: SpanLayout, heads: int, asked: Expansion, bounds: Tensor
    ) -> None:
        self._kernels, self._asked = kernels, asked
        sequences = len(asked.rows)
        self._expand = kernels.attention.expansion(
            layout, sequences, asked.columns, asked.tables.stride(0)
        )
        self._prefill: BatchPrefill = kernels.attention.batch_prefill(self._expand.floats, heads)
        tables, rows = kernels.attention.expanded_tables(sequences, asked.columns)
        self._bounds, self._tables, self._rows = bounds, tables, rows

    def plan(self, num_tokens: int) -> None:
        """Divide the step's rows into tiles."""
        self._prefill.plan(
            self._bounds,
            self._asked.lengths,
            self._tables,
            table_rows=self._rows,
            num_tokens=num_tokens,
            stream=self._kernels.stream,
        )

    def run(self, query: int, spans: Spans, **given: Any) -> None:
        """Attend to a layer's spans; arguments are those of `BatchPrefill.run`."""
        kernels, asked = self._kernels, self._asked
        memory = torch.empty(self._expand.num_bytes, dtype=torch.uint8, device=kernels.device)
        arrays = asked.tables, asked.rows, asked.lengths
        floats = self._expand.launch(
            spans,
            *(array.data_ptr() for array in arrays),
            out=memory.data_ptr(),
            stream=kernels.stream,
        )
        self._prefill.run(query, floats, **given)
