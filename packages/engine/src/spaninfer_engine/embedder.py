"""The core of an engine with an encoder: texts in, vectors out, in the caller's thread.

Callers take turns step by step. Nothing waits in a queue, so there is no thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from threading import Condition
from time import perf_counter
from typing import NoReturn

import numpy as np

from spaninfer_engine.config import Resolved
from spaninfer_engine.errors import (
    EngineClosed,
    InvalidPrompt,
    NoMemory,
    StepTimeout,
    TextTooLong,
    UnsupportedTask,
    shown,
)
from spaninfer_engine.handle import ResultQueue
from spaninfer_engine.prompts import Prompt, check_sequence, token_ids
from spaninfer_engine.relay import TokenRelay
from spaninfer_engine.request import FinishReason, Request, TokenIds
from spaninfer_engine.run.embedding import EmbeddingRunner
from spaninfer_engine.schedule.admission import check_token_ids
from spaninfer_engine.schedule.texts import steps_of
from spaninfer_engine.spec.nodes import Encoder
from spaninfer_engine.stats import EngineState, EngineStats, StepTimes
from spaninfer_engine.text.templated_pairs import TemplatedPairs
from spaninfer_engine.text.tokenizer import Tokenizer
from spaninfer_engine.texts import Rows, Task, Text

WAYS: Mapping[Task, str] = {
    "embed": "vectors (Engine.embed)",
    "classify": "labels (Engine.classify)",
    "score": "scores (Engine.score)",
}


class Embedder:
    """Runs the steps of one encoder."""

    def __init__(
        self,
        encoder: Encoder,
        runner: EmbeddingRunner,
        head: Callable[[Rows], Rows],
        tokenizer: Tokenizer | TemplatedPairs,
        resolved: Resolved,
    ) -> None:
        self.state = EngineState.RUNNING
        self.failure: Exception | None = None  # what made a step fail; the engine is closed then
        self._encoder, self._runner, self._head = encoder, runner, head
        self._tokenizer, self._resolved = tokenizer, resolved
        self._times = StepTimes()
        self._num_texts = self._num_tokens = 0  # ever computed
        self._turn = Condition()  # held in a step; over all that follows and `state`
        self._calls = 0  # under way

    @property
    def context(self) -> int:
        """The most tokens that a text can have."""
        return self._resolved.max_len

    @property
    def encoder(self) -> Encoder:
        """The model."""
        return self._encoder

    @property
    def tasks(self) -> frozenset[Task]:
        """The supported tasks: vectors and their similarity, or a classifier's labels."""
        labels = self._encoder.labels
        if labels is None:
            return frozenset({"embed", "score"})
        if self._encoder.text.pairs is not None:
            return frozenset({"score"})
        return frozenset({"classify", "score"} if len(labels.names) == 1 else {"classify"})

    def text(
        self, prompt: Prompt, *, number: int = 0, truncate: bool = False, prefix: str | None = None
    ) -> Text:
        """Return the token ids of a text, checked; `number` is its own in messages.

        `prefix` is put in front of a text; None: what the model's files mean. Raises TextTooLong,
        InvalidPrompt.
        """
        check_sequence(prompt)
        if isinstance(prompt, str):
            prefix = self._default_prompt if prefix is None else prefix
            ids: Sequence[int] = self._tokenizer.encode(self._cased(prefix + prompt))
        elif prefix:
            raise InvalidPrompt("a prompt is put in front of texts, and this one is token ids")
        else:
            ids = prompt
        if truncate:
            ids = self._tokenizer.truncate(ids, self.context)
        return Text(self._checked(ids, number))

    def pair(self, first: str, second: str, *, number: int = 0, truncate: bool = False) -> Text:
        """Return the token ids of a pair of texts, as `text` does."""
        limit = self.context if truncate else None
        ids, second_from = self._tokenizer.encode_pair(
            self._cased(first), self._cased(second), limit
        )
        types = self._encoder.embedding.types
        has_types = types is not None and types.shape[0] > 1  # XLM-R has one for all tokens
        return Text(self._checked(ids, number), second_from if has_types else None)

    def prompt_called(self, name: str) -> str:
        """Return the prompt of the model's files with this name; InvalidPrompt without it."""
        prompts = dict(self._encoder.text.prompts)
        if name not in prompts:
            known = ", ".join(map(repr, prompts)) or "none"
            raise InvalidPrompt(
                f"prompt_name is {shown(name)}; this model's prompts are {known}: name one of "
                "them, or write the prompt into the texts"
            )
        return prompts[name]

    def rows(self, texts: Sequence[Text]) -> Rows:
        """Return the rows [N C] of N texts, computed in steps: vectors, or logits of labels."""
        rows = np.empty((len(texts), self._encoder.width), np.float32)
        steps = steps_of(
            [len(text.ids) for text in texts],
            step_tokens=self._resolved.step_tokens,
            max_texts=self._resolved.max_running,
        )
        with self._call():
            for numbers in steps:
                rows[numbers] = self._step([texts[number] for number in numbers])
        return rows

    def submit(
        self,
        request: Request,  # noqa: ARG002
        queue: ResultQueue | TokenRelay,  # noqa: ARG002
    ) -> NoReturn:
        """Encoders generate nothing."""
        way = next(way for task, way in WAYS.items() if task in self.tasks)
        raise UnsupportedTask(
            f"this model is an encoder ({self._encoder.architecture}), which turns texts into "
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

    @property
    def _default_prompt(self) -> str:
        name = self._encoder.text.default_prompt
        return "" if name is None else self.prompt_called(name)

    def _cased(self, text: str) -> str:
        return text.lower() if self._encoder.text.lower_case else text

    def _checked(self, ids: Sequence[int], number: int) -> TokenIds:
        if len(ids) > self.context:
            raise TextTooLong(number, len(ids), self.context)
        checked = token_ids(ids)
        if (problem := check_token_ids(checked, self._encoder.vocab)) is not None:
            raise problem
        return checked

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

    def _step(self, texts: Sequence[Text]) -> Rows:
        with self._turn:
            self._check_takes(EngineState.RUNNING, EngineState.DRAINING)
            begin = perf_counter()
            try:
                rows = self._head(self._runner.run(texts))
            except NoMemory:
                raise
            except Exception as error:  # of a kernel or our own: the next would meet it as well
                self.state, self.failure = EngineState.FAILED, error
                raise
            self._times.add(perf_counter() - begin)
            self._num_texts += len(texts)
            self._num_tokens += sum(len(text.ids) for text in texts)
            return rows

    def _check_takes(self, *states: EngineState) -> None:
        if self.state not in states:
            why = "closed: a step failed" if self.failure else self.state.value
            raise EngineClosed(f"the engine is {why} and embeds no more texts") from self.failure
