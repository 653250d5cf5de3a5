"""Where the inputs of steps lie: columns that the host fills, addresses that kernels read. Pure.

A request is remembered in a row: its tokens, and per cache group its span numbers. The columns
describe the slices of one step, in its order, in one block of int32 that one copy takes to the GPU:

    rows [C] | starts [C] | stops [C] | draws [C] | bounds [C + 1] | wanted [C + 1]

Slice s computes positions [starts, stops) of the request in row `rows` (-1: it only pads), as rows
[bounds[s], bounds[s + 1]) of the step. Its last wanted[s + 1] - wanted[s] rows are those whose
logits are wanted, and from the very last the token for position `draws` is drawn (-1: none is).
`stops` is also how many tokens each slice attends to.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Columns:
    """Views of a block, with an entry per slice: of numpy where the host fills it."""

    rows: Any
    starts: Any
    stops: Any
    draws: Any
    bounds: Any
    wanted: Any

    @classmethod
    def of(cls, block: Any, capacity: int) -> Columns:
        """Return the columns of a block for up to `capacity` slices, an array of any framework."""
        starts = [capacity * n for n in range(5)] + [5 * capacity + 1, columns_len(capacity)]
        assert len(block) >= starts[-1], f"a block of {len(block)} words for {starts[-1]}"
        return cls(*(block[start:stop] for start, stop in pairwise(starts)))


def columns_len(capacity: int) -> int:
    """Return the words of a block for up to `capacity` slices."""
    return 6 * capacity + 2


@dataclass(frozen=True, slots=True)
class Group:
    """Addresses of one cache group: table[N stride] of span numbers, slots[T] to be written."""

    table: int
    stride: int
    slots: int
    span_len: int


@dataclass(frozen=True, slots=True)
class Rope:
    """Addresses of one rotary embedding: cosines and sines [positions half] of float32 to read,
    cosine and sine [T half] to be written.
    """

    cosines: int
    sines: int
    cosine: int
    sine: int
    half: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """Addresses that do not change from step to step; the letters are in the module's text.

    known[N stride] are tokens by row and position. Rows get token_ids[T] and position[T]; wanted
    rows get their number in the step, wanted[W], whose they are, wanted_row[W] (-1: they pad), how
    many tokens they see, wanted_len[W], and for the sampler draw_row[W] (-1: nothing is drawn) and
    draw_position[W]. All are int32.
    """

    columns: int
    capacity: int
    known: int
    stride: int
    token_ids: int
    position: int
    wanted: int
    wanted_row: int
    wanted_len: int
    draw_row: int
    draw_position: int

    def words(self, groups: Sequence[Group], ropes: Sequence[Rope]) -> NDArray[np.int64]:
        """Return what the kernels read: struct Places of kernel.cu, its groups and ropes."""
        words = [*astuple(self), len(groups), len(ropes)]
        for group in groups:
            words += astuple(group)
        for rope in ropes:
            words += astuple(rope)
        return np.array(words, np.int64)
