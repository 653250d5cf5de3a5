"""The arguments of a run of prefill, common to both kernels."""

from __future__ import annotations

from typing import NamedTuple

from span_attention.spans import Spans


class Arguments(NamedTuple):
    """Addresses and sizes of one run; see `BatchPrefill`.

    A tuple, because a frozen dataclass takes 2 µs to make, a fifth of a launch.
    """

    out: int
    query: int
    query_stride: int
    num_rows: int
    span_tables: int
    table_rows: int
    plan: int
    slices: int
    pack: int  # heads that share a tile
    sharers: int  # thread blocks that may share tasks, as the plan has it
    table_stride: int
    spans: Spans
    softmax_scale: float
    softcap: float
    window: int
    workspace: int
    alibi_slopes: int
    sinks: int
    lse: int
