"""Deadlines of sequences, soonest first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from heapq import heapify, heappop, heappush

from spaninfer_engine.schedule.sequence import SequenceState

_FEW = 100  # are kept, of all clients together


class Deadlines:
    """The deadlines of `seqs`, which are all that have not ended, by sequence id."""

    def __init__(self, seqs: Mapping[int, SequenceState]) -> None:
        self._seqs = seqs
        self._heap: list[tuple[float, int]] = []  # time, sequence id

    def __len__(self) -> int:
        """Return how many are kept."""
        return len(self._heap)

    def add(self, seqs: Sequence[SequenceState]) -> None:
        """Note when the sequences of a request must have ended, if the request says so."""
        deadline_s = seqs[0].request.placement.deadline_s
        if deadline_s is None:
            return
        self._forget_ended()
        for seq in seqs:
            heappush(self._heap, (seq.request.arrived_s + deadline_s, seq.seq_id))

    def take_due(self, now: float) -> list[int]:
        """Return the ids of those whose time has come, once; some may have ended."""
        due = []
        while self._heap and self._heap[0][0] <= now:
            due.append(heappop(self._heap)[1])
        return due

    def _forget_ended(self) -> None:
        """Drop those of sequences that have ended, once they are the most of them."""
        if len(self._heap) > 2 * len(self._seqs) + _FEW:
            self._heap = [each for each in self._heap if each[1] in self._seqs]
            heapify(self._heap)
