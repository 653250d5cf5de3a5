"""The span table of one sequence in one cache group: the spans that hold its positions."""

from __future__ import annotations

from collections.abc import Sequence

from spaninfer_engine.cache.pool import SpanPool


class SpanTable:
    """Span numbers by index; index i holds positions [i * span_len, (i + 1) * span_len).

    Layers with a window never look further back than it reaches, so their spans go back early:

        0 .......... first .......... stop .......... limit
        | given back  |  spans in use  |  none yet      |
    """

    __slots__ = ("_num_sent", "_span_len", "first", "pool", "spans", "stop", "window")

    def __init__(self, pool: SpanPool, span_len: int, window: int | None) -> None:
        self.pool, self.window = pool, window
        self.first = self.stop = 0  # indices of the first span, and behind the last one
        self.spans: list[int] = []
        self._span_len = span_len
        self._num_sent = 0  # indices below were sent to the runner

    def num_missing(self, stop: int, begin: int = 0) -> int:
        """Return how many spans are missing to hold the positions below `stop`, from index `begin`
        on.
        """
        return max(0, -(-stop // self._span_len) - max(self.stop, begin))

    def num_spare(self, running: int) -> int:
        """Return how many spans must stay available for that many sequences that run."""
        return running

    def slide(self, start: int) -> None:
        """Give back the spans that positions from `start` on cannot see."""
        passed = first_visible(start, self._span_len, self.window) - self.first
        if passed > 0:
            self.pool.give_back(reversed(self.spans[:passed]))
            del self.spans[:passed]
            self.first += passed

    def grow(self, stop: int) -> bool:
        """Take the spans that are missing to hold the positions below `stop`, if there are."""
        count = -(-stop // self._span_len) - self.stop
        if count > 0:
            spans = self.pool.take(count)
            if spans is None:
                return False
            self.spans += spans
            self.stop += count
        return True

    def adopt(self, first: int, found: Sequence[int | None]) -> None:
        """Begin with the spans of a shared prefix, the first of them at index `first`.

        Where the pool does not hold one (None), a span is taken for it, which must be to be had.
        """
        assert not self.spans
        self.pool.share([span for span in found if span is not None])  # taking evicts others
        taken = self.pool.take(sum(span is None for span in found))
        assert taken is not None, "a prefix is adopted without spans for it"
        fresh = iter(taken)
        self.spans = [next(fresh) if span is None else span for span in found]
        self.first, self.stop = first, first + len(found)

    def release(self) -> None:
        """Give everything back and begin anew."""
        self.pool.give_back(reversed(self.spans))
        self.first = self.stop = self._num_sent = 0
        self.spans = []

    def take_update(self) -> tuple[int, tuple[int, ...]] | None:
        """Return (index, span numbers from it on) that were not sent to the runner yet, once."""
        if self._num_sent >= self.stop:
            return None
        begin = max(self._num_sent, self.first)
        self._num_sent = self.stop
        return begin, tuple(self.spans[begin - self.first :])


def first_visible(start: int, span_len: int, window: int | None) -> int:
    """Return the index of the first span that position `start` can see."""
    return 0 if window is None else max(0, start - window + 1) // span_len
