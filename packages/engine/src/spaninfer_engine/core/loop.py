"""The engine loop: accepts commands, plans and launches the next step, publishes earlier results.

    caller's threads              the loop's thread                             the output thread
    submit, stop, close ──►  commands ► plan ► start ► events ► wait ► apply  ──►  text, queues

Only the loop's thread touches the scheduler and the runner. Where the runner computes by itself,
a step is planned and started while the one before it runs:

    device     | step 7            | step 8            | step 9
    loop        apply 6, plan 8, start 8, events 6, wait 7 · apply 7, plan 9, start 9, events 7, …

Events are handed on once the device has its work. Where that computes by itself, the loop writes
outputs while it waits, and where nothing is left to compute; else the output thread does. When the
loop ends, in whatever way, its thread gives everything back.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from contextlib import closing, suppress
from functools import partial
from math import isinf
from queue import Empty, SimpleQueue
from threading import Event, Lock, Thread, current_thread
from time import monotonic, perf_counter

from spaninfer_engine.core import commands
from spaninfer_engine.core.cache_map import CacheMap, cache_map_of
from spaninfer_engine.core.gc_freeze import GcFreeze
from spaninfer_engine.core.stats import EngineState, EngineStats, StepTimes, snapshot
from spaninfer_engine.core.watchdog import Watchdog, stacks
from spaninfer_engine.errors import (
    EngineAsleep,
    EngineClosed,
    EngineUnavailable,
    StepTimeout,
    as_exception,
)
from spaninfer_engine.output.handle import ResultQueue
from spaninfer_engine.output.processor import EngineFailed, OutputProcessor, RequestStarted
from spaninfer_engine.output.relay import TokenRelay
from spaninfer_engine.request.request import FinishReason, Request
from spaninfer_engine.schedule.admission import Queued, Refused, admit, num_prompt_tokens
from spaninfer_engine.schedule.scheduler import Scheduler
from spaninfer_engine.schedule.sequence import SequenceState
from spaninfer_engine.startup.components import Outcome, PlanRunner
from spaninfer_engine.text.tokenizer import Tokenizer

# Idle for so long; a request that comes meanwhile waits for what is under way.
PUBLISH_AFTER_S = 0.5e-3  # behind the reader of the last output: the interpreter runs one thread
IDLE_WORK_AFTER_S = 0.05  # a graph takes 10 to 60 ms, and there are some hundred in all
STALLED_S = 0.05  # deadlines are looked at so often while nothing but disks is at work
CHECK_AFTER_S = 1.0  # behind that; a check of 50,000 spans takes 40 ms
EXPIRE_EVERY_S = 0.1  # at the most often: spans of one request expire at almost the same time
LOOK_AFTER_S = 3600.0  # at the latest: the clock may have been set

_log = logging.getLogger(__name__)


class Core:
    """Runs the steps of one scheduler and one runner in a thread of its own.

    A step that takes longer than `step_timeout_s` fails the engine: all waiting requests fail,
    and the hung thread is abandoned.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        runner: PlanRunner,
        tokenizer: Tokenizer,
        step_timeout_s: float,
    ) -> None:
        self.scheduler = scheduler
        self.times = StepTimes()
        self.state = EngineState.RUNNING
        self.failure: Exception | None = None  # what made a step fail; the engine is closed then
        self._runner = runner
        self._output_processor = OutputProcessor(tokenizer, self.stop)
        self._gc_freeze = GcFreeze()
        self._unclosed: Exception | None = None  # why not everything was given back
        self._started: deque[tuple[Outcome, float]] = deque()  # steps, and when they were
        self._finished_at = 0.0  # the newest step whose outcome is here
        self._opened: list[RequestStarted] = []  # unknown to the output processor
        self._held: list[RequestStarted] = []  # taken in, but unknown to the scheduler
        self._inbox: deque[commands.Command] = deque()
        self._wakes: SimpleQueue[None] = SimpleQueue()  # one for each command but held requests
        self._lock = Lock()  # over `state`, `_num_submitted`, and the order of the inbox
        self._num_submitted = 0  # sequences ever
        self._num_submitted_tokens = 0  # of their prompts
        self._copied: Callable[[], None] = _nothing_copied  # waits for the newest copies
        self._is_stalled = False  # do all sequences wait for spans from disk?
        self._close_at: float | None = None
        self._is_for_sleep = False  # is it closed to be built again? Under the lock
        self._is_dropped = False
        self._is_frozen = False  # no step is planned
        self._is_over = Event()  # everything is given back, or the thread given up
        self._watchdog = Watchdog(step_timeout_s, self._give_up)
        self._thread = Thread(target=self._work, name="spaninfer-core", daemon=True)
        self._thread.start()

    def submit(
        self, request: Request, queue: ResultQueue | TokenRelay, *, hold: bool = False
    ) -> tuple[SequenceState, ...]:
        """Let a request wait, or raise why it may not; what it produces goes to the queue.

        With `hold` it begins at the next `hand_over`, or command of any other kind.
        """
        with self._lock:
            self._check_open()
            admission = admit(request, self._queued(), self.scheduler.limits)
            if isinstance(admission, Refused):
                raise admission.reason
            seqs = self.scheduler.kv_cache.sequences_of(request, admission.limit)
            self._num_submitted += len(seqs)
            self._num_submitted_tokens += num_prompt_tokens(request)
            added = commands.Add(RequestStarted(seqs, queue), hold)
            if hold:  # an idle loop sleeps on
                self._inbox.append(added)
            else:
                self._send(added)
            return seqs

    def hand_over(self) -> None:
        """Let requests begin that were held; returns at once."""
        self._send(commands.HandOver())

    def _send(self, command: commands.Command) -> None:
        """Send the loop a command, from any thread, and without a lock."""
        self._inbox.append(command)
        self._wakes.put(None)

    def _queued(self) -> Queued:
        """Return what waits; to be called with the lock."""
        counts = self.scheduler.counts
        num_open = self._num_submitted - counts.finished.total()
        choices = num_open - self.scheduler.limits.max_running
        return Queued(max(choices, 0), self._num_submitted_tokens - counts.begun_tokens)

    @property
    def is_own_thread(self) -> bool:
        """True in a thread of its own, where masks and listeners of callers run."""
        return current_thread() is self._thread or self._output_processor.is_own_thread

    @property
    def context(self) -> int:
        """The most tokens that prompt and answer can have together."""
        return self.scheduler.limits.context

    def stats(self, *, model: str, uptime_s: float) -> EngineStats:
        """Return the numbers of now."""
        return snapshot(
            self.scheduler,
            self.times,
            model=model,
            state=self.state,
            failure=self.failure,
            uptime_s=uptime_s,
        )

    def cache_map(self) -> CacheMap:
        """Return a picture of the KV cache."""
        return cache_map_of(self.scheduler)

    def stop(self, seq_ids: tuple[int, ...], reason: FinishReason) -> None:
        """End sequences before the next step; returns at once."""
        self._send(commands.Stop(seq_ids, reason))

    def freeze(self, *, is_frozen: bool) -> None:
        """Plan no more steps, or plan them again; returns at once. Closing ends it; raises then."""
        with self._lock:
            self._check_open()
            self._send(commands.Freeze(is_frozen))

    def forget_prefixes(self) -> None:
        """Share nothing computed so far with requests that are submitted from now on; raises where
        none may be.
        """
        with self._lock:
            self._check_open()
            self.scheduler.kv_cache.begin_epoch()
            self._send(commands.ForgetPrefixes())

    def close(
        self, drain_s: float = 0.0, patience_s: float | None = None, *, for_sleep: bool = False
    ) -> None:
        """Take no more requests, let those there are finish for so long, stop the rest, and give
        everything back; raises why that failed. A step that takes `patience_s` longer hangs.

        With `for_sleep`, requests that come or still wait get EngineAsleep: it will be built again.
        """
        with self._lock:
            is_first = self.state is EngineState.RUNNING
            self._is_for_sleep = for_sleep and (is_first or self._is_for_sleep)
            if is_first:
                self.state = EngineState.DRAINING
            self._send(commands.Close(monotonic() + drain_s))
        if patience_s is None:
            self._is_over.wait()
        elif not self._is_over.wait(drain_s + patience_s):
            self._give_up(drain_s + patience_s)
        if isinstance(self.failure, StepTimeout) and self._thread.is_alive():
            raise self.failure
        self._thread.join()
        unclosed, self._unclosed = self._unclosed, None
        if unclosed is not None:
            raise unclosed

    def wait_over(self) -> None:
        """Wait until it is closed or has failed, and every request has its answer."""
        self._is_over.wait()

    def drop(self) -> None:
        """End every request with an error and release everything; returns at once.

        Python drops objects in any thread, wherever that is: here it may take no lock.
        """
        self._send(commands.Drop())

    def _work(self) -> None:
        self.scheduler.kv_cache.wake_with(partial(self._send, commands.Wake()))
        try:
            with (
                self._gc_freeze,
                closing(self._runner),
                closing(self.scheduler.kv_cache),
                closing(self._output_processor),
                closing(self._watchdog),
            ):
                self._run()
        except Exception as error:  # a GPU that failed says so again
            self._unclosed = error
        finally:
            self._is_over.set()

    def _run(self) -> None:
        try:
            while not self._is_done():
                self._take_commands()
                self._watchdog.begin()
                self._step()
                self._watchdog.end()
            if self._is_dropped:
                self._fail(EngineClosed("the engine was dropped before the request had finished"))
                return
            self._stop_all()
            self._watchdog.begin()
            while self._started:
                self._finish()
            self._watchdog.end()
            self.scheduler.publish_computed()
            self._copy_spans()
            self._hand_on()
            with self._lock:
                self.state = EngineState.CLOSED
        except BaseException as error:  # of the runner or our own: no request can go on
            if error is not self.failure:  # else the step has ended after all, but too late
                _log.critical("a step failed; the engine is closed", exc_info=error)
            self._fail(as_exception(error))

    def _stop_all(self) -> None:
        """End every request: before a sleep, those of which nothing has begun with an error."""
        now = monotonic()
        if self._is_for_sleep:
            self.scheduler.refuse_waiting(now, EngineAsleep())
        self.scheduler.stop_all(now, FinishReason.STOPPED)

    def _is_done(self) -> bool:
        if self._close_at is None or self._is_dropped:
            return self._is_dropped
        return self.scheduler.is_idle or monotonic() >= self._close_at

    def _take_commands(self) -> None:
        """Take in every command there is; with nothing else to do, wait for one."""
        if self.scheduler.is_idle or (self._is_frozen and not self._started):
            self._hand_on(now=True)
            self._wait()
        elif self._is_stalled:  # deadlines go on
            self._hand_on(now=True)
            with suppress(Empty):
                self._wakes.get(timeout=STALLED_S)
        while not self._wakes.empty():
            self._wakes.get()
        while self._inbox:
            self._take(self._inbox.popleft())

    def _wait(self) -> None:
        """Wait for the next command; do idle work while none arrives."""
        with suppress(Empty):
            return self._wakes.get(timeout=PUBLISH_AFTER_S)
        self.scheduler.publish_computed()
        self._copy_spans()
        with suppress(Empty):
            return self._wakes.get(timeout=IDLE_WORK_AFTER_S)
        while self._wakes.empty() and self._runner.run_idle_work():
            pass
        with suppress(Empty):
            return self._wakes.get(timeout=CHECK_AFTER_S)
        self.scheduler.check()
        while True:
            with suppress(Empty):
                return self._wakes.get(timeout=self._idle_s())
            self.scheduler.kv_cache.expire()
            self._copy_spans()

    def _idle_s(self) -> float | None:
        """Return after how many seconds of idleness spans expire, many at a time; None: never."""
        left_s = self.scheduler.kv_cache.time_left_s
        return None if isinf(left_s) else min(max(left_s, EXPIRE_EVERY_S), LOOK_AFTER_S)

    def _take(self, command: commands.Command) -> None:
        if isinstance(command, commands.Add):
            self._opened.append(command.opened)  # first: whatever fails now, it will be answered
            self._held.append(command.opened)
            if command.is_held:
                return
        while self._held:
            self.scheduler.add(self._held.pop(0).seqs)
        match command:
            case commands.Stop(seq_ids, reason):
                self.scheduler.stop(seq_ids, monotonic(), reason)
            case commands.Close(at):
                self._close_at, self._is_frozen = at, False
            case commands.Freeze(is_frozen):
                self._is_frozen = is_frozen
            case commands.ForgetPrefixes():
                self.scheduler.forget_prefixes()
            case commands.Drop():
                self._is_dropped = True
            case commands.Add() | commands.HandOver() | commands.Wake():
                pass

    def _step(self) -> None:
        """Start the next step, if there is one, and take in the oldest where it is due."""
        plan = None if self._is_frozen else self.scheduler.plan(monotonic())
        self._copy_spans()
        if plan is not None:
            begin = perf_counter()
            self._started.append((self._runner.start(plan), begin))
        lookahead = self._runner.lookahead
        self._hand_on(here=lookahead > 0 and bool(self._started))
        self._is_stalled = plan is None and not self._started
        if self._started and (plan is None or len(self._started) > lookahead):
            self._finish()

    def _copy_spans(self) -> None:
        """Begin the copies and transfers of KV cache offloading that are due before a step."""
        kv_cache = self.scheduler.kv_cache
        copies = kv_cache.take_copies()
        if copies:
            self._copied = self._runner.copy_spans(copies)
        kv_cache.submit_transfers(self._copied)

    def _finish(self) -> None:
        """Wait for the oldest step and take in what it sampled."""
        outcome, begin = self._started.popleft()
        if self._runner.lookahead:
            self._output_processor.write_until(lambda: outcome.is_done)
        result = outcome()
        end = perf_counter()
        self.times.add(end - max(begin, self._finished_at))  # without the step in front of it
        self._finished_at = end
        self.scheduler.apply(result, monotonic())

    def _hand_on(self, *, here: bool = False, now: bool = False) -> None:
        """Hand events on to the output thread; with `here`, this one writes them when it waits, and
        `now`, before this returns.
        """
        with self._lock:
            if self.failure is not None:  # the watchdog has ended every request
                raise self.failure
            self._output_processor.check()
            self._hand_on_opened(here=here or now)
        events = self.scheduler.take_events()
        if events is not None:
            self._output_processor.put(events, here=here or now)
        if now:
            self._output_processor.write()

    def _hand_on_opened(self, *, here: bool = False) -> None:
        for opened in self._opened:
            self._output_processor.put(opened, here=here)
        self._opened.clear()

    def _fail(self, error: Exception) -> None:
        """Answer every request with the error, in whatever state the scheduler is."""
        events = self.scheduler.take_events()
        if events is not None:
            self._output_processor.put(events)
        self.scheduler.abandon(self._refuse_all(error))

    def _give_up(self, limit_s: float) -> None:
        """Answer every request although the loop's thread hangs; called in another thread."""
        error = StepTimeout(limit_s)
        if not self._is_over.is_set():
            _log.critical("%s; stack traces of all threads:\n%s", error, stacks())
            self._refuse_all(error)
            self._is_over.set()

    def _refuse_all(self, error: Exception) -> list[SequenceState]:
        """Answer every request with an error, now and from now on; return the sequences that the
        scheduler does not know.
        """
        with self._lock:  # from here on nothing is submitted, so that no caller waits in vain
            if self.failure is None:
                self.state, self.failure = EngineState.FAILED, error
            held = list(self._held)
            while self._inbox:
                command = self._inbox.popleft()
                if isinstance(command, commands.Add):
                    self._opened.append(command.opened)
                    held.append(command.opened)
            late = [seq for opened in held for seq in opened.seqs]
            self._hand_on_opened()
            self._output_processor.put(EngineFailed(self.failure))
        return late

    def _check_open(self) -> None:
        """Raise why nothing more is taken; to be called with the lock."""
        if self.state is not EngineState.RUNNING:
            raise self._refusal() from self.failure

    def _refusal(self) -> EngineUnavailable:
        """Return why nothing more is taken."""
        if self.state is EngineState.FAILED:
            return EngineClosed(
                "the engine has failed and takes no more requests; its log says why"
            )
        if self._is_for_sleep:
            return EngineAsleep()
        return EngineClosed(f"the engine is {self.state.value} and takes no more requests")


def _nothing_copied() -> None:
    """No copy is under way."""
