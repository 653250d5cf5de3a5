"""POST /v1/responses, and GET and DELETE of those that are kept."""

from __future__ import annotations

from functools import partial
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import Response
from spaninfer_engine import Placement

from spaninfer_serving.http.typed_events import TypedEvents
from spaninfer_serving.jobs.service import service_of
from spaninfer_serving.jobs.translated import TranslatedChat
from spaninfer_serving.openapi import answers_to
from spaninfer_serving.responses_api.answer import response_events
from spaninfer_serving.responses_api.jobs import ResponseService
from spaninfer_serving.responses_api.request import chat_of
from spaninfer_serving.routes.respond import (
    Recall,
    ask,
    caller_of,
    read_chat,
    started,
    streamed,
    whole,
)
from spaninfer_serving.wire.errors import Problem
from spaninfer_serving.wire.responses import DeletedResponse, ResponseObject, ResponsesRequest

router = APIRouter()


EVENTS = "Events named after their type, from response.created to response.completed"


@router.post(
    "/v1/responses", openapi_extra=answers_to(ResponsesRequest, ResponseObject, events=EVENTS)
)
async def create_response(request: Request) -> Response:
    """Continue a conversation that is given as items, or kept from before."""
    service = service_of(request)
    responses = ResponseService(service)
    request.state.prompt_param = "input"

    def recall(body: ResponsesRequest, placement: Placement) -> Recall | None:
        if body.previous_response_id is None:
            return None
        return partial(responses.recall, body, placement)

    body, asked, generation = await read_chat(request, ResponsesRequest, _alone, ask, recall)
    job = responses.begun(body, asked.translated.chat, generation)
    outputs = await started(request, generation, is_streamed=body.stream)
    if body.stream:
        finish = partial(responses.finish, job)
        events = response_events(outputs, job.response, job.generation.answers, finish)
        return streamed(request, events, TypedEvents(_error))
    return await whole(request, lambda: responses.whole(job, outputs))


@router.get("/v1/responses/{response_id}", response_model=ResponseObject)
async def kept_response(response_id: str, request: Request) -> Response:
    """Return a response that is kept."""
    account = caller_of(request).client.account
    stored = await service_of(request).client.kept_response(account, response_id)
    return Response(stored.json, media_type="application/json")


@router.delete("/v1/responses/{response_id}")
async def delete_response(response_id: str, request: Request) -> DeletedResponse:
    """Forget a response."""
    account = caller_of(request).client.account
    await service_of(request).client.forget_response(account, response_id)
    return DeletedResponse(id=response_id)


def _alone(body: ResponsesRequest, _: Placement) -> TranslatedChat:
    """Return the chat of a request that goes on from none."""
    return chat_of(body, ())


def _error(problem: Problem) -> dict[str, Any]:
    """Return the body of an `error` event, which clients number by themselves."""
    said = problem.body()["error"]
    return {
        "type": "error",
        "code": said["code"] or said["type"],
        "message": said["message"],
        "param": said["param"],
        "sequence_number": 0,
    }
