"""POST /tokenize, /detokenize and /apply-template: prompts as the model would be given them."""

from __future__ import annotations

from functools import partial

from fastapi import APIRouter, Request
from fastapi.responses import Response
from pydantic import BaseModel

from spaninfer_serving.jobs.service import service_of
from spaninfer_serving.openapi import answers_to
from spaninfer_serving.requests.parse_pool import Check
from spaninfer_serving.routes.respond import caller_of, handled, with_media
from spaninfer_serving.wire.tokenize import (
    DetokenizeRequest,
    DetokenizeResponse,
    TemplateRequest,
    TemplateResponse,
    TokenizeRequest,
    TokenizeResponse,
)

router = APIRouter()


@router.post("/tokenize", openapi_extra=answers_to(TokenizeRequest, TokenizeResponse))
async def tokenize(request: Request) -> Response:
    """Return the token ids of a text or a conversation, those that stand for its media included."""
    request.state.prompt_param = "prompt"
    service = service_of(request)

    def begin(
        body: TokenizeRequest, check: Check
    ) -> tuple[TokenizeRequest, TokenizeResponse | None]:
        if not body.media():
            return body, service.tokenize(body, {}, check)
        service.named(body.model)  # before anything is read
        return body, None

    body, answer = await handled(request, TokenizeRequest, begin)
    if answer is None:
        request.state.prompt_param = "messages"
        tenant = service.settings.tenant_of(caller_of(request).key)
        answer = await with_media(request, body, tenant, partial(service.tokenize, body))
    return _json(answer)


@router.post("/detokenize", openapi_extra=answers_to(DetokenizeRequest, DetokenizeResponse))
async def detokenize(request: Request) -> Response:
    """Return the text of token ids."""
    request.state.prompt_param = "tokens"
    return _json(await handled(request, DetokenizeRequest, service_of(request).detokenize))


@router.post("/apply-template", openapi_extra=answers_to(TemplateRequest, TemplateResponse))
async def apply_template(request: Request) -> Response:
    """Return the text that the chat template makes of a conversation."""
    request.state.prompt_param = "messages"
    return _json(await handled(request, TemplateRequest, service_of(request).apply_template))


def _json(answer: BaseModel) -> Response:
    return Response(answer.model_dump_json(exclude_none=True), media_type="application/json")
