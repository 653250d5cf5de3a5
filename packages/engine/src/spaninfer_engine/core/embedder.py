"""The core of an engine with an encoder: texts in, vectors out, in the caller's thread.

Callers take turns step by step. Nothing waits in a queue, so there is no thread.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from threading import Condition, Event
from time import perf_counter
from typing import NamedTuple, NoReturn

import numpy as np

from spaninfer_engine.config import Resolved
from spaninfer_engine.core.stats import EngineState, EngineStats, StepTimes
from spaninfer_engine.errors import (
    EngineAsleep,
    EngineClosed,
    NoMemory,
    StepTimeout,
    UnsupportedTask,
)
from spaninfer_engine.frontend.encoder import EncoderFront
from spaninfer_engine.output.handle import ResultQueue
from spaninfer_engine.output.relay import TokenRelay
from spaninfer_engine.request.request import FinishReason, Request
from spaninfer_engine.request.texts import Errors, Rows, Task, Text
from spaninfer_engine.run.embedding import EmbeddingRunner
from spaninfer_engine.schedule.texts import steps_of
from spaninfer_engine.step.device import LaunchedTexts

WAYS: Mapping[Task, str] = {
    "embed": "vectors (Engine.embed)",
    "classify": "labels (Engine.classify)",
    "score": "scores (Engine.score)",
}


class _UnderWay(NamedTuple):
    """A launched step: the numbers of its texts, and since when it may be computed."""

    numbers: list[int]
    num_tokens: int
    launched: LaunchedTexts
    begun_s: float


class Embedder:
    """Runs the steps of one encoder."""

    def __init__(
        self,
        front: EncoderFront,
        runner: EmbeddingRunner,
        head: Callable[[Rows], Rows],
        resolved: Resolved,
    ) -> None:
        self.front = front
        self.state = EngineState.RUNNING
        self.failure: Exception | None = None  # what made a step fail; the engine is closed then
        self._runner, self._head, self._resolved = runner, head, resolved
        self._times = StepTimes()
        self._num_texts = self._num_tokens = 0  # ever computed
        self._idle_from_s = 0.0  # the end of the last step
        self._turn = Condition()  # held in a step; over all that follows and `state`
        self._calls = 0  # under way
        self._is_for_sleep = False  # is it closed to be built again?
        self._is_over = Event()

    @property
    def context(self) -> int:
        """The most tokens that a text can have."""
        return self.front.context

    def rows(self, texts: Sequence[Text]) -> tuple[Rows, Errors]:
        """Return the rows [N C] of N texts, computed in steps: vectors, or logits of labels; and
        the errors of texts that have none.
        """
        with self._call():
            return self._compute(texts)

    def submit(
        self,
        request: Request,  # noqa: ARG002
        queue: ResultQueue | TokenRelay,  # noqa: ARG002
    ) -> NoReturn:
        """Encoders generate nothing."""
        way = next(way for task, way in WAYS.items() if task in self.front.tasks)
        raise UnsupportedTask(
            f"this model is an encoder ({self.front.encoder.architecture}), which turns texts into "
            f"{way} and generates nothing; load a decoder to generate"
        )

    def stop(self, seq_ids: tuple[int, ...], reason: FinishReason) -> None:
        """Nothing waits: no request was ever submitted."""

    def stats(self, *, model: str, uptime_s: float) -> EngineStats:
        """Return the numbers of now."""
        return EngineStats(
            model=model,
            state=self.state,
            failure=self.failure,
            running=self._calls,
            waiting=0,
            span_len=self._resolved.span_len,
            spans=(),
            generated_tokens=0,
            prefilled_tokens=self._num_tokens,
            prefix_hit_tokens=0,
            prefix_miss_tokens=0,
            preemptions=0,
            finished=dict.fromkeys(FinishReason, 0),
            embedded_texts=self._num_texts,
            steps=self._times.num_steps,
            step_s=self._times.total_s,
            last_step_s=self._times.last_s,
            uptime_s=uptime_s,
        )

    def close(
        self, drain_s: float = 0.0, patience_s: float | None = None, *, for_sleep: bool = False
    ) -> None:
        """Take no more calls, let those there are finish for so long, and give everything back.

        With `for_sleep`, calls that come or are not done get EngineAsleep: it will be built again.
        """
        limit_s = -1 if patience_s is None else drain_s + patience_s
        if not self._turn.acquire(timeout=limit_s):
            raise StepTimeout(limit_s)
        try:
            is_first = self.state is EngineState.RUNNING
            self._is_for_sleep = for_sleep and (is_first or self._is_for_sleep)
            if is_first:
                self.state = EngineState.DRAINING
            self._turn.wait_for(lambda: not self._calls, timeout=drain_s)
            if self.state is EngineState.DRAINING:
                self.state = EngineState.CLOSED
            self._is_over.set()
            self._runner.close()
        finally:
            self._turn.release()

    def wait_over(self) -> None:
        """Wait until it is closed or has failed."""
        self._is_over.wait()

    def drop(self) -> None:
        """Give everything back; called last, so that no lock is needed."""
        self._runner.close()

    @contextmanager
    def _call(self) -> Iterator[None]:
        """Count a call, which may go on while the engine drains."""
        with self._turn:
            self._check_takes(EngineState.RUNNING)
            self._calls += 1
        try:
            yield
        finally:
            with self._turn:
                self._calls -= 1
                self._turn.notify_all()

    def _compute(self, texts: Sequence[Text]) -> tuple[Rows, Errors]:
        """Return rows and errors. The texts of a step that fails are computed one by one: who sent
        them may not know each other.
        """
        rows = np.empty((len(texts), self.front.encoder.width), np.float32)
        steps = steps_of(
            [len(text.ids) for text in texts],
            step_tokens=self._resolved.step_tokens,
            max_texts=self._resolved.max_running,
        )
        errors = self._run(steps, texts, rows)
        alone = [[number] for step in steps if len(step) > 1 for number in step if number in errors]
        for (number,) in alone:
            del errors[number]
        errors |= self._run(alone, texts, rows)
        for step in steps:
            if all(number in errors for number in step):
                self._check_computes(texts[step[0]], errors[step[0]])
        return rows, errors

    def _run(self, steps: Iterable[list[int]], texts: Sequence[Text], rows: Rows) -> Errors:
        """Compute steps, as many launched ahead as the device takes; return errors of texts."""
        under_way: deque[_UnderWay] = deque()
        errors: Errors = {}
        for numbers in steps:
            with self._turn:
                with self._attempt(numbers, errors):
                    under_way.append(self._launch(numbers, texts))
                if len(under_way) > self._runner.lookahead:
                    self._finish(under_way.popleft(), rows, errors)
        while under_way:
            with self._turn:
                self._finish(under_way.popleft(), rows, errors)
        return errors

    @contextmanager
    def _attempt(self, numbers: Iterable[int], errors: Errors) -> Iterator[None]:
        """Note an error for each of these texts; raises where no step is computed any more."""
        self._check_takes(EngineState.RUNNING, EngineState.DRAINING)
        try:
            yield
        except Exception as error:  # of a kernel, or our own
            errors.update(dict.fromkeys(numbers, error))

    def _check_computes(self, text: Text, error: Exception) -> None:
        """Close the engine where nothing of a failed step could be computed, and neither can the
        first token of its first text.
        """
        row = np.empty((1, self.front.encoder.width), np.float32)
        if not isinstance(error, NoMemory) and self._run([[0]], [Text(text.ids[:1])], row):
            with self._turn:
                self.state, self.failure = EngineState.FAILED, error
                self._is_over.set()

    def _launch(self, numbers: list[int], texts: Sequence[Text]) -> _UnderWay:
        taken, begun_s = [texts[number] for number in numbers], perf_counter()
        launched = self._runner.launch(taken)
        return _UnderWay(numbers, sum(len(text.ids) for text in taken), launched, begun_s)

    def _finish(self, step: _UnderWay, rows: Rows, errors: Errors) -> None:
        """Wait for a step and put its rows in their places."""
        with self._attempt(step.numbers, errors):
            step.launched.wait()
            rows[step.numbers] = self._head(step.launched.vectors())
            now_s = perf_counter()
            self._times.add(now_s - max(step.begun_s, self._idle_from_s))
            self._idle_from_s = now_s
            self._num_texts += len(step.numbers)
            self._num_tokens += step.num_tokens

    def _check_takes(self, *states: EngineState) -> None:
        if self.state not in states:
            if self._is_for_sleep and not self.failure:
                raise EngineAsleep
            why = "closed: a step failed" if self.failure else self.state.value
            raise EngineClosed(f"the engine is {why} and embeds no more texts") from self.failure
