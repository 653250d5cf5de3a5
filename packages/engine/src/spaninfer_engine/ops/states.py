"""The places of a step's recurrent states: those read before each slice, those written after it.

Index i of a sequence's table in a state group names the span that holds its state behind position
(i + 1) * span_len - 1, or as far as it was computed: the sequence's own span, which steps
overwrite, or one for a snapshot (`cache.state_table`).

    positions   start ................................... stop
                |   piece 1            | piece 2          |
    states   own span ──► snapshot at a border ──► own span, perhaps another one

So a step that reads one span and writes another copies a state for nothing: who continues from a
snapshot that others share leaves it as it is.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from spaninfer_engine.step.batch import Batch, Ints, Run


class Piece(NamedTuple):
    """Tokens [first, last) of a step, which begin with one state and leave another."""

    first: int
    last: int
    source: int | None  # the span of the state in front; None: a sequence begins, with zeros
    target: int  # the span of the state behind


class StatePieces:
    """The pieces of a step's slices per cache group; found when an operator first asks."""

    __slots__ = ("_batch", "_found", "_span_len", "_tables")

    def __init__(self, batch: Batch, tables: tuple[Ints, ...], span_len: int) -> None:
        self._batch, self._tables, self._span_len = batch, tables, span_len
        self._found: dict[int, tuple[Piece, ...]] = {}

    def __getitem__(self, group: int) -> tuple[Piece, ...]:
        """Return the pieces of a state group, slice by slice."""
        if group not in self._found:
            table = self._tables[group]
            self._found[group] = tuple(
                piece
                for run in self._batch.runs()
                for piece in pieces(run, table[run.row], self._span_len)
            )
        return self._found[group]


def pieces(run: Run, table: Ints, span_len: int) -> list[Piece]:
    """Return a slice cut where the table has a span for a snapshot."""
    final = (run.stop - 1) // span_len
    target = int(table[final])
    source = int(table[(run.start - 1) // span_len]) if run.start else None
    found, at = [], run.first
    begin = run.start // span_len
    kept = table[begin:final]
    for index in np.flatnonzero(kept != target).tolist():
        border = run.first + (begin + index + 1) * span_len - run.start
        found.append(Piece(at, border, source, int(kept[index])))
        source, at = found[-1].target, border
    found.append(Piece(at, run.last, source, target))
    return found
