"""The server's own description, with the bodies that its routes read and write themselves."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from fastapi.routing import APIRoute
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from spaninfer_serving.messages_api.envelope import PREFIX
from spaninfer_serving.wire.admin import (
    AbortRequest,
    LogLevelRequest,
    MemoryTags,
    UpdateWeightsRequest,
)
from spaninfer_serving.wire.chat import ChatChunk, ChatRequest, ChatResponse
from spaninfer_serving.wire.completions import CompletionRequest, CompletionResponse
from spaninfer_serving.wire.generate import GenerateRequest, GenerateResponse
from spaninfer_serving.wire.messages import (
    CountRequest,
    MessageObject,
    MessagesRequest,
)
from spaninfer_serving.wire.responses import ResponsesRequest
from spaninfer_serving.wire.sampling import SamplingFields
from spaninfer_serving.wire.texts import (
    ClassifyRequest,
    ClassifyResponse,
    EmbeddingRequest,
    EmbeddingResponse,
    RerankRequest,
    RerankResponse,
    ScoreRequest,
    ScoreResponse,
)
from spaninfer_serving.wire.tokenize import (
    DetokenizeRequest,
    DetokenizeResponse,
    TemplateRequest,
    TemplateResponse,
    TokenizeRequest,
    TokenizeResponse,
)

PLACE = "#/components/schemas/{model}"

# Statuses of a refusal, and when: those of every route, and those of routes that take a body.
ANYWHERE = {
    400: "Malformed HTTP or JSON, or an invalid value or prompt",
    401: "No valid key",
    403: "Not permitted with this key; or a server on loopback without a key was addressed by "
    "another host's name",
    404: "No such model, or no such address",
    405: "No such method at this address",
    413: "The body is larger than the server takes",
    429: "Too many requests are waiting; Retry-After says when to try again",
    431: "The head of the request is too large",
    500: "The server failed; its log says why, under the id of the answer",
}
WITH_BODY = {
    408: "The body did not arrive in time",
    415: "The body is not JSON by its content type, or it is compressed",
    503: "The server is draining or stopping, or its engine has failed",
}

ERROR = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"]},
                "code": {"type": ["string", "null"]},
            },
        }
    },
}
ANTHROPIC_ERROR = {
    "type": "object",
    "required": ["type", "error", "request_id"],
    "properties": {
        "type": {"const": "error"},
        "error": {
            "type": "object",
            "required": ["type", "message"],
            "properties": {"type": {"type": "string"}, "message": {"type": "string"}},
        },
        "request_id": {"type": ["string", "null"]},
    },
}
EVENT = {
    "type": "object",
    "required": ["data"],
    "properties": {"event": {"type": "string"}, "data": {"type": "string"}},
}
STATUS = {
    "type": "object",
    "required": ["status"],
    "properties": {"status": {"type": "string"}},
}

# What an answer to the first leads to: its id names a kept response.
LINKS = {"POST /v1/responses": ("/v1/responses/{response_id}", "response_id", "$response.body#/id")}

_DOCUMENTS = ["The crow had found a piece of cheese.", "Grapes hung high on the wall."]
_HELLO = [{"role": "user", "content": "Tell me a fable."}]
_CITY = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
}
_TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a city",
        "parameters": _CITY,
    },
}
_PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 20}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
EXAMPLES: Mapping[type[BaseModel], dict[str, dict[str, Any]]] = {
    ChatRequest: {
        "conversation": {"messages": _HELLO, "max_tokens": 64},
        "tools": {"messages": _HELLO, "tools": [_TOOL], "tool_choice": "auto", "max_tokens": 64},
    },
    ResponsesRequest: {
        "text": {"input": "Tell me a fable.", "max_output_tokens": 64},
        "conversation": {
            "instructions": "Be short.",
            "input": _HELLO,
            "max_output_tokens": 64,
            "store": False,
        },
        "JSON schema": {
            "input": "Who are you?",
            "max_output_tokens": 64,
            "text": {"format": {"type": "json_schema", "name": "person", "schema": _PERSON}},
        },
        "tools": {
            "input": "What is the weather in Paris?",
            "tools": [{"type": "function", **_TOOL["function"]}],
            "max_output_tokens": 64,
        },
    },
    MessagesRequest: {
        "conversation": {"messages": _HELLO, "system": "Be short.", "max_tokens": 64},
        "tools": {
            "messages": _HELLO,
            "tools": [{"name": "get_weather", "input_schema": _CITY}],
            "max_tokens": 64,
        },
    },
    CountRequest: {"conversation": {"messages": _HELLO, "system": "Be short."}},
    CompletionRequest: {"text": {"prompt": "Once upon a time", "max_tokens": 64}},
    GenerateRequest: {
        "text": {"text": "Once upon a time", "sampling_params": {"max_new_tokens": 64}},
        "token ids": {"input_ids": [5, 6, 7], "return_logprob": True},
    },
    TokenizeRequest: {"text": {"prompt": "Once upon a time"}, "chat": {"messages": _HELLO}},
    DetokenizeRequest: {"ids": {"tokens": [5, 6, 7]}},
    TemplateRequest: {"conversation": {"messages": _HELLO}},
    AbortRequest: {"one": {"request_ids": ["req-1"]}, "all": {"abort_all": True}},
    MemoryTags: {"all": {}, "some": {"tags": ["kv_cache"]}},
    UpdateWeightsRequest: {"folder": {"model_path": "step-100", "weight_version": "100"}},
    LogLevelRequest: {"level": {"level": "info"}},
    EmbeddingRequest: {"texts": {"input": _DOCUMENTS}},
    RerankRequest: {"texts": {"query": "Who had the cheese?", "documents": _DOCUMENTS}},
    ScoreRequest: {"texts": {"text_1": "Who had the cheese?", "text_2": _DOCUMENTS}},
    ClassifyRequest: {"texts": {"input": _DOCUMENTS}},
}
"""Bodies of each kind, by name; those with tools need a model whose chat template has them."""

ANSWERS = (
    ChatResponse, ChatChunk, MessageObject, CompletionResponse, GenerateResponse,
    TokenizeResponse, DetokenizeResponse, TemplateResponse,
    EmbeddingResponse, RerankResponse, ScoreResponse, ClassifyResponse,
)  # fmt: skip
"""Answers of routes that write them themselves; those of others are what the routes return."""

_FORMS: dict[str, dict[str, Any]] = {
    "JSON": {"response_format": {"type": "json_object"}},
    "JSON schema": {
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "person", "strict": True, "schema": _PERSON},
        }
    },
    "choice": {"structured_outputs": {"choice": ["yes", "no"]}},
    "regex": {"structured_outputs": {"regex": "[0-9]{4}-[0-9]{2}-[0-9]{2}"}},
    "grammar": {"structured_outputs": {"grammar": 'start: "a" NUMBER\nNUMBER: /[0-9]+/'}},
}


def answers_to(
    body: type[BaseModel],
    whole: type[BaseModel],
    event: type[BaseModel] | None = None,
    *,
    events: str | None = None,
    refused: Mapping[int, str] | None = None,
) -> dict[str, Any]:
    """Return what a route's description says about its body, and its kinds of answers.

    Of a stream, the model of its `event`, or a sentence about its `events`. `refused` are refusals
    of the route's own.
    """
    values = EXAMPLES[body]
    if issubclass(body, SamplingFields):
        plain = next(iter(values.values()))
        values = values | {name: plain | form for name, form in _FORMS.items()}
    examples = {name: {"value": value} for name, value in values.items()}
    asked = {"schema": _named(body), "examples": examples}
    content: dict[str, Any] = {"application/json": {"schema": _named(whole)}}
    says = "The answer"
    if event is not None:
        events = f"Events that hold a {event.__name__} each, then [DONE]"
    if events is not None:
        says += ", or with stream: its events"
        content["text/event-stream"] = {"schema": EVENT | {"description": events}}
    responses: dict[str, Any] = {"200": {"description": says, "content": content}}
    _refusals(responses, refused or {}, "Error")
    return {
        "requestBody": {"required": True, "content": {"application/json": asked}},
        "responses": responses,
    }


def query(**allowed: Sequence[str]) -> dict[str, Any]:
    """Return what a route's description says about its parameters in the query: their values, the
    first of which is the default.
    """
    return {
        "parameters": [
            {
                "name": name,
                "in": "query",
                "schema": {"type": "string", "enum": list(values), "default": values[0]},
            }
            for name, values in allowed.items()
        ]
    }


def refusals(statuses: Mapping[int, str]) -> dict[str, Any]:
    """Return what a route's description says about refusals of its own, by their statuses."""
    responses: dict[str, Any] = {}
    _refusals(responses, statuses, "Error")
    return {"responses": responses}


def describe(app: FastAPI, routes: Iterable[APIRoute]) -> dict[str, Any]:
    """Return the OpenAPI document of the app with these routes."""
    document = get_openapi(title=app.title, version=app.version, routes=app.routes)
    components = document.setdefault("components", {})
    components["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
    document["security"] = [{}, {"key": []}]  # a key where the server was given one
    answers = dict.fromkeys((*ANSWERS, *filter(None, (each.response_model for each in routes))))
    # An object that is read and written differently has two names: ToolCall-Input and -Output.
    models = (*product(EXAMPLES, ["validation"]), *product(answers, ["serialization"]))
    schemas = models_json_schema(models, ref_template=PLACE)[1]["$defs"]
    others = {"Error": ERROR, "AnthropicError": ANTHROPIC_ERROR, "Status": STATUS}
    components["schemas"] = schemas | others
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            _complete(path, method, operation["responses"])
    for source, link in LINKS.items():
        method, path = source.lower().split()
        document["paths"][path][method]["responses"]["200"]["links"] = _links(document, *link)
    return document


def _links(document: dict[str, Any], path: str, parameter: str, value: str) -> dict[str, Any]:
    """Return a link to each operation of a path."""
    return {
        method: {"operationId": operation["operationId"], "parameters": {parameter: value}}
        for method, operation in document["paths"][path].items()
    }


def _complete(path: str, method: str, responses: dict[str, Any]) -> None:
    """Add to the responses of a route what FastAPI cannot know."""
    responses.pop("422", None)
    error = "AnthropicError" if path.startswith(PREFIX) else "Error"
    _refusals(responses, ANYWHERE, error)
    if method == "post":
        _refusals(responses, WITH_BODY, error)
    if path.startswith("/health"):
        status = {"application/json": {"schema": {"$ref": PLACE.format(model="Status")}}}
        responses["200"]["content"] = status
        responses["503"] = {"description": "No", "content": status}
    if path == "/metrics":
        responses["200"]["content"] = {"text/plain": {"schema": {"type": "string"}}}


def _refusals(responses: dict[str, Any], statuses: Mapping[int, str], error: str) -> None:
    content = {"application/json": {"schema": {"$ref": PLACE.format(model=error)}}}
    for status, when in statuses.items():
        responses[str(status)] = {"description": when, "content": content}


def _named(model: type[BaseModel]) -> dict[str, str]:
    return {"$ref": PLACE.format(model=model.__name__)}
