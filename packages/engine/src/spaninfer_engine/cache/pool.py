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
from collections.abc import Iterable, Sequence
from itertools import takewhile


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
        free, holders = self._free, self._holders
        first = max(len(free) - count, 0)
        spans = free[first:]
        spans.reverse()
        del free[first:]
        spans += [self._take_kept() for _ in range(count - len(spans))]
        for span in spans:
            holders[span] = 1
        return spans

    def share(self, spans: Iterable[int]) -> None:
        """Add a holder to each of spans that are held, resting or kept."""
        holders, resting = self._holders, self._resting
        for span in spans:
            if holders[span] == 0 and resting.pop(span, None) is None:
                del self._kept[span]
            holders[span] += 1

    def give_back(self, spans: Iterable[int]) -> None:
        """Remove one holder from each span.

        Give the end of a prefix back before its start: what was given back first is taken first.
        """
        holders, resting, planned = self._holders, self._resting, self._planned
        passed = []
        for span in spans:
            left = holders[span] = holders[span] - 1
            assert left >= 0, f"span {span} was given back more often than taken"
            if left == 0:
                passed.append(span)
        if planned > self._finished:
            resting.update(dict.fromkeys(passed, planned))
        else:
            self._settle(passed)

    def label(self, spans: Sequence[int], labels: Sequence[bytes]) -> None:
        """Say what held spans contain; a second span with the same content stays unlabelled."""
        held, known, by_label = self._holders, self._labels, self._by_label
        for span, label in zip(spans, labels, strict=True):
            assert held[span] > 0, f"span {span} is labelled, but nobody holds it"
            if known[span] is None and label not in by_label:
                known[span] = label
                by_label[label] = span

    def find(self, label: bytes) -> int | None:
        """Return the span that contains what the label says."""
        return self._by_label.get(label)

    def find_run(self, labels: Iterable[bytes]) -> list[int]:
        """Return the spans of labels, up to the first label that no span has."""
        by_label = self._by_label
        spans = []
        for label in labels:
            span = by_label.get(label)
            if span is None:
                break
            spans.append(span)
        return spans

    def plan(self, step: int) -> None:
        """Note that a step was planned with spans held now."""
        assert step > self._planned, f"step {step} was planned after step {self._planned}"
        self._planned = step

    def finish(self, step: int) -> None:
        """Note that a step, and with it all before, has finished: spans that waited are settled."""
        assert self._finished < step <= self._planned, f"step {step} finished out of order"
        self._finished = step
        passed = list(takewhile(lambda span: self._resting[span] <= step, self._resting))
        for span in passed:
            del self._resting[span]
        self._settle(passed)

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

    def _take_kept(self) -> int:
        """Return the span that was unused for longest, for new content."""
        span, _ = self._kept.popitem(last=False)
        label = self._labels[span]
        assert label is not None
        del self._by_label[label]
        self._labels[span] = None
        return span

    def _settle(self, spans: Iterable[int]) -> None:
        free, kept, labels = self._free, self._kept, self._labels
        for span in spans:
            if labels[span] is None:
                free.append(span)
            else:
                kept[span] = None
