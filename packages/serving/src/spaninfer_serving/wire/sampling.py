"""The parameters that requests which generate share, as they travel."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

from pydantic import BaseModel, Field, StrictBool

from spaninfer_serving.wire.fields import Integers, ObjectFields, RequestFields, Strings
from spaninfer_serving.wire.structured import ResponseFormat, StructuredOutputs

Stop = str | Strings

# OpenAI's parameters that this server does not act on, with the values that ask for nothing.
# A body that has a field of the name acts on it.
NOT_SUPPORTED: Mapping[str, tuple[object, ...]] = {
    "audio": (None,),
    "function_call": (None, "none"),
    "functions": (None, []),
    "modalities": (None, ["text"]),
    "moderation": (None,),
    "parallel_tool_calls": (None, True, False),
    "prediction": (None,),
    "reasoning_effort": (None, "none"),
    "suffix": (None, ""),
    "tool_choice": (None, "none", "auto"),
    "tools": (None, []),
    "verbosity": (None, "medium"),
    "web_search_options": (None,),
}


class StreamOptions(ObjectFields):
    """Extra content of a stream beside the text."""

    not_supported: ClassVar = {"continuous_usage_stats": (None, False)}

    include_usage: StrictBool = False
    include_obfuscation: StrictBool = False  # accepted: nothing is padded here either way


class PlacedFields(RequestFields):
    """The parameters that say how a request stands among others."""

    priority: Annotated[int, Field(ge=-100, le=100)] | None = None
    deadline_s: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    cache_salt: str | None = None  # requests share spans only within a salt


class DrawFields(PlacedFields):
    """The parameters of requests that generate which OpenAI's and Anthropic's APIs share.

    Ranges are checked in one place, spaninfer_engine.SamplingParams; here only types.
    """

    model: str | None = None
    stream: bool = False
    temperature: float | None = None
    top_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    seed: int | None = None

    # not OpenAI's, but understood by most servers under these names
    top_k: int | None = None
    min_p: float | None = None
    typical_p: float | None = None
    repetition_penalty: float | None = None
    no_repeat_ngram_size: int | None = None
    min_tokens: int | None = None
    stop_token_ids: Integers | None = None
    bad_words: Strings | None = None
    ignore_eos: bool | None = None
    skip_special_tokens: bool | None = None


def draws_of(body: DrawFields) -> dict[str, Any]:
    """Return the parameters by name that `body` shares with every request that generates."""
    return {name: getattr(body, name) for name in DrawFields.model_fields}


class SamplingFields(DrawFields):
    """OpenAI's parameters, then those that local servers agree on; null means: the default."""

    not_supported: ClassVar = NOT_SUPPORTED

    stream_options: StreamOptions | None = None
    n: int | None = None
    best_of: int | None = None  # all that is drawn is returned, so it has to be n
    max_tokens: int | None = None
    stop: Stop | None = None
    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    include_stop_str_in_output: bool | None = None
    processed_logprobs: bool | None = None
    return_token_ids: bool = False
    prompt_logprobs: int | None = None  # of this many top tokens beside those of the prompt

    # accepted because clients send them; they cannot change an answer here
    user: str | None = None
    metadata: Annotated[dict[str, Any], Field(max_length=16)] | None = None  # OpenAI's own limit
    store: bool | None = None
    service_tier: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_options: dict[str, Any] | None = None
    prompt_cache_retention: str | None = None


class Usage(BaseModel):
    """Token counts of a whole request."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: dict[str, int]
