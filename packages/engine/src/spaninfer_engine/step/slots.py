"""Rows of a device's memory, assigned to the sequences that take part in steps."""

from __future__ import annotations

from collections.abc import Sequence


class SlotAllocator:
    """Rows by sequence id. There are as many rows as a step has slices, so there is always one.

    A sequence keeps its row while no other needs it: one that was preempted may come back.
    """

    def __init__(self, num_rows: int) -> None:
        self._row: dict[int, int] = {}  # by sequence id; those placed first come first
        self._free = list(range(num_rows - 1, -1, -1))

    def find(self, seq_id: int) -> int | None:
        """Return the row of a sequence; None if it has none."""
        return self._row.get(seq_id)

    def place(self, seq_ids: Sequence[int]) -> tuple[list[int], list[tuple[int, int]]]:
        """Return the rows of a step's sequences, and (id, row) of those that have just got one."""
        row = self._row
        try:
            return [row[seq_id] for seq_id in seq_ids], []
        except KeyError:
            placed = [seq_id for seq_id in seq_ids if seq_id not in row]
        self._make_room(len(placed), keep=frozenset(seq_ids))
        for seq_id in placed:
            row[seq_id] = self._free.pop()
        return (
            [row[seq_id] for seq_id in seq_ids],
            [(seq_id, row[seq_id]) for seq_id in placed],
        )

    def leave(self, seq_id: int) -> None:
        """Free a sequence's row, if it has one."""
        row = self._row.pop(seq_id, None)
        if row is not None:
            self._free.append(row)

    def _make_room(self, count: int, keep: frozenset[int]) -> None:
        """Take rows from sequences outside of the step until `count` are free."""
        for seq_id in [other for other in self._row if other not in keep]:
            if len(self._free) >= count:
                return
            self.leave(seq_id)
        assert len(self._free) >= count, "a step has more slices than there are rows"
