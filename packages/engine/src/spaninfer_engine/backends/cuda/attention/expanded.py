"""Attention of prompts over a quantised KV cache on Hopper: by the kernel that reads floats.

`BatchPrefill` over codes turns every block of keys into floats once for each tile of queries, and
has no kernel of Hopper's own. So each layer's keys and values are expanded once, into memory that
all layers and steps share. Which spans those are is found on the device: steps that are captured
into graphs do so, too, if the spans of a step fit (`CudaDevice`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from span_attention import BatchPrefill, SpanLayout, Spans, expand
from torch import Tensor

from spaninfer_engine.backends.cuda.kernels.kernels import Kernels
from spaninfer_engine.step.batch import Batch, Run

# Of a slice, on average. Expanding a token takes 1 ns, and spares each row that reads it 0.08 ns
# (28/4 heads, H200, 2026-11-30; docs/measurements/gpu-prefill-attention.md): 12 rows break even.
_FEWEST_ROWS = 16


class PromptSlices(NamedTuple):
    """The R slices behind a step's decodes; all int32."""

    bounds: Tensor  # [R + 1] where the rows of each begin
    lengths: Tensor  # [R] positions that the last row sees
    tables: Tensor  # [N M] spans
    rows: Tensor  # [R] row of the tables


def spans_of_prompts(batch: Batch, span_len: int) -> int:
    """Return how many spans the slices behind the decodes have in all, in each cache group."""
    stops = batch.stops[batch.num_decodes :]
    return int((-(-stops // span_len)).sum()) if len(stops) else 0


def are_better_expanded(runs: Sequence[Run], span_len: int, capacity: int) -> bool:
    """Return True if slices are better read as floats, and there is room for their spans.

    The host does not know those of a captured step, which is replayed where there is room.
    """
    spans = sum(-(-run.stop // span_len) for run in runs)
    rows = sum(run.last - run.first for run in runs)
    return spans <= capacity and rows >= _FEWEST_ROWS * len(runs)


class ExpandedPrefill:
    """The attention of slices to spans of codes of this layout, planned once, run per layer."""

    def __init__(self, kernels: Kernels, layout: SpanLayout, heads: int) -> None:
        self._kernels = kernels
        self._room = kernels.attention.expanded_room(layout)
        self._expand = kernels.attention.expansion(layout)
        self._prefill: BatchPrefill = kernels.attention.batch_prefill(self._expand.floats, heads)
        self._plan = torch.empty(1 + self._room.capacity, dtype=torch.int32, device=kernels.device)

    def plan(self, slices: PromptSlices, num_tokens: int) -> None:
        """Find the spans of slices, and divide the step's rows into tiles."""
        room, stream, begins = self._room, self._kernels.stream, torch.empty_like(slices.rows)
        sequences = expand.Sequences(
            span_tables=slices.tables.data_ptr(),
            table_rows=slices.rows.data_ptr(),
            seq_lens=slices.lengths.data_ptr(),
            num_sequences=len(slices.rows),
            table_stride=slices.tables.stride(0),
        )
        out = self._plan.data_ptr(), begins.data_ptr()
        self._expand.plan(sequences, capacity=room.capacity, out=out, stream=stream)
        self._prefill.plan(
            slices.bounds,
            slices.lengths,
            room.tables,
            table_rows=begins,
            num_tokens=num_tokens,
            stream=stream,
        )

    def run(self, query: int, spans: Spans, **given: Any) -> None:
        """Attend to a layer's spans; arguments are those of `BatchPrefill.run`."""
        floats = self._expand.launch(
            spans,
            self._plan.data_ptr(),
            out=self._room.memory.data_ptr(),
            stream=self._kernels.stream,
        )
        self._prefill.run(query, floats, **given)
