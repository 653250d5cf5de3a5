"""Which requests lie in the rows of a device's memory."""

from __future__ import annotations

from collections.abc import Sequence


class Residents:
    """Rows by request id. There are as many rows as a step has slices, so there is always one.

    A request keeps its row while nobody else needs it: one that was preempted may come back.
    """

    def __init__(self, num_rows: int) -> None:
        self._row: dict[int, int] = {}  # by request id; those placed first come first
        self._free = list(range(num_rows - 1, -1, -1))

    def find(self, request_id: int) -> int | None:
        """Return the row of a request; None if it has none."""
        return self._row.get(request_id)

    def place(self, request_ids: Sequence[int]) -> tuple[list[int], list[tuple[int, int]]]:
        """Return the rows of a step's requests, and (id, row) of those that have just got one."""
        row = self._row
        try:
            return [row[request_id] for request_id in request_ids], []
        except KeyError:
            placed = [request_id for request_id in request_ids if request_id not in row]
        self._make_room(len(placed), keep=frozenset(request_ids))
        for request_id in placed:
            row[request_id] = self._free.pop()
        return (
            [row[request_id] for request_id in request_ids],
            [(request_id, row[request_id]) for request_id in placed],
        )

    def leave(self, request_id: int) -> None:
        """Free a request's row, if it has one."""
        row = self._row.pop(request_id, None)
        if row is not None:
            self._free.append(row)

    def _make_room(self, count: int, keep: frozenset[int]) -> None:
        """Take rows from requests outside of the step until `count` are free."""
        for request_id in [other for other in self._row if other not in keep]:
            if len(self._free) >= count:
                return
            self.leave(request_id)
        assert len(self._free) >= count, "a step has more slices than there are rows"
