"""Text completions as they travel."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, Field

from spaninfer_serving.wire.fields import Integers, Strings
from spaninfer_serving.wire.prompt_logprobs import PromptLogprobs
from spaninfer_serving.wire.sampling import SamplingFields, Usage

# Said in the description; the refusal is the engine's, which knows what else is empty.
_NOT_EMPTY = Field(json_schema_extra={"minLength": 1})
_SOME = Field(json_schema_extra={"minItems": 1})


class CompletionRequest(SamplingFields):
    """The body of POST /v1/completions. A prompt is text or token ids, or a list of either."""

    prompt: (
        Annotated[str, _NOT_EMPTY]
        | Annotated[Strings, _SOME]
        | Annotated[Integers, _SOME]
        | Annotated[list[Integers], Field(fail_fast=True), _SOME]
    )
    suffix: str | None = None  # the text behind what is asked for
    echo: bool = False
    logprobs: int | None = None
    add_special_tokens: bool = True


class CompletionLogprobs(BaseModel):
    """Parallel lists, one entry per token; the first token of an echoed prompt has none."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class CompletionChoice(BaseModel):
    """One answer, whole or a chunk of it."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None = None
    finish_reason: str | None
    stop_reason: str | int | None = None
    token_ids: list[int] | None = None
    prompt_logprobs: PromptLogprobs | None = None
    prompt_token_ids: list[int] | None = None


class CompletionResponse(BaseModel):
    """The whole answer, or one event of a stream."""

    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage | None = None
    system_fingerprint: str
