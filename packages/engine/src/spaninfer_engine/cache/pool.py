"""Span numbers of one cache group, handed out and taken back.

A number is in one place at a time:

    free ──take──► held ──give_back──► resting ──finish──► free   (no label)
                    ▲                     │        └─────► kept   (labelled)
                    ├───────share─────────┘                  │
                    ├───────share────────────────────────────┤
                    └───────take, longest unused first───────┘

Held spans count their holders. Resting spans have none, but a step that was planned with them
may still run: they wait until every step planned by then has finished. Kept spans hold a prefix
that somebody may want again; they are handed out for new content once nothing is free.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable


class SpanPool:
    """Which spans are free, held, resting or kept; every operation takes constant time a span."""

    def __init__(self, num_spans: int) -> None:
        self.num_spans = num_spans
        self._free = list(range(num_spans - 1, -1, -1))  # the last one goes first
        self._holders = [0] * num_spans
        self._resting: OrderedDict[int, int] = OrderedDict()  # span -> step it waits for, rising
        self._kept: OrderedDict[int, None] = OrderedDict()  # longest unused first
        self._labels: list[bytes | None] = [None] * num_spans
        self._by_label: dict[bytes, int] = {}
        self._planned = self._finished = 0  # numbers of the newest step planned, and finished

    @property
    def num_available(self) -> int:
        """Spans that `take` can hand out now."""
        return len(self._free) + len(self._kept)

    @property
    def num_resting(self) -> int:
        """Spans that become available when the steps in flight have finished."""
        return len(self._resting)

    @property
    def num_kept(self) -> int:
        """Spans that nobody holds and that keep a prefix."""
        return len(self._kept)

    @property
    def num_held(self) -> int:
        """Spans that requests hold."""
        return self.num_spans - self.num_available - self.num_resting

    def num_unheld(self, spans: Iterable[int]) -> int:
        """Return how many of these spans nobody holds."""
        return sum(self._holders[span] == 0 for span in spans)

    def take(self, count: int) -> list[int] | None:
        """Hand out `count` spans to one holder each; None if there are not enough."""
        if count > len(self._free) + len(self._kept):
            return None
        return [self._take_one() for _ in range(count)]

    def share(self, span: int) -> None:
        """Add a holder to a span that is held, resting or kept."""
        if self._holders[span] == 0 and self._resting.pop(span, None) is None:
            del self._kept[span]
        self._holders[span] += 1

    def give_back(self, spans: Iterable[int]) -> None:
        """Remove one holder from each span.

        Give the end of a prefix back before its start: what was given back first is taken first.
        """
        for span in spans:
            assert self._holders[span] > 0, f"span {span} was given back more often than taken"
            self._holders[span] -= 1
            if self._holders[span] == 0:
                if self._planned > self._finished:
                    self._resting[span] = self._planned
                else:
                    self._settle(span)

    def label(self, span: int, label: bytes) -> None:
        """Say what a held span contains; a second span with the same content stays unlabelled."""
        assert self._holders[span] > 0, f"span {span} is labelled, but nobody holds it"
        if self._labels[span] is None and label not in self._by_label:
            self._labels[span] = label
            self._by_label[label] = span

    def find(self, label: bytes) -> int | None:
        """Return the span that contains what the label says."""
        return self._by_label.get(label)

    def plan(self, step: int) -> None:
        """Note that a step was planned with spans held now."""
        assert step > self._planned, f"step {step} was planned after step {self._planned}"
        self._planned = step

    def finish(self, step: int) -> None:
        """Note that a step, and with it all before, has finished: spans that waited are settled."""
        assert self._finished < step <= self._planned, f"step {step} finished out of order"
        self._finished = step
        while self._resting:
            span, waits_for = self._resting.popitem(last=False)
            if waits_for > step:
                self._resting[span] = waits_for
                self._resting.move_to_end(span, last=False)
                return
            self._settle(span)

    def check(self) -> None:
        """Assert that every span is in exactly one place, and every label is true."""
        held = {span for span, holders in enumerate(self._holders) if holders}
        places = [set(self._free), held, set(self._resting), set(self._kept)]
        assert len(self._free) == len(places[0]), "a span is free twice"
        assert sum(map(len, places)) == self.num_spans, "a span is missing, or in two places"
        assert set().union(*places) == set(range(self.num_spans)), "a span is missing"
        labelled = {span: label for span, label in enumerate(self._labels) if label is not None}
        assert labelled == {span: label for label, span in self._by_label.items()}, "a label lies"
        assert all(span in labelled for span in self._kept), "a kept span has no label"
        assert not any(span in labelled for span in self._free), "a free span has a label"

    def _take_one(self) -> int:
        if self._free:
            span = self._free.pop()
        else:
            span, _ = self._kept.popitem(last=False)
            label = self._labels[span]
            assert label is not None
            del self._by_label[label]
            self._labels[span] = None
        self._holders[span] = 1
        return span

    def _settle(self, span: int) -> None:
        if self._labels[span] is None:
            self._free.append(span)
        else:
            self._kept[span] = None
