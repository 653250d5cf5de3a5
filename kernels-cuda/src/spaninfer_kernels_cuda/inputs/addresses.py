"""Columns that the host fills for a step, and addresses that the kernels read. Pure.

A sequence is kept in a row: its tokens, and per cache group its span table. The columns describe
the slices of one step, in its order, in one block of int32:

    table_rows [C] | starts [C] | stops [C] | sample_positions [C] | position_deltas [C]
    | query_start_loc [C + 1] | logit_start_loc [C + 1]

Slice s computes positions [starts, stops) of the sequence in `table_rows` (-1: padding), as tokens
[query_start_loc[s], query_start_loc[s + 1]) of the step. Its last tokens, as many as
logit_start_loc counts, have logits, and from the very last one the token at `sample_positions` is
sampled (-1: none is). `stops` is also how many tokens each slice attends to. To position embeddings
its tokens are `position_deltas` further: behind media that take fewer positions than tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass, fields
from itertools import pairwise
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Columns:
    """Views of a block, with an entry per slice: of numpy where the host fills it."""

    table_rows: Any
    starts: Any
    stops: Any
    sample_positions: Any
    position_deltas: Any
    query_start_loc: Any
    logit_start_loc: Any

    @classmethod
    def of(cls, block: Any, capacity: int) -> Columns:
        """Return the columns of a block for up to `capacity` slices, an array of any framework."""
        starts = [capacity * n for n in range(6)] + [6 * capacity + 1, columns_len(capacity)]
        assert len(block) >= starts[-1], f"a block of {len(block)} words for {starts[-1]}"
        return cls(*(block[start:stop] for start, stop in pairwise(starts)))


COLUMNS: Final = len(fields(Columns))


def columns_len(capacity: int) -> int:
    """Return the words of a block for up to `capacity` slices."""
    return COLUMNS * capacity + 2


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
class Addresses:
    """Addresses that do not change from step to step; the letters are in the module's text.

    tokens[N tokens_stride] are those of all sequences, by row and position. Written are, per token,
    token_ids[T] and positions[T]; per row of logits the token's number in the step,
    logit_indices[W], its sequence, logit_rows[W] (-1: padding), how many tokens it attends to,
    logit_seq_lens[W], and for the sampler sampled_rows[W] (-1: nothing is sampled) and
    sampled_positions[W]. All are int32.
    """

    columns: int
    capacity: int
    tokens: int
    tokens_stride: int
    token_ids: int
    positions: int
    logit_indices: int
    logit_rows: int
    logit_seq_lens: int
    sampled_rows: int
    sampled_positions: int

    def words(self, groups: Sequence[Group], ropes: Sequence[Rope]) -> NDArray[np.int64]:
        """Return struct Inputs of kernel.cu as words, its groups and ropes included."""
        words = [*astuple(self), len(groups), len(ropes)]
        for group in groups:
            words += astuple(group)
        for rope in ropes:
            words += astuple(rope)
        return np.array(words, np.int64)
