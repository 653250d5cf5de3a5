"""Copies of sequences in the memory of a device that computes by itself."""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from spaninfer_engine.step.batch import Batch
from spaninfer_engine.step.device import Updates
from spaninfer_engine.step.sampling import DeviceSamplingParams, SamplingWork
from spaninfer_engine.step.sequences import Sequences
from spaninfer_engine.step.slots import SlotAllocator

Ints = NDArray[np.int32]


class RowWriter(Protocol):
    """Writes to rows of a device before its next step, in any order: writes must not overlap."""

    def write_tokens(self, row: int, first: int, token_ids: Ints) -> None:
        """Write tokens of a row from position `first` on."""
        ...

    def write_spans(self, row: int, group: int, first: int, spans: Ints) -> None:
        """Write span numbers into a row's table from index `first` on."""
        ...

    def write_sampling(self, row: int, params: DeviceSamplingParams) -> None:
        """Write a row's sampling parameters."""
        ...


class SequenceMirror:
    """Keeps the sequences of each step in rows of a device.

    Tokens that the device samples it keeps by itself.
    """

    def __init__(self, sequences: Sequences, writer: RowWriter, num_rows: int) -> None:
        self._sequences, self._writer, self._num_rows = sequences, writer, num_rows
        self._slots = SlotAllocator(num_rows)
        self._params: dict[int, DeviceSamplingParams] = {}  # of sequences that were copied
        self._demanding: tuple[set[int], ...] = tuple(set() for _ in SamplingWork._fields)

    def sync(self, batch: Batch, updates: Updates) -> list[int]:
        """Bring the device up to date before a step; return the rows of its sequences.

        A sequence that gets a row is copied whole, others get what is new.
        """
        for seq_id in updates.finished:
            self._forget(seq_id)
        rows, placed = self._slots.place(batch.seq_ids)
        for seq_id, row in placed:
            self._copy(seq_id, row)
        whole = {seq_id for seq_id, _ in placed}
        for seq_id, group, first, spans in updates.table_updates:
            at = self._slots.find(seq_id)
            if at is not None and seq_id not in whole:
                self._writer.write_spans(at, group, first, np.array(spans, np.int32))
        for seq_id, position, token_id in updates.tokens:
            at = self._slots.find(seq_id)
            if at is not None and seq_id not in whole:
                self._writer.write_tokens(at, position, np.array([token_id], np.int32))
        return rows

    def sampling_work(self, batch: Batch) -> SamplingWork:
        """Return the work that the sequences of a step make."""
        if not any(self._demanding):
            return SamplingWork()
        ids = batch.seq_ids
        return SamplingWork(
            *(len(each.intersection(ids)) if each else 0 for each in self._demanding)
        )

    def reset(self) -> None:
        """Copy every sequence anew: writes of a step that did not take place may be lost."""
        self._slots = SlotAllocator(self._num_rows)

    def _copy(self, seq_id: int, row: int) -> None:
        sequences, writer = self._sequences, self._writer
        at = sequences.row(seq_id)
        writer.write_tokens(row, 0, sequences.tokens[at, : sequences.num_known[at]])
        for group, table in enumerate(sequences.tables):
            writer.write_spans(row, group, 0, table[at])
        writer.write_sampling(row, self._params_of(seq_id))

    def _params_of(self, seq_id: int) -> DeviceSamplingParams:
        params = self._params.get(seq_id)
        if params is None:
            sequence = self._sequences.by_id[seq_id]
            params = self._params[seq_id] = DeviceSamplingParams.of(sequence)
            for demanding, has_work in zip(self._demanding, SamplingWork.of(params), strict=True):
                if has_work:
                    demanding.add(seq_id)
        return params

    def _forget(self, seq_id: int) -> None:
        self._slots.leave(seq_id)
        self._params.pop(seq_id, None)
        for demanding in self._demanding:
            demanding.discard(seq_id)
