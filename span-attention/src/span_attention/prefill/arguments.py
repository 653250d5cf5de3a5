"""What a launch of prefill is given, as numbers: the form in which both kernels take it."""

from __future__ import annotations

from typing import NamedTuple

from span_attention.spans import Spans


class Arguments(NamedTuple):
    """Addresses and sizes of one launch; `Prepared.launch` says what they mean.

    A tuple, because a frozen dataclass takes 2 µs to make, a fifth of a launch.
    """

    out: int
    query: int
    query_stride: int
    num_rows: int
    step: tuple[int, ...]  # addresses of tables, rows, plan
    slices: int
    pack: int  # heads that share a tile
    sharers: int  # thread blocks that may share tasks, as the plan has it
    table_len: int
    spans: Spans
    scores: tuple[float, float, int]  # scale, softcap, window
    workspace: int
    alibi: int
    sinks: int
    lse: int
