"""Who runs next, and what became of it.

A choice waits, runs or has ended. Waiting and running choices are in order: by arrival, in which a
level of priority counts as some seconds (policy.rank). A waiting choice starts when its spans can
be had; a running one that lacks spans takes them from the last in order, which waits again and will
compute its keys anew. The first in order can take from everybody, and fits when it is alone: so
there is always progress.

A plan may be made before the results of those in front of it are here: `plan` and `apply` may be
called as plan, plan, apply, plan, apply ...; results come in the order of the plans.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from sys import maxsize

from spaninfer_engine.plan import Entry, Growth, Slice, StepPlan, StepResult
from spaninfer_engine.request import FinishReason
from spaninfer_engine.schedule.admission import Limits
from spaninfer_engine.schedule.choice import Choice, Drawn, Ended, Events
from spaninfer_engine.schedule.counts import Counts
from spaninfer_engine.schedule.deadlines import Deadlines
from spaninfer_engine.schedule.policy import plan_step
from spaninfer_engine.schedule.spans import CacheShape, SpanBook, Supply

_ORDER = attrgetter("order")
_STOP = Slice._fields.index("stop")  # by number, reading it takes half as long


@dataclass(frozen=True, slots=True)
class _Flight:
    """A plan whose result is not here yet."""

    plan: StepPlan
    choices: list[Choice]  # by slice


class Scheduler:
    """Keeps the queues; turns them into plans, and results into events."""

    def __init__(self, limits: Limits, shape: CacheShape) -> None:
        self.limits = limits
        self.spans = SpanBook(shape, limits)
        self.counts = Counts()
        self._choices: dict[int, Choice] = {}  # all that have not ended
        self._waiting: list[Choice] = []
        self._running: list[Choice] = []
        self._flights: deque[_Flight] = deque()
        self._deadlines = Deadlines(self._choices)
        self._left: list[int] = []  # request ids that the runner may forget
        self._number = 0  # of the newest plan
        self._drawn: list[Drawn] = []
        self._ended: list[Ended] = []
        # For settle: choices, and how many of their leading positions are computed, if any.
        self._unsettled: dict[Choice, int] = {}

    @property
    def num_waiting(self) -> int:
        """Choices that wait to start, for the first one's prompt, or to start again."""
        return len(self._choices) - len(self._running)

    @property
    def num_running(self) -> int:
        """Choices that hold spans."""
        return len(self._running)

    @property
    def is_idle(self) -> bool:
        """Has every choice ended, and every step finished?"""
        return not self._choices and not self._flights

    def add(self, choices: Sequence[Choice]) -> None:
        """Let a request's choices wait; all but the first, until that one has the prompt's keys."""
        self._choices.update((choice.request_id, choice) for choice in choices)
        first, *followers = choices
        first.followers = tuple(followers)
        insort(self._waiting, first, key=_ORDER)
        self._deadlines.add(choices)

    def stop(
        self,
        request_ids: Iterable[int],
        now: float,
        reason: FinishReason = FinishReason.STOPPED,
        error: Exception | None = None,
    ) -> None:
        """End choices at once; those that have ended already are passed over."""
        for request_id in request_ids:
            choice = self._choices.get(request_id)
            if choice is not None:
                self._end(choice, reason, now, error=error)

    def stop_all(self, now: float, reason: FinishReason, error: Exception | None = None) -> None:
        """End every choice."""
        self.stop(tuple(self._choices), now, reason, error)

    def abandon(self, late: Iterable[Choice]) -> None:
        """Forget every choice, and those that come too late, whatever state they and their spans
        are in: whoever calls this tells them the error.
        """
        self._choices.update((choice.request_id, choice) for choice in late)
        self.counts.finished[FinishReason.ERROR] += len(self._choices)
        for left in (self._choices, self._waiting, self._running):
            left.clear()

    def plan(self, now: float) -> StepPlan | None:
        """Return the next step, or None where nothing can be computed now."""
        self.stop(self._deadlines.take_due(now), now, FinishReason.DEADLINE)
        self.settle()
        self._suspend_outgrown()
        self._start_waiting(now)
        slices, choices = self._fit()
        if not slices:
            assert self._flights or not self._choices, "there is work, but nothing to compute"
            return None
        self._number += 1
        self.spans.plan(self._number)
        entered, grown = self._news()
        plan = StepPlan(self._number, tuple(slices), entered, grown, tuple(self._left))
        self._left.clear()
        self._flights.append(_Flight(plan, choices))
        return plan

    def apply(self, result: StepResult, now: float) -> None:
        """Take in what the oldest step in flight produced."""
        flight = self._flights.popleft()
        number = flight.plan.number
        assert result.number == number, f"result {result.number} came, {number} was due"
        self.spans.finish(number)
        for request_id, error in result.failed.items():
            self.stop((request_id,), now, FinishReason.ERROR, error)
        drawn, logprobs = self._drawn, result.logprobs
        num_drawn = len(drawn)
        parts = flight.plan.slices
        for choice, part, token in zip(flight.choices, parts, result.tokens, strict=True):
            if token is None or not choice.is_decoding:
                if choice.ended:
                    continue  # drawn after its end: nobody wants it
                self._advance(choice, part, result, now)
                if token is None:
                    continue
            output_ids = choice.output_ids
            output_ids.append(token)
            item = (choice, token, logprobs.get(choice.request_id) if logprobs else None)
            if token in choice.end_ids:
                self._end(choice, FinishReason.STOP, now, item, matched=token)
            elif len(output_ids) == choice.max_output:
                self._end(choice, FinishReason.LENGTH, now, item)
            else:
                drawn.append(item)
        self.counts.generated_tokens += len(drawn) - num_drawn

    def settle(self) -> None:
        """Label spans that have been computed, and take back those of choices that have ended.

        `plan` does so first. Where nothing is left to plan, nobody waits for it: 0.1 to 0.3 ms for
        the spans of 4000 tokens.
        """
        for choice, num_computed in self._unsettled.items():
            self.spans.seal(choice, num_computed)
            if choice.ended:
                self.spans.release(choice)
        self._unsettled.clear()

    def take_events(self) -> Events | None:
        """Return what became of the choices since the last call; None if nothing did."""
        if not self._drawn and not self._ended:
            return None
        events = Events(self._drawn, self._ended)
        self._drawn, self._ended = [], []
        return events

    def check(self) -> None:
        """Assert that no span is lost; when idle, that nobody holds one."""
        for pool in self.spans.pools:
            pool.check()
            assert not self.is_idle or pool.num_available == pool.num_spans, "a span is lost"

    def _suspend_outgrown(self) -> None:
        """Let choices compute their keys anew whose length demands other frequencies."""
        rotation = self.spans.shape.rotation
        if rotation.recompute_beyond is None:
            return
        for choice in tuple(self._running):
            if choice.target <= choice.done < choice.last and rotation.outgrown(
                choice.rope_len, choice.done + 1
            ):
                self._suspend(choice)

    def _start_waiting(self, now: float) -> None:
        while self._waiting:
            head = self._waiting[0]
            supply = Supply.NEVER
            if len(self._running) < self.limits.max_running:
                supply = self.spans.start(head, spare=len(self._running))
            if supply is Supply.NOW:
                self._run(self._waiting.pop(0), now)
            elif supply is Supply.NEVER and self._outranks_last(head):
                self._preempt(self._running[-1])
            else:
                return

    def _run(self, choice: Choice, now: float) -> None:
        insort(self._running, choice, key=_ORDER)
        if choice.scheduled_s is None:
            choice.scheduled_s = now
            choice.cached_len = choice.done
            self.counts.begun += 1
            self.counts.prefix_hit_tokens += choice.done
            self.counts.prefix_miss_tokens += choice.prompt_len - choice.done

    def _outranks_last(self, choice: Choice) -> bool:
        """Is the last running choice behind this one for a lower priority? For a later arrival
        alone, nobody makes way.
        """
        last = self._running[-1] if self._running else None
        return last is not None and choice.priority < last.priority and choice.order < last.order

    def _fit(self) -> tuple[list[Slice], list[Choice]]:
        """Return slices whose spans are there, and their choices."""
        limits = self.limits
        stalled: set[int] = set()
        while True:
            pending = self._running
            if stalled:
                pending = [choice for choice in pending if choice.request_id not in stalled]
            slices, choices = plan_step(
                pending,
                limits.tuning,
                # Who waits takes the place of the next that ends: no step has empty places then.
                may_pause=not self._waiting,
                number=self._number,
            )
            if self._reserve(slices, choices, stalled):
                return slices, choices

    def _reserve(
        self, slices: Sequence[Slice], choices: Sequence[Choice], stalled: set[int]
    ) -> bool:
        """Take the spans of all slices and count them as done; False if somebody made way."""
        for part, choice in zip(slices, choices, strict=True):
            stop = part[_STOP]
            if stop > choice.room:
                supply = self._grow(choice, part)
                if supply is not Supply.NOW:
                    for undone, earlier in zip(slices, choices, strict=True):
                        if earlier is choice:
                            break
                        earlier.done = undone.start
                    self._make_way(choice, supply, stalled)
                    return False
            choice.done = stop
        return True

    def _grow(self, choice: Choice, part: Slice) -> Supply:
        if choice.is_decoding:
            self.spans.seal(choice, choice.num_computed)
        return self.spans.grow(choice, part.start, part.stop)

    def _make_way(self, choice: Choice, supply: Supply, stalled: set[int]) -> None:
        """Let a choice that lacks spans pass this step over, or the last one give its spans up."""
        if supply is Supply.LATER:
            stalled.add(choice.request_id)
        else:
            self._preempt(self._running[-1])

    def _preempt(self, choice: Choice) -> None:
        """Take a choice's spans."""
        if choice.done < choice.last:
            self._suspend(choice)
            self.counts.preemptions += 1
        else:  # its last token is in flight, and needs no spans but those of that step
            self._running.remove(choice)
            self.spans.release(choice)

    def _suspend(self, choice: Choice) -> None:
        """Let a running choice wait without keys; tokens in flight for it still come."""
        if choice.is_decoding:
            self.spans.seal(choice, choice.num_computed)
        if choice.done >= choice.target:
            choice.target = choice.done + 1
        choice.is_decoding = False
        choice.stale_until = self._number
        self._running.remove(choice)
        self.spans.release(choice)
        if self.spans.shape.rotation.outgrown(choice.rope_len, choice.target):
            choice.rotate_anew()
        insort(self._waiting, choice, key=_ORDER)

    def _news(self) -> tuple[tuple[Entry, ...], tuple[Growth, ...]]:
        """Return what the runner has to hear before the next step."""
        entered: list[Entry] = []
        grown: list[Growth] = []
        for choice in self.spans.take_grown():
            if choice.ended:
                continue
            if not choice.entered:
                choice.entered = True
                entered.append(choice.entry())
            grown.extend(choice.growths())
        return tuple(entered), tuple(grown)

    def _advance(self, choice: Choice, part: Slice, result: StepResult, now: float) -> None:
        """Take in a slice of a prefill, or one whose keys were given up since."""
        self._collect_prompt_logprobs(choice, part, result)
        if part.draws and choice.first_token_s is None:
            choice.first_token_s = now
        if result.number <= choice.stale_until:
            return
        self.counts.prefilled_tokens += part.num_tokens
        self._unsettled[choice] = part.stop
        if part.draws:
            choice.is_decoding = True
            self._release_followers(choice)

    def _collect_prompt_logprobs(self, choice: Choice, part: Slice, result: StepResult) -> None:
        if choice.logits_from == maxsize:
            return
        num_known = choice.logits_from
        entries = result.prompt_logprobs.get(choice.request_id)
        if entries is not None:  # after a preemption some come twice
            choice.prompt_parts.append(entries[num_known - part.logits_from :])
            num_known += len(choice.prompt_parts[-1])
        choice.logits_from = maxsize if num_known >= choice.prompt_len - 1 else num_known

    def _release_followers(self, choice: Choice) -> None:
        for follower in choice.followers:
            if not follower.ended:
                insort(self._waiting, follower, key=_ORDER)
        choice.followers = ()

    def _end(
        self,
        choice: Choice,
        reason: FinishReason,
        now: float,
        token: Drawn | None = None,
        *,
        matched: int | None = None,
        error: Exception | None = None,
    ) -> None:
        is_computed = choice.is_decoding and error is None
        self._unsettled[choice] = choice.num_computed if is_computed else 0
        for queue in (self._running, self._waiting):
            _drop(queue, choice)
        choice.ended, choice.is_decoding = True, False
        del self._choices[choice.request_id]
        if choice.entered:
            self._left.append(choice.request_id)
        if choice.scheduled_s is None:
            self.counts.begun += 1
        self._release_followers(choice)
        self.counts.generated_tokens += token is not None
        self.counts.finished[reason] += 1
        usage = choice.usage(now)
        self._ended.append(Ended(choice, reason, usage, token, matched, error))


def _drop(queue: list[Choice], choice: Choice) -> None:
    """Remove a choice from a queue in order, if it is there."""
    at = bisect_left(queue, choice.order, key=_ORDER)
    if at < len(queue) and queue[at] is choice:
        del queue[at]
