"""POST /v1/chat/completions."""

from __future__ import annotations

from fastapi import APIRouter, Request
from fastapi.responses import Response
from spaninfer_engine import Placement

from spaninfer_serving.answers.chunks import chat_chunks
from spaninfer_serving.answers.responses import AnswerSpec, chat_response
from spaninfer_serving.http.stream import DataEvents
from spaninfer_serving.jobs.service import service_of
from spaninfer_serving.jobs.translated import TranslatedChat
from spaninfer_serving.openapi import answers_to
from spaninfer_serving.routes.respond import ask, read_chat, started, streamed, whole
from spaninfer_serving.wire.chat import ChatChunk, ChatRequest, ChatResponse

router = APIRouter()


@router.post("/v1/chat/completions", openapi_extra=answers_to(ChatRequest, ChatResponse, ChatChunk))
async def chat_completions(request: Request) -> Response:
    """Continue a conversation."""
    service = service_of(request)
    request.state.prompt_param = "messages"
    body, _, asked = await read_chat(request, ChatRequest, _as_it_is, ask)
    outputs = await started(request, asked, is_streamed=body.stream)
    spec = AnswerSpec(
        meta=asked.meta,
        words=service.words,
        prompts=asked.prompts,
        choices=asked.sampling.n,
        logprobs=asked.sampling.logprobs is not None,
        form=asked.answers,
    )
    if body.stream:
        return streamed(request, chat_chunks(outputs, spec), DataEvents())
    return await whole(request, lambda: chat_response(outputs, spec))


def _as_it_is(body: ChatRequest, _: Placement) -> TranslatedChat:
    return TranslatedChat(body)
