"""The engine: a model that answers many requests at a time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from time import monotonic, sleep
from typing import Any, cast, overload
from weakref import finalize

import numpy as np
from numpy.typing import NDArray
from spaninfer_host_limits import usable_cpus

from spaninfer_engine.backends.backend import Profiler
from spaninfer_engine.backends.registry import BACKENDS
from spaninfer_engine.config import EngineConfig
from spaninfer_engine.core.cache_map import CacheMap
from spaninfer_engine.core.embedder import Embedder
from spaninfer_engine.core.loop import Core
from spaninfer_engine.core.slot import AnyCore, Asleep, CoreSlot
from spaninfer_engine.core.stats import EngineStats
from spaninfer_engine.errors import (
    EngineAsleep,
    EngineClosed,
    InvalidPrompt,
    QueueFull,
    UnsupportedTask,
)
from spaninfer_engine.frontend.frontend import TASK_HINTS, Frontend
from spaninfer_engine.frontend.intake import Intake
from spaninfer_engine.frontend.parts import FrontParts
from spaninfer_engine.output.handle import Handles, RequestHandle, ResultQueue, complete
from spaninfer_engine.output.relay import RelayedRequest, TokenRelay
from spaninfer_engine.request.keywords import (
    check_keywords,
    samplings_of,
    single_sampling,
    with_keywords,
)
from spaninfer_engine.request.prompts import (
    Prompt,
    check_prompt,
    is_conversation,
    is_one,
)
from spaninfer_engine.request.request import (
    Completion,
    FinishReason,
    Grammar,
    Placement,
    SamplingParams,
    TokenIds,
)
from spaninfer_engine.request.structured import StructuredOutput
from spaninfer_engine.request.texts import Text
from spaninfer_engine.resource import Resource
from spaninfer_engine.schedule.batch_order import longest_first
from spaninfer_engine.startup.build import build
from spaninfer_engine.startup.components import Parts

LOOK_AGAIN_S = 5e-3  # a list waits so long for places in a full queue; steps begin some at a time


class Engine(Frontend, Resource):
    """Answers requests with one model, from any number of threads.

        with Engine("path/to/model") as engine:
            print(engine.generate("Once upon a time", max_tokens=40).text)

    `model` is a model's folder or file, an EngineConfig, or components that were built elsewhere;
    `options` are fields of EngineConfig. Raises ConfigError, CheckpointError, and TypeError for an
    unknown option.

    Methods with a `sampling` argument also take fields of SamplingParams and of StructuredOutput
    (such as `json_schema`) as keywords, which override `sampling` or, without it,
    `default_sampling`. They raise TypeError for an unknown keyword.

    Methods that wait for the engine raise WrongThread in its own threads, where token masks run.

    An engine that is garbage-collected without being closed frees its resources too; its requests
    end with EngineClosed.
    """

    def __init__(self, model: str | Path | EngineConfig | Parts, **options: Any) -> None:
        parts = model if isinstance(model, Parts) else _build(model, options)
        self._asked = parts.asked
        # Threads, and all that they reach, know the core but not the engine: else none was dropped.
        self._slot = CoreSlot(parts)
        finalize(self, self._slot.drop).atexit = False  # threads end with the process
        self._handles = Handles()
        front = FrontParts(
            resolved=parts.resolved,
            context=self._core.context,
            vocab=parts.model.vocab,
            tokenizer=parts.tokenizer,
            template=parts.template,
            sampling=parts.sampling,
            media=parts.media,
            encoder=self._core.front if isinstance(self._core, Embedder) else None,
        )
        self._intake = Intake(front, parts.end_ids)
        super().__init__(front)
        self._started_s = monotonic()

    @property
    def config(self) -> EngineConfig | None:
        """The options it was made with; None if it was built from components."""
        return self._asked

    def start_request(
        self,
        prompt: Prompt,
        sampling: SamplingParams | None = None,
        placement: Placement | None = None,
        **fields: Any,
    ) -> tuple[RequestHandle, ResultQueue]:
        """Queue a request and return immediately; the prompt is text or token ids.

        Structured output is compiled first, unless `compile_grammar` has done so. Raises
        RequestError if the request is invalid, QueueFull, EngineClosed or EngineAsleep.
        """
        sampling = with_keywords(sampling or self.default_sampling, fields, "start_request")
        prompt = self._encoded(prompt)
        request = self._intake.request(prompt, sampling, placement or Placement())
        queue = ResultQueue(request.sampling.n, partial(self._handles.forget, request.id))
        handle = RequestHandle(request, prompt, self._core.submit(request, queue), queue)
        self._handles.add(handle)
        return handle, queue

    def start_relayed(
        self,
        prompt: TokenIds | Sequence[int],
        sampling: SamplingParams,
        placement: Placement,
        relay: TokenRelay,
    ) -> RelayedRequest:
        """Queue a request whose tokens go to `relay`, to be detokenised elsewhere; it starts with
        `hand_over`. Raises as `start_request`, and UnsupportedTask for a model that does not
        generate.
        """
        request = self._intake.request(prompt, sampling, placement)
        return RelayedRequest(self._decoding().submit(request, relay, hold=True))

    def hand_over(self) -> None:
        """Start the queued relayed requests, as any later command does; returns immediately.

        Raises UnsupportedTask for a model that does not generate.
        """
        with suppress(EngineAsleep, EngineClosed):  # they have ended
            self._decoding().hand_over()

    def stop_relayed(self, request: RelayedRequest, index: int, reason: FinishReason) -> None:
        """End a choice of a relayed request before the next step."""
        self._core.stop((request.seqs[index].seq_id,), reason)

    def compile_grammar(self, structured: StructuredOutput, tenant: str = "") -> Grammar:
        """Compile a form of answers, and return it; an ordinary schema takes 1 ms.

        While the caller keeps it, requests of the tenant with this form start without compiling.
        The first form takes 2 s more with a vocabulary of 150,000 tokens. Raises InvalidGrammar,
        UnsupportedTask without llguidance or a tokenizer, EngineUnavailable.
        """
        return self._intake.compile_grammar(structured, tenant)

    def stop(self, handle: RequestHandle) -> None:
        """Stop a request before the next step; its outputs so far can still be read."""
        self._core.stop(tuple(handle.seq_ids), FinishReason.STOPPED)

    def freeze(self) -> None:
        """Compute no further steps until `thaw`; requests keep their state, and may be stopped.

        Returns immediately; the current step completes. Deadlines that pass in the meantime take
        effect after `thaw`. Raises UnsupportedTask for a model that does not generate, EngineClosed
        and EngineAsleep.
        """
        self._decoding().freeze(is_frozen=True)

    def thaw(self) -> None:
        """Compute steps again; idempotent. Raises EngineClosed."""
        with suppress(EngineAsleep):
            self._decoding().freeze(is_frozen=False)

    def reset_prefix_cache(self) -> None:
        """Empty the prefix cache: later requests reuse nothing; running ones continue.

        Raises UnsupportedTask for a model that does not generate, and EngineClosed.
        """
        with suppress(EngineAsleep):  # nothing is left of them
            self._decoding().forget_prefixes()

    def sleep(self, drain_s: float = 0.0) -> None:
        """Free weights and KV cache until `wake_up`; idempotent.

        Running requests get `drain_s` seconds to finish, then they are stopped. Those that still
        wait then, and new ones from now on, get EngineAsleep; tokenizer and templates stay usable.
        Raises ConfigError for an engine built from components, EngineClosed, StepTimeout.
        """
        self._slot.check_thread("sleep")
        self._slot.sleep(drain_s)

    def wake_up(self) -> None:
        """Read the weights again and accept requests; idempotent.

        Equal requests get equal tokens before and after. Raises the errors of a start, and
        ConfigError if free memory allows only a smaller context; the engine then stays asleep.
        Raises EngineClosed if it was closed.
        """
        self._slot.check_thread("wake_up")
        self._slot.wake_up()

    def update_weights(self, model: str | Path, drain_s: float = 0.0) -> None:
        """Replace the weights by those of a folder or file with the same model.

        Raises as `check_weights`, before anything changes. Running requests get `drain_s` seconds
        to finish, then they are stopped; those that still wait then, and new ones in the meantime,
        get EngineAsleep. The prefix cache is emptied; tokenizer, template and default sampling
        stay. If reading the new weights fails, the previous ones are read again and the error is
        raised. A sleeping engine reads the new weights when it wakes up.
        """
        self._slot.check_thread("update_weights")
        self._slot.update(Path(model), drain_s)

    def check_weights(self, model: str | Path) -> None:
        """Raise CheckpointError unless a folder or file holds the same model: equal configuration,
        tensor names and shapes. The message names the first difference.
        """
        self._slot.check(Path(model))

    @property
    def is_asleep(self) -> bool:
        """True between `sleep` and `wake_up`."""
        return isinstance(self._core, Asleep)

    def profiler(self) -> Profiler:
        """Return a profiler of steps. Raises UnsupportedTask if the backend has none."""
        return BACKENDS[self.resolved.backend].profiler()

    def release(self, handle: RequestHandle) -> None:
        """Discard a request and its outputs, stopping it if it is running; idempotent.

        Not needed for a request whose queue was read to the end.
        """
        handle.queue.discard()
        if not handle.queue.is_finished:
            self.stop(handle)

    def sync(self, handle: RequestHandle | None = None, timeout: float | None = None) -> None:
        """Wait until a request, or without a handle every current request, has finished.

        Raises TimeoutError after `timeout` seconds.
        """
        self._slot.check_thread("sync")
        handles = [handle] if handle is not None else self._handles.all()
        until = None if timeout is None else monotonic() + timeout
        for waited_for in handles:
            left = None if until is None else max(0.0, until - monotonic())
            if not waited_for.queue.wait_finished(left):
                raise TimeoutError(f"request {waited_for.id} has not finished after {timeout} s")

    @overload
    def generate(
        self, prompts: Prompt, sampling: SamplingParams | None = None, **fields: Any
    ) -> Completion: ...

    @overload
    def generate(
        self,
        prompts: Sequence[Prompt],
        sampling: SamplingParams | Sequence[SamplingParams] | None = None,
        **fields: Any,
    ) -> list[Completion]: ...

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling: SamplingParams | Sequence[SamplingParams] | None = None,
        **fields: Any,
    ) -> Completion | list[Completion]:
        """Answer a prompt, or a list of prompts, and return when all answers are complete.

        A prompt is text or token ids; the rows of an array or tensor with two axes are a list of
        prompts. For a list, `sampling` is one for all or a list with one for each. The result has
        all choices of the first prompt, then of the second, and so on. Prompts with the largest
        `max_tokens` start first, so that the list finishes sooner. Raises the error of the first
        request that failed, and those of `start_request`.
        """
        self._slot.check_thread("generate")
        given = self.default_sampling if sampling is None else sampling
        if is_one(prompts):
            return self._generate([prompts], [single_sampling(given, fields, "generate")])[0]
        many = cast(Sequence[Prompt], prompts)
        return self._generate(many, samplings_of(given, len(many), fields, "generate"))

    @overload
    def chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        sampling: SamplingParams | None = None,
        **fields: Any,
    ) -> Completion: ...

    @overload
    def chat(
        self,
        messages: Sequence[Sequence[Mapping[str, Any]]],
        sampling: SamplingParams | Sequence[SamplingParams] | None = None,
        **fields: Any,
    ) -> list[Completion]: ...

    def chat(
        self,
        messages: Sequence[Mapping[str, Any]] | Sequence[Sequence[Mapping[str, Any]]],
        sampling: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        variables: Mapping[str, Any] | None = None,
        **fields: Any,
    ) -> Completion | list[Completion]:
        """Answer a conversation, or a list of conversations, and return when all are complete.

            engine.chat([{"role": "user", "content": "Hello!"}], max_tokens=40).text

        Messages, tools, variables and their errors are those of `encode_chat`; everything else is
        as in `generate`.
        """
        self._slot.check_thread("chat")
        given = self.default_sampling if sampling is None else sampling
        encode = partial(self.encode_chat, tools=tools, variables=variables)
        if is_conversation(messages):
            one = single_sampling(given, fields, "chat")
            return self._generate([encode(messages)], [one])[0]
        many = cast(Sequence[Sequence[Mapping[str, Any]]], messages)
        samplings = samplings_of(given, len(many), fields, "chat")
        if not self.takes_media:
            return self._generate([encode(each) for each in many], samplings)
        with ThreadPoolExecutor(usable_cpus()) as threads:  # decoding and scaling free the GIL
            waiting = {at: threads.submit(encode, many[at]) for at in longest_first(samplings)}
            try:  # the first are computed while files of others are read
                return self._generate_each(lambda at: waiting[at].result(), samplings)
            finally:
                threads.shutdown(cancel_futures=True)

    def embed(
        self,
        texts: Prompt | Sequence[Prompt],
        *,
        normalize: bool | None = None,
        truncate: bool = False,
        dimensions: int | None = None,
        prompt: str | None = None,
        prompt_name: str | None = None,
    ) -> NDArray[np.float32]:
        """Return the vectors [N C] of N texts, float32; a text is a string or token ids.

        A single text gives [1 C]. `normalize` scales vectors to length 1; None follows the model's
        files. `dimensions` keeps the first channels, before normalisation. `prompt` is prepended
        to every text; `prompt_name` names one of the model's files; None uses their default.
        Raises TextTooLong for a text with more than `context` tokens, unless `truncate` cuts its
        end; InvalidPrompt, EngineClosed, EngineAsleep, NoMemory; UnsupportedTask for a model
        without vectors.
        """
        front = self._for("embed")
        prefix = prompt if prompt_name is None else front.prompt_called(prompt_name)
        given = [texts] if is_one(texts) else cast(Sequence[Prompt], texts)
        asked = [
            front.text(each, number=number, truncate=truncate, prefix=prefix)
            for number, each in enumerate(given)
        ]
        return self.vectors_of(self.rows_of(asked), normalize=normalize, dimensions=dimensions)

    def classify(
        self, texts: Prompt | Sequence[Prompt], *, truncate: bool = False
    ) -> NDArray[np.float32]:
        """Return the probabilities [N L] of L labels for N texts, float32; `labels` names them.

        Raises as `embed`; UnsupportedTask for a model that is not a classifier.
        """
        front = self._for("classify")
        given = [texts] if is_one(texts) else cast(Sequence[Prompt], texts)
        asked = [
            front.text(each, number=number, truncate=truncate) for number, each in enumerate(given)
        ]
        return self.probabilities_of(self.rows_of(asked))

    def score(
        self, query: str | Sequence[str], documents: Sequence[str], *, truncate: bool = False
    ) -> NDArray[np.float32]:
        """Return the relevance scores [N] of N documents, float32; higher is better.

        `query` is one for all documents or a list with one for each. A cross-encoder scores pairs
        by the probability of its label; with other models the score is the cosine of the vectors.
        Raises as `embed`; InvalidPrompt if the numbers of queries and documents differ.
        """
        queries = [query] * len(documents) if isinstance(query, str) else query
        if len(queries) != len(documents):
            raise InvalidPrompt(
                f"{len(queries)} queries and {len(documents)} documents do not pair up; "
                "give one query, or one per document"
            )
        asked = self.encode_pairs(queries, documents, truncate=truncate)
        return self.scores_of(self.rows_of(asked), len(documents))

    # ---- texts whose steps somebody else forms (servers) -----------------------------------------

    def rows_of(self, texts: Sequence[Text]) -> NDArray[np.float32]:
        """Return a row [N C] per text: pooled hidden states, or logits of labels (float32).

        Raises the error of the first text that has none.
        """
        rows, errors = self.rows_and_errors(texts)
        if errors:
            raise errors[min(errors)]
        return rows

    def rows_and_errors(
        self, texts: Sequence[Text]
    ) -> tuple[NDArray[np.float32], dict[int, Exception]]:
        """Return the rows of texts as `rows_of` does, and errors by the number of a text, in whose
        place there is no row.
        """
        core = self._core
        if isinstance(core, Embedder):
            return core.rows(texts)
        if isinstance(core, Asleep) and "generate" not in self.tasks:
            raise core.refusal()
        raise self._generates()

    def stats(self) -> EngineStats:
        """Return counters since the start, and the current state."""
        uptime_s = monotonic() - self._started_s
        return self._core.stats(model=self.resolved.name, uptime_s=uptime_s)

    def cache_map(self) -> CacheMap:
        """Return the contents of every span of the KV cache, and the sequences that use it.

        Raises UnsupportedTask for a model that does not generate.
        """
        return self._decoding().cache_map()

    def close(self, drain_s: float = 0.0, patience_s: float | None = None) -> None:
        """Refuse new requests, give running ones `drain_s` seconds to finish, stop the rest, and
        free all resources; idempotent.

        `patience_s` is how long the last step, and a change of weights in another thread, may
        take after that; None: as long as any. Raises StepTimeout and WeightsTimeout if they hang,
        when nothing can be freed.
        """
        self._slot.check_thread("close")
        self._intake.close()
        self._slot.close(drain_s, patience_s)

    def wait_over(self) -> None:
        """Wait until the engine is closed or has failed and all of its requests are answered.

        For servers, which end with their engine: after a failed step only a new process helps.
        """
        self._slot.check_thread("wait_over")
        self._slot.wait_over()

    def __repr__(self) -> str:
        """Return the model, what computes, the context and the engine's state."""
        made = self.resolved
        return (
            f"<Engine {made.name!r} ({made.architecture}) on {made.device}, backend "
            f"{made.backend}, {made.dtype}, context {self.context}: {self._core.state.value}>"
        )

    @property
    def _core(self) -> AnyCore:
        return self._slot.core

    def _decoding(self) -> Core:
        core = self._core
        if isinstance(core, Core):
            return core
        if isinstance(core, Asleep) and "generate" in self.tasks:
            raise core.refusal()
        raise UnsupportedTask(
            f"this model ({self.resolved.architecture}) does not generate; {TASK_HINTS['generate']}"
        )

    def _generate(
        self, prompts: Sequence[Prompt], samplings: Sequence[SamplingParams]
    ) -> list[Completion]:
        return self._generate_each(prompts.__getitem__, samplings)

    def _generate_each(
        self, prompt_at: Callable[[int], Prompt], samplings: Sequence[SamplingParams]
    ) -> list[Completion]:
        handles: list[RequestHandle] = []
        order = longest_first(samplings)
        try:
            for number in order:
                handles.append(self._start_patiently(prompt_at(number), samplings[number]))
                handles[-1].queue.read_at_end()
            in_order = dict(zip(order, handles, strict=True))
            return [each for number in sorted(order) for each in complete(in_order[number])]
        finally:  # after an error or an interrupt the others are not waited for
            for handle in handles:
                self.release(handle)

    def _start_patiently(self, prompt: Prompt, sampling: SamplingParams) -> RequestHandle:
        """Start a request as soon as the queue has a place for it."""
        prompt_ids = self._encoded(prompt)
        while True:
            try:
                return self.start_request(prompt_ids, sampling)[0]
            except QueueFull:
                sleep(LOOK_AGAIN_S)

    def _encoded(self, prompt: Prompt) -> Sequence[int]:
        check_prompt(prompt)
        return self.tokenizer.encode(prompt) if isinstance(prompt, str) else prompt


def _build(model: str | Path | EngineConfig, options: Mapping[str, Any]) -> Parts:
    check_keywords(options, EngineConfig, "Engine")
    if isinstance(model, EngineConfig):
        return build(replace(model, **options))
    return build(EngineConfig(model=model, **options))
