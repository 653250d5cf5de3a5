"""The scheduler: orders sequences, plans the next step, and applies the results of earlier ones.

A sequence waits, runs or has ended. Waiting and running sequences are in order: by arrival, in
which a level of priority counts as some seconds (policy.sort_key). A waiting sequence starts when
its spans are available; a running one that lacks spans preempts the last in order, which waits
again and will be recomputed. The first in order can preempt all others, and fits when it is alone:
so there is always progress.

A plan may be made before the results of those in front of it are here: `plan` and `apply` may be
called as plan, plan, apply, plan, apply ...; results come in the order of the plans.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import defaultdict, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from operator import attrgetter

from spaninfer_engine.request.request import FinishReason
from spaninfer_engine.schedule.admission import Limits
from spaninfer_engine.schedule.counts import Counts
from spaninfer_engine.schedule.deadlines import Deadlines
from spaninfer_engine.schedule.kv_cache_manager import (
    Availability,
    CacheShape,
    KVCacheManager,
    OpenDisk,
)
from spaninfer_engine.schedule.media import MediaScheduler
from spaninfer_engine.schedule.policy import plan_step
from spaninfer_engine.schedule.sequence import Ended, Events, NewToken, SequenceState
from spaninfer_engine.schedule.shares import Shares
from spaninfer_engine.step.plan import NewSequence, Slice, StepPlan, StepResult, TableUpdate

_ORDER = attrgetter("order")
_STOP = Slice._fields.index("stop")  # by number, reading it takes half as long


@dataclass(frozen=True, slots=True)
class _Flight:
    """A plan whose result is not here yet."""

    plan: StepPlan
    seqs: list[SequenceState]  # by slice


class Scheduler:
    """Keeps the queues; turns them into plans, and results into events."""

    def __init__(
        self, limits: Limits, shape: CacheShape, open_disk: OpenDisk | None = None
    ) -> None:
        self.limits = limits
        self.kv_cache = KVCacheManager(shape, limits, open_disk)
        self.media = MediaScheduler(limits.tuning, limits.max_encoded)
        self.counts = Counts()
        self._seqs: dict[int, SequenceState] = {}  # all that have not ended
        self._waiting: list[SequenceState] = []
        self._running: list[SequenceState] = []
        self._flights: deque[_Flight] = deque()
        self._deadlines = Deadlines(self._seqs)
        self._finished: list[int] = []  # sequence ids that the runner may forget
        self._number = 0  # of the newest plan
        self._shares = Shares()
        self._num_seeing = 0  # sequences with media that have not ended
        self._new_tokens: list[NewToken] = []
        self._ended: list[Ended] = []
        # For publish_computed: sequences, and how many leading positions are computed, if any.
        self._unpublished: dict[SequenceState, int] = {}

    @property
    def num_waiting(self) -> int:
        """Sequences that wait to start, for the first one's prompt, or to start again."""
        return len(self._seqs) - len(self._running)

    @property
    def running(self) -> tuple[SequenceState, ...]:
        """Sequences that hold spans."""
        return tuple(self._running)

    @property
    def num_running(self) -> int:
        """The number of sequences that hold spans."""
        return len(self._running)

    @property
    def is_idle(self) -> bool:
        """True if every sequence has ended and every step has finished."""
        return not self._seqs and not self._flights

    def add(self, seqs: Sequence[SequenceState]) -> None:
        """Let a request's sequences wait; the others until the first has computed the prompt."""
        self._seqs.update((seq.seq_id, seq) for seq in seqs)
        self._num_seeing += sum(1 for seq in seqs if seq.media_runs)
        first, *followers = seqs
        first.followers = tuple(followers)
        insort(self._waiting, first, key=_ORDER)
        self._deadlines.add(seqs)

    def stop(
        self,
        seq_ids: Iterable[int],
        now: float,
        reason: FinishReason = FinishReason.STOPPED,
        error: Exception | None = None,
    ) -> None:
        """End sequences at once; those that have ended already are passed over."""
        for seq_id in seq_ids:
            seq = self._seqs.get(seq_id)
            if seq is not None:
                self._end(seq, reason, now, error=error)

    def refuse_waiting(self, now: float, error: Exception) -> None:
        """End requests of which nothing has begun with an error."""
        unbegun = [seq for seq in self._waiting if seq.index == 0 and seq.scheduled_s is None]
        for first in unbegun:
            seq_ids = [seq.seq_id for seq in (first, *first.followers)]
            self.stop(seq_ids, now, FinishReason.ERROR, error)

    def stop_all(self, now: float, reason: FinishReason) -> None:
        """End every sequence."""
        self.stop(tuple(self._seqs), now, reason)

    def abandon(self, late: Iterable[SequenceState]) -> None:
        """Forget every sequence, and those that come too late, whatever state they and their spans
        are in: the caller hands them the error.
        """
        self._seqs.update((seq.seq_id, seq) for seq in late)
        self.counts.finished[FinishReason.ERROR] += len(self._seqs)
        for left in (self._seqs, self._waiting, self._running):
            left.clear()

    def plan(self, now: float) -> StepPlan | None:
        """Return the next step, or None where nothing can be computed now."""
        self.stop(self._deadlines.take_due(now), now, FinishReason.DEADLINE)
        self.publish_computed()
        self._suspend_for_rope()
        self.kv_cache.take_transfers()
        self.kv_cache.expire()
        are_places_left = self._start_waiting(now)
        if self._num_seeing:
            self.media.plan(self._running, self._number)
        slices, seqs = self._fit(now, are_places_left=are_places_left)
        if not slices:
            assert self._flights or not self._seqs or self.kv_cache.is_reading, (
                "there is work, but nothing to compute"
            )
            return None
        self._number += 1
        self.kv_cache.mark_planned(self._number)
        new_sequences, table_updates = self._take_updates()
        encode, encode_steps = self.media.take_chosen()
        self.counts.encoded_media += len(encode)
        plan = StepPlan(
            number=self._number,
            slices=tuple(slices),
            new_sequences=new_sequences,
            table_updates=table_updates,
            finished=tuple(self._finished),
            dropped_encodings=self.media.cache.take_dropped(),
            encode=encode,
            encode_steps=encode_steps,
        )
        self._finished.clear()
        self._flights.append(_Flight(plan, seqs))
        return plan

    def apply(self, result: StepResult, now: float) -> None:
        """Take in what the oldest step in flight produced."""
        flight = self._flights.popleft()
        number = flight.plan.number
        assert result.number == number, f"result {result.number} came, {number} was due"
        self.kv_cache.mark_finished(number)
        for digest in result.failed_encodings:
            self.media.cache.drop(digest)
        for seq_id, error in result.failed.items():
            self.stop((seq_id,), now, FinishReason.ERROR, error)
        new_tokens, logprobs = self._new_tokens, result.logprobs
        num_new = len(new_tokens)
        parts = flight.plan.slices
        for seq, part, token in zip(flight.seqs, parts, result.tokens, strict=True):
            if token is None or not seq.is_decoding:
                if seq.ended:
                    continue  # sampled after its end: dropped
                self._advance(seq, part, result, now)
                if token is None:
                    continue
            output_ids = seq.output_ids
            output_ids.append(token)
            item = (seq, token, logprobs.get(seq.seq_id) if logprobs else None)
            if token in seq.end_ids:
                self._end(seq, FinishReason.STOP, now, item, matched=token)
            elif len(output_ids) == seq.max_output:
                self._end(seq, FinishReason.LENGTH, now, item)
            else:
                new_tokens.append(item)
        self.counts.generated_tokens += len(new_tokens) - num_new

    def publish_computed(self) -> None:
        """Publish spans that have been computed, and take back those of sequences that have ended.

        `plan` does so first. Where nothing is left to plan, it delays no step: 0.1 to 0.3 ms for
        the spans of 4000 tokens.
        """
        for seq, num_computed in self._unpublished.items():
            self.kv_cache.publish(seq, num_computed)
            if seq.ended:
                self.kv_cache.release(seq)
        self._unpublished.clear()

    def forget_prefixes(self) -> None:
        """Share nothing that was computed so far with requests that start from now on."""
        for pool in self.kv_cache.pools:
            pool.forget()

    def take_events(self) -> Events | None:
        """Return what became of the sequences since the last call; None if nothing did."""
        if not self._new_tokens and not self._ended:
            return None
        events = Events(self._new_tokens, self._ended)
        self._new_tokens, self._ended = [], []
        return events

    def check(self) -> None:
        """Assert that no span is lost; when idle, that none is in use."""
        for pool in self.kv_cache.pools:
            pool.check()
            assert not self.is_idle or pool.num_available == pool.num_spans, "a span is lost"
        if self.kv_cache.offload is not None:
            self.kv_cache.offload.check()

    def _suspend_for_rope(self) -> None:
        """Let sequences compute their keys anew whose length demands other frequencies."""
        rope_state = self.kv_cache.shape.rope_state
        if rope_state.recompute_beyond is None:
            return
        for seq in tuple(self._running):
            if seq.prefill_end <= seq.num_scheduled < seq.max_pos and rope_state.needs_recompute(
                seq.rope_seq_len, seq.num_scheduled + 1
            ):
                self._suspend(seq)

    def _start_waiting(self, now: float) -> bool:
        """Start waiting sequences in order; return True if there are places and spans for all.

        A sequence is passed over while prompts of the same client ahead of it fill a step: a burst
        takes no places from others that come before its own turn.
        """
        if not self._waiting:
            return len(self._running) <= self.limits.max_running
        prefills = deque(seq for seq in self._running if seq.num_scheduled < seq.prefill_end)
        in_front = defaultdict[str, int](int)  # tokens of a client's prompts that go first
        most = self.limits.tuning.largest_step
        at = 0
        while at < len(self._waiting):
            head = self._waiting[at]
            while prefills and prefills[0].order < head.order:
                seq = prefills.popleft()
                in_front[seq.client] += seq.prefill_end - seq.num_scheduled
            if in_front[head.client] >= most:
                at += 1
                continue
            has_place = len(self._running) < self.limits.max_running
            if has_place and self.kv_cache.is_fetching(head):
                at += 1  # others go ahead
                continue
            availability = Availability.NEVER
            if has_place:
                availability = self.kv_cache.start(head, spare=len(self._running))
            if availability is Availability.NOW:
                self._run(self._waiting.pop(at), now)
                in_front[head.client] += head.prefill_end - head.num_scheduled
            elif availability is Availability.NEVER and self._outranks_last(head):
                self._preempt(self._running[-1])
            else:
                return False
        return len(self._running) + len(self._waiting) <= self.limits.max_running

    def _run(self, seq: SequenceState, now: float) -> None:
        insort(self._running, seq, key=_ORDER)
        if seq.scheduled_s is None:
            seq.scheduled_s = now
            seq.cached_len = seq.num_scheduled
            self.counts.begun_tokens += seq.prompt_len
            self.counts.prefix_hit_tokens += seq.num_scheduled
            self.counts.prefix_miss_tokens += seq.prompt_len - seq.num_scheduled

    def _outranks_last(self, seq: SequenceState) -> bool:
        """Return True if the last running sequence has a lower priority and comes later in order.

        A later arrival alone is no reason to preempt.
        """
        last = self._running[-1] if self._running else None
        return last is not None and seq.priority < last.priority and seq.order < last.order

    def _fit(self, now: float, *, are_places_left: bool) -> tuple[list[Slice], list[SequenceState]]:
        """Return slices whose spans are there, and their sequences."""
        limits = self.limits
        stalled: set[int] = set()
        num_waiting = len(self._waiting)  # more: one of them had to make way
        while True:
            pending = self._running
            if stalled:
                pending = [seq for seq in pending if seq.seq_id not in stalled]
            slices, seqs = plan_step(
                pending,
                limits.tuning,
                # Who waits takes the place of the next that ends: no step has empty places then.
                may_pause=are_places_left and len(self._waiting) == num_waiting,
                number=self._number,
                had=self._shares.had,
            )
            if self._reserve(slices, seqs, stalled):
                if limits.tuning.short_tokens:
                    self._shares.add_step(slices, seqs, now)
                return slices, seqs

    def _reserve(
        self, slices: Sequence[Slice], seqs: Sequence[SequenceState], stalled: set[int]
    ) -> bool:
        """Take the spans of all slices and count them as done; False if somebody made way."""
        for number, (part, seq) in enumerate(zip(slices, seqs, strict=True)):
            stop = part[_STOP]
            if stop > seq.capacity:
                availability = self._grow(seq, part)
                if availability is not Availability.NOW:
                    for counted, earlier in zip(slices[:number], seqs[:number], strict=True):
                        earlier.num_scheduled = counted.start
                    self._make_way(seq, availability, stalled)
                    return False
            seq.num_scheduled = stop
        return True

    def _grow(self, seq: SequenceState, part: Slice) -> Availability:
        if seq.is_decoding:
            self.kv_cache.publish(seq, seq.num_computed)
        return self.kv_cache.grow(seq, part.start, part.stop)

    def _make_way(self, seq: SequenceState, availability: Availability, stalled: set[int]) -> None:
        """Let a sequence that lacks spans skip this step, or the last one give its spans up."""
        if availability is Availability.LATER:
            stalled.add(seq.seq_id)
        else:
            self._preempt(self._running[-1])

    def _preempt(self, seq: SequenceState) -> None:
        """Take a sequence's spans."""
        if seq.num_scheduled < seq.max_pos:
            self._suspend(seq)
            self.counts.preemptions += 1
        else:  # its last token is in flight, and needs no spans but those of that step
            self._running.remove(seq)
            self.kv_cache.release(seq)

    def _suspend(self, seq: SequenceState) -> None:
        """Let a running sequence wait without keys; tokens in flight for it still come."""
        if seq.is_decoding:
            self.kv_cache.publish(seq, seq.num_computed)
        if seq.num_scheduled >= seq.prefill_end:
            seq.prefill_end = seq.num_scheduled + 1
        seq.is_decoding = False
        seq.discard_until_step = self._number
        self._running.remove(seq)
        self.kv_cache.release(seq)
        if self.kv_cache.shape.rope_state.needs_recompute(seq.rope_seq_len, seq.prefill_end):
            seq.reset_rope()
        insort(self._waiting, seq, key=_ORDER)

    def _take_updates(self) -> tuple[tuple[NewSequence, ...], tuple[TableUpdate, ...]]:
        """Return the changes that the runner has to know before the next step."""
        new_sequences: list[NewSequence] = []
        table_updates: list[TableUpdate] = []
        for seq in self.kv_cache.take_grown():
            if seq.ended:
                continue
            if not seq.is_known_to_runner:
                seq.is_known_to_runner = True
                new_sequences.append(seq.new_sequence())
            table_updates.extend(seq.table_updates())
        return tuple(new_sequences), tuple(table_updates)

    def _advance(self, seq: SequenceState, part: Slice, result: StepResult, now: float) -> None:
        """Take in a slice of a prefill, or one whose keys were given up since."""
        seq.take_prompt_logprobs(part, result.prompt_logprobs.get(seq.seq_id))
        if part.samples and seq.first_token_s is None:
            seq.first_token_s = now
        if result.number <= seq.discard_until_step:
            return
        self.counts.prefilled_tokens += part.num_tokens
        self._unpublished[seq] = part.stop
        if part.samples:
            seq.is_decoding = True
            self._release_followers(seq)

    def _release_followers(self, seq: SequenceState) -> None:
        for follower in seq.followers:
            if not follower.ended:
                insort(self._waiting, follower, key=_ORDER)
        seq.followers = ()

    def _end(
        self,
        seq: SequenceState,
        reason: FinishReason,
        now: float,
        token: NewToken | None = None,
        *,
        matched: int | None = None,
        error: Exception | None = None,
    ) -> None:
        is_computed = seq.is_decoding and error is None
        self._unpublished[seq] = seq.num_computed if is_computed else 0
        for queue in (self._running, self._waiting):
            _drop(queue, seq)
        seq.ended, seq.is_decoding = True, False
        self._num_seeing -= bool(seq.media_runs)
        del self._seqs[seq.seq_id]
        if seq.is_known_to_runner:
            self._finished.append(seq.seq_id)
        if seq.scheduled_s is None:
            self.counts.begun_tokens += seq.prompt_len
        self._release_followers(seq)
        self.counts.generated_tokens += token is not None
        self.counts.finished[reason] += 1
        usage = seq.usage(now)
        self._ended.append(Ended(seq, reason, usage, token, matched, error))


def _drop(queue: list[SequenceState], seq: SequenceState) -> None:
    """Remove a sequence from a queue in order, if it is there."""
    at = bisect_left(queue, seq.order, key=_ORDER)
    if at < len(queue) and queue[at] is seq:
        del queue[at]
