"""The span table of one sequence in a state group: its own state, and snapshots on their way.

A span of such a group is what all layers of it keep of a sequence behind one of its tokens. Only
the newest is needed, so a sequence has one span of its own, which its steps overwrite, and never
needs another. An older state cannot be had from a newer one: a prefix can be continued only where a
snapshot was kept. A step leaves one wherever the table has a span of its own for an index:

    index      0 ......... w - 1      w         w + 1 ...... stop - 1
    span     own  own  own  own   snapshot   own  own  own  own

Index i stands for the state behind position (i + 1) * span_len - 1, so that a snapshot is published
by the hash of span i like any other span, and the prefix of w + 1 spans is found by it alone: what
a state group must hold is what one with a window of STATE_WINDOW tokens must.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from spaninfer_engine.cache.pool import SpanPool

STATE_WINDOW = 2
"""A token sees itself and, by the state behind it, the one before."""

SNAPSHOT_TOKENS = 8192
"""A prompt leaves a snapshot every so many tokens, besides the one at its end."""


class StateTable:
    """A sequence's own span, snapshots by index, and the indices that its steps may reach."""

    __slots__ = ("_num_sent", "_own", "_prefill_end", "_snapshots", "_span_len", "_tokens", "first",
                 "pool", "stop", "window")  # fmt: skip

    def __init__(self, pool: SpanPool, span_len: int, snapshot_tokens: int) -> None:
        self.pool, self.window = pool, STATE_WINDOW
        self.first = self.stop = 0
        self._own: int | None = None
        self._snapshots: dict[int, int] = {}  # spans by index, ascending
        self._span_len, self._tokens = span_len, snapshot_tokens
        self._prefill_end = 0
        self._num_sent = 0  # indices below were sent to the runner

    @property
    def spans(self) -> list[int]:
        """The spans that the sequence holds."""
        own = [] if self._own is None else [self._own]
        return [*self._snapshots.values(), *own]

    def num_missing(self, stop: int, begin: int = 0) -> int:  # noqa: ARG002
        """Return how many spans are missing: one, where the sequence has not begun."""
        return int(self._own is None)

    def num_spare(self, running: int) -> int:  # noqa: ARG002
        """Return how many spans must stay available for sequences that run: they have theirs."""
        return 0

    def slide(self, start: int) -> None:
        """Keep everything: snapshots go back when they are published."""

    def adopt(self, first: int, found: Sequence[int | None]) -> None:
        """Begin behind a shared snapshot; None: one that is loaded into a span taken for it."""
        assert not self.spans
        (span,) = found
        if span is None:
            taken = self.pool.take(1)
            assert taken is not None, "a prefix is adopted without a span for it"
            (span,) = taken
        else:
            self.pool.share([span])
        self._snapshots[first] = span
        self.first, self.stop = first, first + 1

    def begin(self, prefill_end: int) -> None:
        """Take the sequence's own span, which must be to be had, for a prompt that ends there."""
        taken = self.pool.take(1)
        assert taken is not None, "a sequence begins without a span for its state"
        (self._own,) = taken
        self._prefill_end = prefill_end

    def grow(self, stop: int) -> bool:
        """Cover the positions below `stop`; take spans for snapshots as far as there are some."""
        reached = -(-stop // self._span_len)
        if reached > self.stop:
            for index in self._wanted(max(self.stop - 1, 0), reached - 1):
                self._keep(index)
            self.stop = reached
        return True

    def take_snapshots(self, count: int) -> list[tuple[int, int]]:
        """Return (index, span) of snapshots below index `count`, which are the caller's now."""
        passed = [(index, span) for index, span in self._snapshots.items() if index < count]
        for index, _ in passed:
            del self._snapshots[index]
        return passed

    def release(self) -> None:
        """Give everything back and begin anew."""
        self.pool.give_back(self.spans)
        self._own, self._snapshots = None, {}
        self.first = self.stop = self._num_sent = 0

    def take_update(self) -> tuple[int, tuple[int, ...]] | None:
        """Return (index, span numbers from it on) that were not sent to the runner yet, once."""
        if self._num_sent >= self.stop:
            return None
        assert self._own is not None
        begin = max(self._num_sent, self.first)
        self._num_sent = self.stop
        own = self._own
        return begin, tuple(self._snapshots.get(index, own) for index in range(begin, self.stop))

    def _wanted(self, start: int, stop: int) -> Iterator[int]:
        """Yield the indices of [start, stop) whose states are kept: the last whole span in front of
        the prompt's last token, which is always computed, and some before it.
        """
        last = (self._prefill_end - 1) // self._span_len - 1
        every = max(self._tokens // self._span_len, 1)
        yield from (i for i in range(start, min(stop, last)) if (i + 1) % every == 0)
        if start <= last < stop:
            yield last

    def _keep(self, index: int) -> None:
        """Take a span for a snapshot, if there is one and the index has none.

        At the index where the sequence's state is now, the state stays where it is, and goes on in
        the new span: the runner reads it there.
        """
        if index in self._snapshots:
            return
        taken = self.pool.take(1)
        if taken is None:
            return
        (span,) = taken
        if index == self.stop - 1:
            assert self._own is not None
            span, self._own = self._own, span
        self._snapshots[index] = span
