"""The spans of all running choices: may this one have more, and whose prefix can it share?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from sys import maxsize

from spaninfer_engine.cache.pool import SpanPool
from spaninfer_engine.cache.prefix import Hit, Linker, Origin, find_prefix
from spaninfer_engine.cache.rotation import Rotation
from spaninfer_engine.cache.table import SpanTable
from spaninfer_engine.errors import ConfigError
from spaninfer_engine.request import Request
from spaninfer_engine.schedule.admission import Limits
from spaninfer_engine.schedule.choice import Choice


@dataclass(frozen=True, slots=True)
class CacheShape:
    """The span cache as the scheduler sees it; tuples have one entry per cache group."""

    span_len: int
    num_spans: tuple[int, ...]
    windows: tuple[int | None, ...]
    kv_dtype: str
    rotation: Rotation
    share: bool = True  # may requests share prefixes with each other?

    def capacity(self) -> int:
        """Return how many tokens of one request fit at the most."""
        full = [n for n, window in zip(self.num_spans, self.windows, strict=True) if window is None]
        return min(full) * self.span_len if full else maxsize


class Supply(IntEnum):
    """Can the spans be had? The larger, the worse."""

    NOW = 0
    LATER = 1  # when the steps in flight have finished
    NEVER = 2  # not unless somebody gives spans back


class SpanBook:
    """Takes spans for choices, shares prefixes between them, and gives everything back."""

    def __init__(self, shape: CacheShape, limits: Limits) -> None:
        _check_windows(shape, limits)
        self.shape, self._step_tokens = shape, limits.step_tokens
        self.pools = tuple(SpanPool(num_spans) for num_spans in shape.num_spans)
        self._grown: list[Choice] = []

    def choices_of(self, request: Request, limit: int) -> tuple[Choice, ...]:
        """Return the choices of a request, without spans; may be called from any thread."""
        placement, shape = request.placement, self.shape
        origin = Origin(
            kv_dtype=shape.kv_dtype,
            tenant=placement.tenant,
            adapter=placement.adapter,
            private=None if shape.share else request.id,
        )
        linker = Linker(origin, shape.span_len, shape.rotation, len(request.prompt_ids))
        if request.sampling.n > 1:  # once for all; that of a single one may be spared, see _links
            linker.extend(request.prompt_ids)
        return tuple(
            Choice(request, index, limit=limit, linker=linker.copy(), tables=self._tables())
            for index in range(request.sampling.n)
        )

    def start(self, choice: Choice, spare: int) -> Supply:
        """Share the longest prefix there is, if what is missing behind it can be had as well.

        `spare` spans must stay available, so that a start does not cost another its place.
        """
        hit = self._hit(choice)
        begin = hit.num_spans * self.shape.span_len
        supply = Supply.NOW
        for table, (_, spans) in zip(choice.tables, hit.tables, strict=True):
            # Behind a window, spans go back while a long prompt is computed step by step.
            reach = maxsize if table.window is None else begin + self._step_tokens
            missing = table.num_missing(min(choice.target, reach)) - hit.num_spans
            count = missing + table.pool.num_unheld(spans) + spare
            supply = max(supply, _supply(table.pool, count))
        if supply is Supply.NOW:
            for table, (first, spans) in zip(choice.tables, hit.tables, strict=True):
                table.adopt(first, spans)
            choice.sealed = hit.num_spans
            choice.done = choice.room = begin
        return supply

    def grow(self, choice: Choice, start: int, stop: int) -> Supply:
        """Take the spans that positions [start, stop) need; what some groups give is kept."""
        supply = Supply.NOW
        for table in choice.tables:
            if table.window is not None:
                table.slide(start)
            if not table.grow(stop):
                supply = max(supply, _supply(table.pool, table.num_missing(stop)))
        if supply is Supply.NOW:
            choice.room = min([table.stop for table in choice.tables]) * self.shape.span_len
            self._grown.append(choice)
        return supply

    def seal(self, choice: Choice, num_computed: int) -> None:
        """Label the whole spans among the first `num_computed` positions, for others to share."""
        num_spans = num_computed // self.shape.span_len
        if num_spans <= choice.sealed:
            return
        links = self._links(choice, num_spans)
        for table in choice.tables:
            begin, end = max(choice.sealed, table.first), min(num_spans, table.stop)
            if begin < end:
                spans = table.spans[begin - table.first : end - table.first]
                table.pool.label(spans, links[begin:end])
        choice.sealed = num_spans

    def release(self, choice: Choice) -> None:
        """Give all spans of a choice back: its keys are gone, unless their prefix is kept."""
        for table in choice.tables:
            table.release()
        choice.done = choice.room = choice.sealed = 0

    def take_grown(self) -> list[Choice]:
        """Return the choices that took spans since the last call; some may come twice."""
        grown, self._grown = self._grown, []
        return grown

    def plan(self, step: int) -> None:
        """Note that a step was planned with the spans held now."""
        for pool in self.pools:
            pool.plan(step)

    def finish(self, step: int) -> None:
        """Note that a step has finished."""
        for pool in self.pools:
            pool.finish(step)

    def _tables(self) -> tuple[SpanTable, ...]:
        shape = self.shape
        return tuple(
            SpanTable(pool, shape.span_len, window)
            for pool, window in zip(self.pools, shape.windows, strict=True)
        )

    def _hit(self, choice: Choice) -> Hit:
        reach = 0
        if choice.logits_from == maxsize:  # log-probabilities of the prompt need every position
            reach = (choice.target - 1) // self.shape.span_len  # the last token draws
        if self._lacks(self._links(choice, min(reach, 1))[:1]):
            reach = 0  # so 4000 tokens are hashed, 0.15 ms, when their keys have been computed
        links = self._links(choice, reach)[:reach]
        return find_prefix(links, self.pools, self.shape.windows, self.shape.span_len)

    def _lacks(self, first: Sequence[bytes]) -> bool:
        """Does a group that must hold all spans of a prefix lack the first, if that has a link?"""
        groups = zip(self.pools, self.shape.windows, strict=True)
        return any(window is None and not pool.find_run(first) for pool, window in groups)

    def _links(self, choice: Choice, count: int) -> list[bytes]:
        """Return the links of a choice, at least of its first `count` spans as far as their tokens
        are known.
        """
        linker, span_len = choice.linker, self.shape.span_len
        known = len(linker.links)
        if known < count:
            linker.extend(choice.ids(known * span_len, count * span_len))
        return linker.links


def _supply(pool: SpanPool, count: int) -> Supply:
    if count <= pool.num_available:
        return Supply.NOW
    return Supply.LATER if count <= pool.num_available + pool.num_resting else Supply.NEVER


def _check_windows(shape: CacheShape, limits: Limits) -> None:
    """Raise unless one request fits into every group with a window."""
    for group, (num_spans, window) in enumerate(zip(shape.num_spans, shape.windows, strict=True)):
        if window is None:
            continue
        needed = min(
            # What a step sees and writes, which need not begin where a span does.
            -(-(window + limits.step_tokens - 2) // shape.span_len) + 1,
            -(-limits.context // shape.span_len),
        )
        if num_spans < needed:
            raise ConfigError(
                f"cache group {group} has {num_spans} spans of {shape.span_len} tokens; a window "
                f"of {window} and steps of {limits.step_tokens} tokens need {needed}; "
                "give the cache more memory, or lower step_tokens"
            )
