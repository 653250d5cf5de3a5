"""A picture of the KV cache: what each span holds, and which sequence uses it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from spaninfer_engine.cache.pool import SpanState

if TYPE_CHECKING:  # API servers show the picture, and have no scheduler
    from spaninfer_engine.schedule.scheduler import Scheduler
    from spaninfer_engine.schedule.sequence import SequenceState

Cells = list[tuple[SpanState, int | None]]


@dataclass(frozen=True, slots=True)
class RunningSequence:
    """A sequence that holds spans."""

    number: int  # rising: later ones have larger numbers
    prompt_len: int
    cached_len: int  # tokens of the prompt that the prefix cache held
    output_len: int
    is_decoding: bool  # has its prompt been computed?


@dataclass(frozen=True, slots=True)
class GroupMap:
    """The spans of one cache group."""

    states: NDArray[np.uint8]  # [S] SpanState
    owners: NDArray[np.int32]  # [S] index of the newest sequence that uses it, or -1

    def cells(self, count: int) -> Cells:
        """Return at most `count` neighbourhoods of spans, each by the span in it that is most in
        use: its state, and the index of its owner.
        """
        width = -(-len(self.states) // count)
        cells: Cells = []
        for first in range(0, len(self.states), width):
            busiest = first + int(self.states[first : first + width].argmax())
            owner = int(self.owners[busiest])
            cells.append((SpanState(self.states[busiest]), None if owner < 0 else owner))
        return cells


@dataclass(frozen=True, slots=True)
class CacheMap:
    """The KV cache of an engine: sequences that run, and spans by cache group.

    Taken while the loop runs, so spans and sequences may be a step apart.
    """

    span_len: int
    running: tuple[RunningSequence, ...]
    groups: tuple[GroupMap, ...]


def cache_map_of(scheduler: Scheduler) -> CacheMap:
    """Return the map of now."""
    running, kv_cache = scheduler.running, scheduler.kv_cache
    tables = [tuple(tuple(table.spans) for table in seq.tables) for seq in running]
    groups = []
    for number, pool in enumerate(kv_cache.pools):
        owners = np.full(pool.num_spans, -1, np.int32)
        for index, spans in enumerate(tables):
            owners[list(spans[number])] = index
        states = pool.states()
        owners[states < SpanState.IN_USE] = -1  # given back since
        groups.append(GroupMap(states, owners))
    return CacheMap(kv_cache.shape.span_len, tuple(map(_running, running)), tuple(groups))


def _running(seq: SequenceState) -> RunningSequence:
    return RunningSequence(
        seq.seq_id, seq.prompt_len, seq.cached_len, len(seq.output_ids), seq.is_decoding
    )
