"""POST /v1/messages and /v1/messages/count_tokens."""

from __future__ import annotations

import re
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import Response
from spaninfer_engine import Placement

from spaninfer_serving.http.typed_events import TypedEvents
from spaninfer_serving.ids import new_hex
from spaninfer_serving.jobs.translated import TranslatedChat
from spaninfer_serving.messages_api.answer import message_events, message_of
from spaninfer_serving.messages_api.envelope import error_body
from spaninfer_serving.messages_api.request import chat_of
from spaninfer_serving.openapi import answers_to
from spaninfer_serving.routes.respond import ask, count_prompt, read_chat, started, streamed, whole
from spaninfer_serving.wire.errors import Problem
from spaninfer_serving.wire.messages import (
    CountRequest,
    MessageObject,
    MessagesRequest,
    MessageUsage,
    TokenCount,
)

router = APIRouter()
EVENTS = "Events named after their type, from message_start to message_stop"
OLDEST = "2023-06-01"  # older versions have other events


@router.post(
    "/v1/messages", openapi_extra=answers_to(MessagesRequest, MessageObject, events=EVENTS)
)
async def create_message(request: Request) -> Response:
    """Continue a conversation, in Anthropic's form."""
    _check_version(request)
    request.state.prompt_param = "messages"
    body, _, job = await read_chat(request, MessagesRequest, _chat_of, ask)
    outputs = await started(request, job, is_streamed=body.stream)
    message = MessageObject(
        id=f"msg_{new_hex()}",
        model=job.meta.model,
        usage=MessageUsage(
            input_tokens=len(job.prompts[0].ids), cache_read_input_tokens=0, output_tokens=0
        ),
    )
    if body.stream:
        return streamed(request, message_events(outputs, message, job.answers), TypedEvents(_error))
    return await whole(request, lambda: message_of(outputs, message, job.answers))


@router.post("/v1/messages/count_tokens", openapi_extra=answers_to(CountRequest, TokenCount))
async def count_tokens(request: Request) -> TokenCount:
    """Say how many tokens the prompt of a message has."""
    _check_version(request)
    _, _, num_tokens = await read_chat(request, CountRequest, _chat_of, count_prompt)
    return TokenCount(input_tokens=num_tokens)


def _chat_of(body: MessagesRequest | CountRequest, _: Placement) -> TranslatedChat:
    return chat_of(body)


def _check_version(request: Request) -> None:
    """Raise Problem for a version of the API that is no date, or too old; it may be left out."""
    version = request.headers.get("anthropic-version", OLDEST)
    if not re.fullmatch(r"\d{4}-\d{2}-\d{2}", version) or version < OLDEST:
        raise Problem(
            400,
            f"anthropic-version is {version!r}; allowed is {OLDEST}, or a later date",
            param="anthropic-version",
        )


def _error(problem: Problem) -> dict[str, Any]:
    return error_body(problem.body()["error"], problem.status, None)
