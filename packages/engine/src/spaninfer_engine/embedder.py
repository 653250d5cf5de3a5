"""The core of an engine with an encoder: texts in, vectors out, in the caller's thread.

Callers take turns step by step. Nothing waits in a queue, so there is no thread.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from threading import Condition
from time import perf_counter
from typing import NoReturn

import numpy as np
from numpy.typing import NDArray
from spaninfer_op_reference import normalize_rows

from spaninfer_engine.config import Resolved
from spaninfer_engine.errors import (
    EngineClosed,
    NoMemory,
    StepTimeout,
    TextTooLong,
    UnsupportedTask,
)
from spaninfer_engine.handle import ResultQueue
from spaninfer_engine.prompts import Prompt, check_sequence, token_ids
from spaninfer_engine.request import FinishReason, Request, TokenIds
from spaninfer_engine.run.embedding import EmbeddingRunner
from spaninfer_engine.schedule.admission import check_token_ids
from spaninfer_engine.schedule.texts import steps_of
from spaninfer_engine.spec.nodes import Encoder
from spaninfer_engine.stats import EngineState, EngineStats, StepTimes
from spaninfer_engine.text.tokenizer import Tokenizer

Vectors = NDArray[np.float32]


class Embedder:
    """Runs the steps of one encoder."""

    def __init__(
        self, encoder: Encoder, runner: EmbeddingRunner, tokenizer: Tokenizer, resolved: Resolved
    ) -> None:
        self.state = EngineState.RUNNING
        self.failure: Exception | None = None  # what made a step fail; the engine is closed then
        self._encoder, self._runner = encoder, runner
        self._tokenizer, self._resolved = tokenizer, resolved
        self._times = StepTimes()
        self._num_texts = self._num_tokens = 0  # ever computed
        self._turn = Condition()  # held in a step; over all that follows and `state`
        self._calls = 0  # under way

    @property
    def context(self) -> int:
        """The most tokens that a text can have."""
        return self._resolved.max_len

    def embed(
        self, prompts: Sequence[Prompt], *, normalize: bool | None, truncate: bool
    ) -> Vectors:
        """Return the vectors [N C] of N texts; see Engine.embed."""
        texts = [self._token_ids(number, each, truncate) for number, each in enumerate(prompts)]
        vectors = np.empty((len(texts), self._encoder.hidden), np.float32)
        steps = steps_of(
            [len(text) for text in texts],
            step_tokens=self._resolved.step_tokens,
            max_texts=self._resolved.max_running,
        )
        with self._call():
            for numbers in steps:
                vectors[numbers] = self._step([texts[number] for number in numbers])
        normalise = self._encoder.pool.normalise if normalize is None else normalize
        return normalize_rows(vectors) if normalise else vectors

    def submit(self, request: Request, queue: ResultQueue) -> NoReturn:  # noqa: ARG002
        """Encoders generate nothing."""
        raise UnsupportedTask(
            f"this model is an encoder ({self._encoder.architecture}), which turns texts into "
            "vectors (Engine.embed) and generates nothing; load a decoder to generate"
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

    def close(self, drain_s: float = 0.0, patience_s: float | None = None) -> None:
        """Take no more calls, let those there are finish for so long, and give everything back."""
        limit_s = -1 if patience_s is None else drain_s + patience_s
        if not self._turn.acquire(timeout=limit_s):
            raise StepTimeout(limit_s)
        try:
            if self.state is EngineState.RUNNING:
                self.state = EngineState.DRAINING
            self._turn.wait_for(lambda: not self._calls, timeout=drain_s)
            if self.state is EngineState.DRAINING:
                self.state = EngineState.CLOSED
            self._runner.close()
        finally:
            self._turn.release()

    def drop(self) -> None:
        """Give everything back; nobody calls any more, so that no lock is needed."""
        self._runner.close()

    def _token_ids(self, number: int, prompt: Prompt, truncate: bool) -> TokenIds:
        """Return the ids of a text, checked."""
        check_sequence(prompt)
        ids: Sequence[int] = prompt if not isinstance(prompt, str) else self._encoded(prompt)
        if truncate:
            ids = self._tokenizer.truncate(ids, self.context)
        if len(ids) > self.context:
            raise TextTooLong(number, len(ids), self.context)
        checked = token_ids(ids)
        if (problem := check_token_ids(checked, self._encoder.vocab)) is not None:
            raise problem
        return checked

    def _encoded(self, text: str) -> list[int]:
        return self._tokenizer.encode(text.lower() if self._encoder.lower_case else text)

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

    def _step(self, texts: Sequence[TokenIds]) -> Vectors:
        with self._turn:
            self._check_takes(EngineState.RUNNING, EngineState.DRAINING)
            begin = perf_counter()
            try:
                vectors = self._runner.run(texts)
            except NoMemory:
                raise
            except Exception as error:  # of a kernel or our own: the next would meet it as well
                self.state, self.failure = EngineState.FAILED, error
                raise
            self._times.add(perf_counter() - begin)
            self._num_texts += len(texts)
            self._num_tokens += sum(map(len, texts))
            return vectors

    def _check_takes(self, *states: EngineState) -> None:
        if self.state not in states:
            why = "closed: a step failed" if self.failure else self.state.value
            raise EngineClosed(f"the engine is {why} and embeds no more texts") from self.failure
