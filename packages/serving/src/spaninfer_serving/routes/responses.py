"""POST /v1/responses and /v1/responses/input_tokens; what there is of those that are kept."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any, get_args

from fastapi import APIRouter, Request
from fastapi.responses import Response
from spaninfer_engine import Placement

from spaninfer_serving.http.typed_events import TypedEvents
from spaninfer_serving.jobs.service import service_of
from spaninfer_serving.jobs.translated import TranslatedChat
from spaninfer_serving.openapi import answers_to
from spaninfer_serving.responses_api.answer import response_events
from spaninfer_serving.responses_api.input_items import input_items, page
from spaninfer_serving.responses_api.jobs import ResponseService
from spaninfer_serving.responses_api.request import chat_of
from spaninfer_serving.routes.respond import (
    Recall,
    ask,
    caller_of,
    count_prompt,
    read_chat,
    started,
    streamed,
    whole,
)
from spaninfer_serving.wire.errors import Problem
from spaninfer_serving.wire.fields import unknown
from spaninfer_serving.wire.listed_items import LIST_PARAMETERS, Includable, ItemList
from spaninfer_serving.wire.responses import (
    DeletedResponse,
    InputTokens,
    ResponseObject,
    ResponsesRequest,
)

router = APIRouter()


EVENTS = "Events named after their type, from response.created to response.completed"


@router.post(
    "/v1/responses", openapi_extra=answers_to(ResponsesRequest, ResponseObject, events=EVENTS)
)
async def create_response(request: Request) -> Response:
    """Continue a conversation that is given as items, or kept from before."""
    responses = ResponseService(service_of(request))
    request.state.prompt_param = "input"
    recall = _recall(responses)
    body, asked, generation = await read_chat(request, ResponsesRequest, _alone, ask, recall)
    job = responses.begun(body, asked.translated.chat, generation)
    outputs = await started(request, generation, is_streamed=body.stream)
    if body.stream:
        finish = partial(responses.finish, job)
        events = response_events(outputs, job.response, job.generation.answers, finish)
        return streamed(request, events, TypedEvents(_error))
    return await whole(request, lambda: responses.whole(job, outputs))


@router.post("/v1/responses/input_tokens", openapi_extra=answers_to(ResponsesRequest, InputTokens))
async def count_input_tokens(request: Request) -> InputTokens:
    """Say how many tokens the prompt of a response has."""
    request.state.prompt_param = "input"
    recall = _recall(ResponseService(service_of(request)))
    _, _, num_tokens = await read_chat(request, ResponsesRequest, _alone, count_prompt, recall)
    return InputTokens(input_tokens=num_tokens)


@router.get("/v1/responses/{response_id}", response_model=ResponseObject)
async def kept_response(response_id: str, request: Request) -> Response:
    """Return a response that is kept."""
    _included(request, "stream", "starting_after", "include_obfuscation")
    for name in ("stream", "starting_after"):
        if request.query_params.get(name, "false") != "false":
            says = f"{name} is not supported by this server"
            raise Problem(400, says, param=name, code="unsupported_parameter")
    account = caller_of(request).client.account
    stored = await service_of(request).client.kept_response(account, response_id)
    return Response(stored.json, media_type="application/json")


@router.get(
    "/v1/responses/{response_id}/input_items",
    response_model=ItemList,
    openapi_extra={"parameters": LIST_PARAMETERS},
)
async def list_input_items(response_id: str, request: Request) -> Response:
    """List the items that a response was made from, those of the responses before it included."""
    included, asked = _included(request, "order", "limit", "after"), request.query_params
    order, limit, after = asked.get("order", "desc"), asked.get("limit", "20"), asked.get("after")
    if order not in ("asc", "desc"):
        raise Problem(400, f"order is {order!r}; allowed are 'asc' and 'desc'", param="order")
    if not (limit.isascii() and limit.isdecimal() and len(limit) < 4 and 1 <= int(limit) <= 100):
        raise Problem(400, f"limit is {limit!r}; allowed is 1 to 100", param="limit")
    account = caller_of(request).client.account
    stored = await service_of(request).client.kept_response(account, response_id)

    def listed() -> bytes:
        has_images = "message.input_image.image_url" in included
        items = input_items(response_id, stored.messages(), has_images=has_images)
        return page(items, order, int(limit), after).model_dump_json().encode()

    return Response(await asyncio.to_thread(listed), media_type="application/json")


@router.post("/v1/responses/{response_id}/cancel", response_model=ResponseObject)
async def cancel_response(response_id: str, request: Request) -> Response:
    """Refuse to cancel a response: none runs in the background, which alone can be cancelled."""
    account = caller_of(request).client.account
    await service_of(request).client.kept_response(account, response_id)
    raise Problem(
        400,
        f"the response {response_id!r} is complete, and only responses with background can be "
        "cancelled, which this server does not take; to end one that runs, hang up",
        param="response_id",
    )


@router.delete("/v1/responses/{response_id}")
async def delete_response(response_id: str, request: Request) -> DeletedResponse:
    """Forget a response."""
    account = caller_of(request).client.account
    await service_of(request).client.forget_response(account, response_id)
    return DeletedResponse(id=response_id)


def _included(request: Request, *known: str) -> list[str]:
    """Return what is asked for beside the rest; Problem for what there is not.

    `known` are the other parameters of the route.
    """
    asked = request.query_params
    for name in asked:
        if name not in (*known, "include", "include[]"):
            says = f"{name} {unknown(name, (*known, 'include'))}"
            raise Problem(400, says, param=name, code="unknown_parameter")
    included = asked.getlist("include") + asked.getlist("include[]")
    for each in included:
        if each not in get_args(Includable):
            allowed = ", ".join(get_args(Includable))
            raise Problem(400, f"include is {each!r}; allowed are {allowed}", param="include")
    return included


def _recall(
    responses: ResponseService,
) -> Callable[[ResponsesRequest, Placement], Recall | None]:
    """Return what says how a request finds the response that it goes on from, if it does."""

    def recall(body: ResponsesRequest, placement: Placement) -> Recall | None:
        if body.previous_response_id is None:
            return None
        return partial(responses.recall, body, placement)

    return recall


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
