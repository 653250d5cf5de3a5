"""Counts and histograms of a server, summed over its processes."""

from __future__ import annotations

import mmap
from bisect import bisect_left
from collections.abc import Sequence
from typing import Final, Self

import numpy as np
from numpy.typing import NDArray

# Seconds; from a token of a small model to the prefill of a long prompt.
LATENCY: Final = (
    0.001,
    0.0025,
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1,
    2.5,
    5,
    10,
    30,
    60,
    300,
)
TOKENS: Final = (1, 4, 16, 64, 256, 1024, 4096, 16384, 65536, 262144)

HISTOGRAMS: Final = {
    "queue_seconds": ("Arrival to the first step", LATENCY),
    "first_token_seconds": ("Arrival to the first token", LATENCY),
    "token_seconds": ("Mean time per token after the first", LATENCY),
    "request_seconds": ("Arrival to the end", LATENCY),
    "prompt_tokens": ("Tokens of a prompt", TOKENS),
    "output_tokens": ("Tokens of an answer", TOKENS),
}
"""Their help texts, and the upper bounds of their buckets."""

NUM_STATUSES: Final = 600  # HTTP statuses count under their numbers


def _places() -> dict[str, int]:
    """Return where the numbers of each histogram begin: buckets, one beyond all, and the sum."""
    places, place = {}, NUM_STATUSES
    for name, (_, bounds) in HISTOGRAMS.items():
        places[name] = place
        place += len(bounds) + 2
    return places | {"connections": place, "": place + 1}


_PLACES: Final = _places()
NUM_FIGURES: Final = _PLACES[""]


class Figures:
    """A row of float64 per process, which writes its own and reads all.

    The rows outlive their processes: its successor goes on counting in its row.
    """

    def __init__(self, memory: bytearray | mmap.mmap, row: int) -> None:
        """Count in a row of memory of `bytes_for(processes)`, zero in the beginning."""
        self._rows = np.frombuffer(memory, np.float64).reshape(-1, NUM_FIGURES)
        # Setting a number takes a third of the time that numpy's arrays need for it.
        self._own = memoryview(memory).cast("d")[row * NUM_FIGURES : (row + 1) * NUM_FIGURES]

    @classmethod
    def own(cls) -> Self:
        """Return figures of one process alone."""
        return cls(bytearray(bytes_for(1)), 0)

    def count_response(self, status: int) -> None:
        """Count an answer by its HTTP status."""
        self._own[status] += 1

    def observe(self, name: str, value: float) -> None:
        """Count a value in a histogram."""
        place, bounds = _PLACES[name], HISTOGRAMS[name][1]
        self._own[place + bisect_left(bounds, value)] += 1
        self._own[place + len(bounds) + 1] += value

    @property
    def num_connections(self) -> int:
        """The number of connections of this process."""
        return int(self._own[_PLACES["connections"]])

    @num_connections.setter
    def num_connections(self, num: int) -> None:
        self._own[_PLACES["connections"]] = num

    def has_more_connections(self, num_more: int) -> bool:
        """Return whether this process has that many more than another, and one beyond that."""
        least = int(self._rows[:, _PLACES["connections"]].min())
        return self.num_connections > least + num_more

    def responses(self) -> dict[int, int]:
        """Return how many answers had each status that there was."""
        counts = self._sum(0, NUM_STATUSES)
        return {int(status): int(counts[status]) for status in np.flatnonzero(counts)}

    def histogram(self, name: str) -> tuple[Sequence[int], float]:
        """Return the counts of each bucket alone, those beyond all bounds last; and the sum."""
        place, bounds = _PLACES[name], HISTOGRAMS[name][1]
        numbers = self._sum(place, place + len(bounds) + 2)
        return numbers[:-1].astype(int).tolist(), float(numbers[-1])

    def _sum(self, start: int, stop: int) -> NDArray[np.float64]:
        total: NDArray[np.float64] = self._rows[:, start:stop].sum(0)
        return total


def bytes_for(num_processes: int) -> int:
    """Return the size of the memory of that many processes."""
    return num_processes * NUM_FIGURES * 8
