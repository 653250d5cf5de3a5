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
from spaninfer_engine.batch_order import longest_first
from spaninfer_engine.cache_map import CacheMap
from spaninfer_engine.config import EngineConfig
from spaninfer_engine.core import Core
from spaninfer_engine.core_slot import AnyCore, Asleep, CoreSlot
from spaninfer_engine.embedder import Embedder
from spaninfer_engine.errors import EngineAsleep, InvalidPrompt, QueueFull, UnsupportedTask
from spaninfer_engine.frontend import TASK_HINTS, Frontend
from spaninfer_engine.handle import Handles, RequestHandle, ResultQueue, complete
from spaninfer_engine.intake import Intake
from spaninfer_engine.keywords import (
    check_keywords,
    samplings_of,
    single_sampling,
    with_keywords,
)
from spaninfer_engine.prompts import (
    Prompt,
    check_sequence,
    is_conversation,
    is_one,
)
from spaninfer_engine.relay import RelayedRequest, TokenRelay
from spaninfer_engine.request import (
    Completion,
    FinishReason,
    Grammar,
    Placement,
    SamplingParams,
    TokenIds,
)
from spaninfer_engine.resource import Resource
from spaninfer_engine.startup.build import build
from spaninfer_engine.startup.components import FrontParts, Parts
from spaninfer_engine.stats import EngineStats
from spaninfer_engine.structured import StructuredOutput
from spaninfer_engine.texts import Text

LOOK_AGAIN_S = 5e-3  # a list waits so long for places in a full queue; steps begin some at a time


class Engine(Frontend, Resource):
    """Answers requests with one model, from any number of threads.

        with Engine("path/to/model") as engine:
            print(engine.generate("Once upon a time", max_tokens=40).text)

    `model` is a folder or file with a model, or a whole EngineConfig; `options` are fields of
    EngineConfig. Parts that were put together elsewhere are taken as they are.

    Wherever `sampling` is an argument, fields of SamplingParams are keyword arguments, too: they
    are set on top of it, or of `default_sampling` without it. So are those of StructuredOutput, as
    `json_schema` is. TypeError for an unknown one.

    One that is dropped without being closed gives back what it holds as well; its requests end with
    EngineClosed.
    """

    def __init__(self, model: str | Path | EngineConfig | Parts, **options: Any) -> None:
        parts = model if isinstance(model, Parts) else _build(model, options)
        self._asked = parts.asked
        # Threads, and all that they reach, know the core but not the engine: else none was dropped.
        self._slot = CoreSlot(parts)
        finalize(self, self._slot.drop).atexit = False  # threads end with the process
        self._handles = Handles()
        self._intake = Intake(parts)
        super().__init__(
            FrontParts(
                resolved=parts.resolved,
                context=self._core.context,
                vocab=parts.model.vocab,
                tokenizer=parts.tokenizer,
                template=parts.template,
                sampling=parts.sampling,
                media=parts.media,
                encoder=self._core.front if isinstance(self._core, Embedder) else None,
            )
        )
        self._started_s = monotonic()

    @property
    def config(self) -> EngineConfig | None:
        """The options it was made with; None for one of parts."""
        return self._asked

    def start_request(
        self,
        prompt: Prompt,
        sampling: SamplingParams | None = None,
        placement: Placement | None = None,
        **fields: Any,
    ) -> tuple[RequestHandle, ResultQueue]:
        """Let a prompt, as text or token ids, wait for its turn; return at once.

        Structured output is compiled first, unless `compile_grammar` has. Raises RequestError if
        the request is at fault, QueueFull if too many wait, EngineClosed.
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
        """Let a prompt wait for `hand_over`, whose text is made elsewhere: its tokens go to the
        relay. Raises as `start_request` does, UnsupportedTask for a model that does not generate.
        """
        request = self._intake.request(prompt, sampling, placement)
        return RelayedRequest(self._decoding().submit(request, relay, hold=True))

    def hand_over(self) -> None:
        """Let relayed requests begin; returns at once. The next command of any kind does as well.

        Raises UnsupportedTask for a model that does not generate.
        """
        with suppress(EngineAsleep):  # they have ended
            self._decoding().hand_over()

    def stop_relayed(self, request: RelayedRequest, index: int, reason: FinishReason) -> None:
        """End a choice of a relayed request before the next step."""
        self._core.stop((request.seqs[index].seq_id,), reason)

    def compile_grammar(self, structured: StructuredOutput, tenant: str = "") -> Grammar:
        """Compile the form of an answer, and wait for it: 1 ms for an ordinary schema.

        The tenant's requests of this form start without waiting as long as it is kept. The first
        form takes 2 s longer with a vocabulary of 150,000 tokens. Raises InvalidGrammar for one
        that cannot be used, UnsupportedTask without llguidance or a tokenizer, EngineUnavailable.
        """
        return self._intake.compile_grammar(structured, tenant)

    def stop(self, handle: RequestHandle) -> None:
        """End a request before the next step; what it has produced can still be read."""
        self._core.stop(tuple(handle.seq_ids), FinishReason.STOPPED)

    def freeze(self) -> None:
        """Compute no more steps until `thaw`; requests keep what they have, and may be stopped.

        Returns at once; the step under way is finished. Deadlines that pass meanwhile are noticed
        behind it. Raises UnsupportedTask for a model that does not generate.
        """
        self._decoding().freeze(is_frozen=True)

    def thaw(self) -> None:
        """Compute steps again; harmless where nothing was frozen."""
        with suppress(EngineAsleep):
            self._decoding().freeze(is_frozen=False)

    def reset_prefix_cache(self) -> None:
        """Share nothing computed so far with later requests; running ones continue.

        Raises UnsupportedTask for a model that does not generate.
        """
        with suppress(EngineAsleep):  # nothing is left of them
            self._decoding().forget_prefixes()

    def sleep(self, drain_s: float = 0.0) -> None:
        """Give weights and KV cache back until `wake_up`; harmless where it sleeps already.

        Requests that run may finish for so long, and are stopped then. Others, and those that come
        meanwhile, get EngineAsleep. The tokenizer and templates can be used. Raises ConfigError for
        an engine of parts, EngineClosed, StepTimeout.
        """
        self._slot.sleep(drain_s)

    def wake_up(self) -> None:
        """Read the weights again and take requests; harmless where it is awake.

        The same requests get the same tokens as before. Raises what the start does, and ConfigError
        where memory is left for a smaller context only; the engine sleeps on then.
        """
        self._slot.wake_up()

    def update_weights(self, model: str | Path, drain_s: float = 0.0) -> None:
        """Take the weights of a folder or file with the same model: architecture and shapes.

        What `check_weights` raises is raised before the weights in use are given back. Requests
        that run may finish for `drain_s` seconds, and are stopped then; those that come meanwhile
        get EngineAsleep. Nothing computed before is shared with later requests. Tokenizer, template
        and default sampling stay. Where the new weights cannot be read after all, the ones before
        are read again, and the error is raised. A sleeping engine reads them when it wakes up.
        """
        self._slot.update(Path(model), drain_s)

    def check_weights(self, model: str | Path) -> None:
        """Raise unless a folder or file holds the same model, by its configuration, and the names
        and shapes of its tensors: CheckpointError names what differs. Nothing changes.
        """
        self._slot.check(Path(model))

    @property
    def is_asleep(self) -> bool:
        """True between `sleep` and `wake_up`."""
        return isinstance(self._core, Asleep)

    def profiler(self) -> Profiler:
        """Return what measures the steps between its start and its stop; UnsupportedTask where the
        backend has none.
        """
        return BACKENDS[self.resolved.backend].profiler()

    def release(self, handle: RequestHandle) -> None:
        """Give up a request and what it has produced; stops it where it still runs.

        Idempotent. Not needed for a request whose queue was read to the end.
        """
        handle.queue.discard()
        if not handle.queue.is_finished:
            self.stop(handle)

    def sync(self, handle: RequestHandle | None = None, timeout: float | None = None) -> None:
        """Wait until a request, or every request there is now, has finished.

        `timeout` is in seconds; after it, TimeoutError is raised.
        """
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
        """Answer one prompt, or a list of prompts; waits for the answers.

        For a list, `sampling` is one for all or one for each. The result has all choices of the
        first prompt, then of the second, and so on; those whose `max_tokens` is largest are begun
        first, so that the last of them do not run alone. Raises the error of the first request
        that failed.
        """
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
        """Answer a conversation, or a list of conversations; waits for the answers.

            engine.chat([{"role": "user", "content": "Hello!"}], max_tokens=40).text

        `encode_chat` says what messages, tools and variables are and what it raises; all else is
        as in `generate`.
        """
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
        """Return the vectors [N C] of N texts, each a text or token ids; of one alone, [1 C].

        Texts share steps, the longest first. `normalize` to length 1, or not: None does what the
        model's files say. `dimensions` keeps that many channels, before they are normalised.
        `prompt` is put in front of texts, or the one of the model's files that `prompt_name` names;
        None: their default one. Raises TextTooLong for a text with more than `context` tokens,
        unless its end may be left out (`truncate`); InvalidPrompt, EngineClosed, NoMemory;
        UnsupportedTask for a model that gives no vectors.
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
        """Return the probabilities [N L] of the labels of N texts; `labels` names them.

        Raises as `embed` does; UnsupportedTask for a model that is no classifier.
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
        """Return how well N documents fit a query, or each its own: [N], more is better.

        A cross-encoder reads each pair, and its one label's probability is the score; of other
        models it is the cosine of the vectors. Raises as `embed` does; InvalidPrompt where there
        are as many queries neither as documents nor as one.
        """
        queries = [query] * len(documents) if isinstance(query, str) else query
        if len(queries) != len(documents):
            raise InvalidPrompt(
                f"{len(queries)} queries and {len(documents)} documents make no pairs; give one "
                "query, or as many as documents"
            )
        asked = self.encode_pairs(queries, documents, truncate=truncate)
        return self.scores_of(self.rows_of(asked), len(documents))

    # ---- texts whose steps somebody else forms (servers) -----------------------------------------

    def rows_of(self, texts: Sequence[Text]) -> NDArray[np.float32]:
        """Return the rows [N C] of N texts: pooled hidden states, or logits of labels."""
        core = self._core
        if isinstance(core, Embedder):
            return core.rows(texts)
        if isinstance(core, Asleep) and "generate" not in self.tasks:
            raise EngineAsleep
        raise self._generates()

    def stats(self) -> EngineStats:
        """Return what the engine has done and is doing."""
        uptime_s = monotonic() - self._started_s
        return self._core.stats(model=self.resolved.name, uptime_s=uptime_s)

    def cache_map(self) -> CacheMap:
        """Return what each span of the KV cache holds now, and for which sequence.

        Raises UnsupportedTask for a model that does not generate.
        """
        return self._decoding().cache_map()

    def close(self, drain_s: float = 0.0, patience_s: float | None = None) -> None:
        """Refuse new requests, let those there are finish for so long, stop the rest, and
        release everything; idempotent.

        Raises StepTimeout where a step hangs: nothing can be released then. `patience_s` is how
        long one may still take behind the drain; None: as long as any step.
        """
        self._intake.close()
        self._slot.close(drain_s, patience_s)

    def wait_over(self) -> None:
        """Wait until the engine is closed or has failed; its requests have been answered then.

        For servers, which end with it: a new process is what helps behind a step that failed.
        """
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
            raise EngineAsleep
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
        check_sequence(prompt)
        return self.tokenizer.encode(prompt) if isinstance(prompt, str) else prompt


def _build(model: str | Path | EngineConfig, options: Mapping[str, Any]) -> Parts:
    check_keywords(options, EngineConfig, "Engine")
    if isinstance(model, EngineConfig):
        return build(replace(model, **options))
    return build(EngineConfig(model=model, **options))
