"""The server's own description, with the bodies that its routes read themselves."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel

from spaninfer_serving.wire.chat import ChatRequest
from spaninfer_serving.wire.completions import CompletionRequest

PLACE = "#/components/schemas/{model}"


def takes(body: type[BaseModel]) -> dict[str, Any]:
    """Return what a route's description says about its body."""
    content = {"application/json": {"schema": {"$ref": PLACE.format(model=body.__name__)}}}
    return {"requestBody": {"required": True, "content": content}}


def describe(app: FastAPI) -> dict[str, Any]:
    """Return the OpenAPI document of the app."""
    document = get_openapi(title=app.title, version=app.version, routes=app.routes)
    schemas = document.setdefault("components", {}).setdefault("schemas", {})
    for body in (ChatRequest, CompletionRequest):
        schema = body.model_json_schema(ref_template=PLACE)
        schemas |= schema.pop("$defs", {}) | {body.__name__: schema}
    return document
