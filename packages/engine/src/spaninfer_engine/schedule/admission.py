"""Admission: whether a request may enter, decided before it waits."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np

from spaninfer_engine.errors import (
    EngineError,
    InvalidPrompt,
    InvalidSampling,
    PromptTooLong,
    QueueFull,
    RequestError,
)
from spaninfer_engine.request.media import PromptMedia
from spaninfer_engine.request.request import Request, SamplingParams, TokenIds
from spaninfer_engine.step.plan import Tuning

# Prompts that wait, in tokens for each place that requests have: 99 of 100 prompts of chats are
# shorter. A token takes 44 bytes while it waits, so 4,352 places hold 400 MB, whatever the context.
TOKENS_PER_PLACE = 2048


@dataclass(frozen=True, slots=True)
class Queued:
    """The work that waits already."""

    choices: int  # beyond those that may run
    tokens: int  # of prompts that no step has seen yet


@dataclass(frozen=True, slots=True)
class Limits:
    """The capacity of the engine."""

    context: int  # tokens of prompt and answer together, which the span pool can hold as well
    vocab: int
    max_running: int  # choices in one step
    max_waiting: int  # choices beyond those that may run
    tuning: Tuning  # of steps
    max_encoded: int = 0  # tokens of media whose encodings fit into their memory

    @property
    def max_waiting_tokens(self) -> int:
        """Tokens of prompts that no step has seen yet: 2,048 for each request there may be."""
        return (self.max_running + self.max_waiting) * TOKENS_PER_PLACE

    @property
    def step_tokens(self) -> int:
        """Tokens of one step."""
        return self.tuning.step_tokens


@dataclass(frozen=True, slots=True)
class Admitted:
    """The request may wait for its turn; each choice ends with this many tokens at the latest."""

    limit: int


@dataclass(frozen=True, slots=True)
class Refused:
    """The request may not enter."""

    reason: EngineError


def admit(request: Request, queued: Queued, limits: Limits) -> Admitted | Refused:
    """Decide whether a request may enter behind what waits."""
    reason = (
        _check_prompt(request.prompt_ids, limits)
        or _check_ids(request.sampling, limits.vocab)
        or _check_adapter(request.placement.adapter)
        or _check_media(request.media, limits)
        or _check_together(request, limits)
        or _check_queue(request, queued, limits)
    )
    if reason is not None:
        return Refused(reason)
    max_tokens = request.sampling.max_tokens
    if max_tokens is None:
        return Admitted(limits.context)
    return Admitted(min(limits.context, len(request.prompt_ids) + max_tokens))


def _check_prompt(prompt_ids: TokenIds, limits: Limits) -> EngineError | None:
    if len(prompt_ids) >= limits.context:
        return PromptTooLong(len(prompt_ids), limits.context)
    return check_token_ids(prompt_ids, limits.vocab)


def check_token_ids(prompt_ids: TokenIds, vocab: int) -> InvalidPrompt | None:
    """Return what is wrong with token ids of int64: there is none, or one that no model knows."""
    if not len(prompt_ids):
        return InvalidPrompt("the prompt is empty; it needs at least one token")
    if np.maximum.reduce(prompt_ids.view(np.uint64)) >= vocab:  # negative ones are the largest
        strange = _outside(prompt_ids.tolist(), vocab)
        allowed = f"0 to {vocab - 1}"
        return InvalidPrompt(f"the prompt holds token id {strange}; this model knows {allowed}")
    return None


def _check_ids(sampling: SamplingParams, vocab: int) -> EngineError | None:
    for name, ids in (("stop_ids", sampling.stop_ids), ("logit_bias", sampling.logit_bias)):
        strange = _outside(ids, vocab)
        if strange is not None:
            return InvalidSampling(name, strange, f"token ids from 0 to {vocab - 1}")
    return None


def _check_adapter(adapter: str | None) -> EngineError | None:
    if adapter is None:
        return None
    return RequestError(f"no adapter is called {adapter!r}; this engine has loaded none")


def _check_media(media: PromptMedia | None, limits: Limits) -> EngineError | None:
    for number, item in enumerate(media.items if media is not None else ()):
        if item.input.num_tokens > limits.max_encoded:
            return RequestError(
                f"the prompt's {item.input.kind} (number {number} of its media) has "
                f"{item.input.num_tokens} tokens; the memory of encodings holds "
                f"{limits.max_encoded}: lower max_pixels, fps or num_frames, or start the engine "
                "with a larger encoder_memory"
            )
    return None


def _check_together(request: Request, limits: Limits) -> EngineError | None:
    """Refuse media whose tokens see each other where one step cannot compute all of them."""
    media = request.media
    if media is None or not media.bidirectional:
        return None
    longest = max((run.stop - run.start for run in media.runs()), default=0)
    if longest > limits.step_tokens:
        return RequestError(
            f"the prompt has an image of {longest} tokens that see each other, and a step computes "
            f"{limits.step_tokens}: start the engine with step_tokens of {longest} or more"
        )
    if request.sampling.prompt_logprobs is not None:
        return InvalidSampling(
            "prompt_logprobs",
            request.sampling.prompt_logprobs,
            "None for prompts with images of this model, whose tokens see later ones",
        )
    return None


def _check_queue(request: Request, queued: Queued, limits: Limits) -> EngineError | None:
    # An empty queue takes any request: one with more choices than it holds would never enter.
    if queued.choices and queued.choices + request.sampling.n > limits.max_waiting:
        return QueueFull(queued.choices, limits.max_waiting)
    num_tokens = num_prompt_tokens(request)
    if queued.tokens and queued.tokens + num_tokens > limits.max_waiting_tokens:
        return QueueFull(queued.tokens, limits.max_waiting_tokens, "prompt tokens")
    return None


def num_prompt_tokens(request: Request) -> int:
    """Return the tokens of a request's prompt, as often as it has choices."""
    return len(request.prompt_ids) * request.sampling.n


def _outside(ids: Collection[int], vocab: int) -> int | None:
    if not ids or (min(ids) >= 0 and max(ids) < vocab):
        return None
    return next(token_id for token_id in ids if not 0 <= token_id < vocab)
