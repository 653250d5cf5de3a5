"""Translation between wire fields and engine parameters."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, cast

from spaninfer_engine import InvalidSampling, Placement, SamplingParams

from spaninfer_serving.error_mapping import WIRE_NAMES
from spaninfer_serving.requests.forms import form_of
from spaninfer_serving.wire.chat import ChatRequest
from spaninfer_serving.wire.completions import CompletionRequest
from spaninfer_serving.wire.errors import Problem
from spaninfer_serving.wire.sampling import PlacedFields, SamplingFields

_NUMBERS = (
    *("max_tokens", "temperature", "top_p", "top_k", "min_p", "typical_p"),
    *("presence_penalty", "frequency_penalty", "repetition_penalty", "no_repeat_ngram"),
)
_TAKEN_AS_GIVEN = (
    *_NUMBERS,
    *("n", "min_tokens", "seed", "ignore_eos", "include_stop", "skip_special"),
    *("processed_logprobs", "prompt_logprobs"),
)
_SAMPLING = {WIRE_NAMES.get(ours, ours): ours for ours in _TAKEN_AS_GIVEN}  # by name on the wire


def defaults_of(defaults: SamplingParams) -> dict[str, Any]:
    """Return the values of a model's parameters that are numbers, by the names that they have in
    bodies.
    """
    return {WIRE_NAMES.get(ours, ours): getattr(defaults, ours) for ours in _NUMBERS}


def sampling_of(body: SamplingFields, defaults: SamplingParams) -> SamplingParams:
    """Return the model's defaults with the request's own values on top."""
    try:
        sampling = sampling_with(defaults, _given(body))
    except InvalidSampling as wrong:
        name = _said_as(body).get(wrong.parameter)
        if name is None:
            raise
        message = str(wrong).replace(wrong.parameter, name, 1)
        raise Problem(400, message, param=name) from wrong
    _check_answerable(body, sampling)
    return sampling


def _given(body: SamplingFields) -> dict[str, Any]:
    """Return what a request says itself, by the names in SamplingParams."""
    given: dict[str, Any] = {
        _SAMPLING[wire]: value
        for wire in _SAMPLING.keys() & body.model_fields_set
        if (value := getattr(body, wire)) is not None
    }
    if body.stop is not None:
        given["stop"] = (body.stop,) if isinstance(body.stop, str) else tuple(body.stop)
    if body.stop_token_ids is not None:
        given["stop_ids"] = tuple(body.stop_token_ids)
    if body.bad_words is not None:
        given["bad_words"] = tuple(body.bad_words)
    if body.logit_bias is not None:
        given["logit_bias"] = _bias(body.logit_bias)
    if body.top_k == -1:  # other servers' word for all tokens
        given["top_k"] = 0
    if body.seed is not None and -(1 << 63) <= body.seed < 0:  # OpenAI's are signed
        given["seed"] = body.seed + (1 << 64)
    if (form := form_of(body)) is not None:
        given["structured"] = form
    match body:
        case ChatRequest():
            given |= _chat_only(body)
        case CompletionRequest():
            given |= _completion_only(body)
    return given


def _check_answerable(body: SamplingFields, sampling: SamplingParams) -> None:
    """Raise Problem for what the engine can sample, and no answer can hold."""
    if body.stream and body.prompt_logprobs is not None:
        raise Problem(
            400,
            "prompt_logprobs cannot be streamed; omit stream, or send echo with logprobs "
            "to /v1/completions",
            param="prompt_logprobs",
            code="unsupported_parameter",
        )
    if body.best_of not in (None, sampling.n):
        raise Problem(
            400,
            f"best_of is {body.best_of}; this server returns every choice that it samples, so "
            f"best_of must equal n ({sampling.n})",
            param="best_of",
            code="unsupported_parameter",
        )


def sampling_with(defaults: SamplingParams, given: Mapping[str, Any]) -> SamplingParams:
    """Return the defaults with some values on top; most requests ask what others asked before."""
    values = tuple(sorted(given.items()))
    try:
        hash(values)
    except TypeError:  # biases, and the form of an answer
        return dataclasses.replace(defaults, **given)
    return _made_before(_Same(defaults), values)


class _Same:
    """A value that equals itself alone: parameters cannot be hashed."""

    def __init__(self, value: SamplingParams) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and other.value is self.value

    def __hash__(self) -> int:
        return id(self.value)


@lru_cache(maxsize=256)  # making and checking one takes 0.1 ms of the event loop
def _made_before(defaults: _Same, values: tuple[tuple[str, Any], ...]) -> SamplingParams:
    return dataclasses.replace(defaults.value, **dict(values))


def _said_as(body: SamplingFields) -> dict[str, str]:
    """Return the names that this request has for parameters, where it is not the usual one."""
    if not isinstance(body, ChatRequest):
        return {}
    newer = body.max_completion_tokens is not None
    return {"logprobs": "top_logprobs"} | ({"max_tokens": "max_completion_tokens"} if newer else {})


def _chat_only(body: ChatRequest) -> dict[str, Any]:
    given: dict[str, Any] = {}
    if body.max_completion_tokens is not None:
        given["max_tokens"] = body.max_completion_tokens
    if body.logprobs:
        given["logprobs"] = body.top_logprobs or 0
    elif body.top_logprobs is not None:
        raise Problem(400, "top_logprobs needs logprobs to be true", param="top_logprobs")
    return given


def _completion_only(body: CompletionRequest) -> dict[str, Any]:
    given: dict[str, Any] = {}
    if body.logprobs is not None:
        given["logprobs"] = body.logprobs
        if body.echo:
            given["prompt_logprobs"] = _echoed(body.logprobs, body.prompt_logprobs)
    if only_echoes(body):
        given |= {"max_tokens": 1, "min_tokens": 0}  # an engine draws one at least
    return given


def _echoed(logprobs: int, prompt_logprobs: int | None) -> int:
    """Return how many top tokens of an echoed prompt are computed."""
    if prompt_logprobs not in (None, logprobs):
        raise Problem(
            400,
            f"prompt_logprobs is {prompt_logprobs}; with echo and logprobs = {logprobs}, which "
            "report the prompt too, it must be equal to logprobs or omitted",
            param="prompt_logprobs",
        )
    return logprobs


def only_echoes(body: CompletionRequest) -> bool:
    """Return whether the prompt itself is all that is requested: its log-probabilities."""
    return body.echo and body.max_tokens == 0


def _bias(wire: Mapping[str, float]) -> dict[int, float]:
    try:
        return {int(token_id): bias for token_id, bias in wire.items()}
    except ValueError as wrong:
        raise Problem(
            400, f"logit_bias maps token ids to numbers: {wrong}", param="logit_bias"
        ) from wrong


def placement_of(
    body: PlacedFields, client: str, tenant: str = "", *, may_prioritise: bool
) -> Placement:
    """Return how the request stands among the others; Problem where it may not say so.

    Requests of one tenant with one `cache_salt` share prefixes, and what else is kept of content.
    """
    if body.priority and not may_prioritise:
        raise Problem(
            403,
            f"priority is {body.priority}; it requires a key that the server was given as "
            "--priority-key; omit it, or use such a key",
            type="permission_error",
            param="priority",
            code="priority_not_allowed",
        )
    return Placement(
        priority=body.priority or 0,
        deadline_s=body.deadline_s,
        tenant=f"{tenant}\n{body.cache_salt}" if body.cache_salt else tenant,
        client=client,
    )


def prompts_of(body: CompletionRequest) -> list[str] | list[list[int]]:
    """Return the prompts of a text completion as a list, all text or all token ids."""
    match body.prompt:
        case str(text):
            return [text]
        case []:
            raise Problem(400, "prompt is an empty list; give at least one prompt", param="prompt")
        case [int(), *_] as ids:
            return [cast(list[int], ids)]
        case many:
            return cast(list[str] | list[list[int]], many)
