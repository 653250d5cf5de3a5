"""Bytes to a request, or a Problem that names the parameter at fault."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import from_json

from spaninfer_serving.wire.contents import check_contents
from spaninfer_serving.wire.errors import Problem
from spaninfer_serving.wire.fields import unknown

Body = TypeVar("Body", bound=BaseModel)

# A step of a finding's path that says which type of several was tried; classes have capitals.
_TRIED = re.compile(r"str$|list\[|literal\[|[A-Z]")


def check_headers(headers: Mapping[str, str]) -> None:
    """Raise Problem unless a body is announced as plain JSON.

    A web page of somebody else can have a browser send forms and text here without asking first;
    JSON it cannot.
    """
    content_type = headers.get("content-type", "").partition(";")[0].strip().lower()
    if content_type != "application/json" and not content_type.endswith("+json"):
        raise Problem(
            415,
            f"the content type is {content_type or 'not given'}; send JSON with the header "
            "'Content-Type: application/json'",
            code="unsupported_media_type",
        )
    encoding = headers.get("content-encoding", "identity")
    if encoding.lower() != "identity":
        raise Problem(
            415,
            f"the body is encoded as {encoding}; send it as it is, without Content-Encoding",
            code="unsupported_encoding",
        )


def parse(kind: type[Body], data: bytes) -> Body:
    """Return the body as a request of this kind; raises Problem."""
    if not data:
        raise Problem(400, "the body is not JSON: it is empty", code="invalid_json")
    check_contents(data)
    try:
        body = from_json(data)
    except ValueError as broken:
        raise Problem(400, f"the body is not JSON: {broken}", code="invalid_json") from broken
    try:
        return kind.model_validate(body)
    except ValidationError as invalid:
        raise problem_of_findings(invalid.errors(include_url=False), _names_inside(kind)) from None


@cache
def _names_inside(kind: type[BaseModel]) -> tuple[str, ...]:
    """Return the names of the fields of all objects inside a body of this kind."""
    inside = kind.model_json_schema().get("$defs", {}).values()
    return tuple(name for each in inside for name in each.get("properties", ()))


def problem_of_findings(findings: Sequence[Any], known: Iterable[str] = ()) -> Problem:
    """Return a refusal for the most precise of pydantic's findings; `known` are parameters."""
    found = max(findings, key=_precision)
    kind, context, place = found["type"], found.get("ctx", {}), found["loc"]
    if kind == "refused":
        param = _parameter(place, *context["inside"])
        return Problem(400, f"{param} {context['why']}", param=param, code=context["code"])
    if kind == "extra_forbidden":
        param = _parameter(place[:-1], place[-1])
        says = unknown(str(place[-1]), known)
        return Problem(400, f"{param} {says}", param=param, code="unknown_parameter")
    param = _parameter(place)
    return Problem(400, f"{param or 'the body'} {_sentence(found)}", param=param or None)


def _precision(found: Any) -> tuple[int, bool]:
    """Return more for a finding deeper inside; what is missing is last: a typo may be the cause."""
    depth = len(found["loc"]) + len(found.get("ctx", {}).get("inside", ()))
    return depth, found["type"] != "missing"


def _sentence(found: Any) -> str:
    """Return what is wrong about a parameter, and what came where that is short."""
    given = found["input"]
    match found["type"]:
        case "model_type":
            return "should be an object"
        case "missing":
            return "is missing"
    says = re.sub("^(Input|List|Dictionary|Value error,) | after validation", "", found["msg"])
    return f"{says}; it is {json.dumps(given)}" if isinstance(given, str | int | float) else says


def _parameter(place: tuple[str | int, ...], *inside: str) -> str:
    """Return the path of a finding as users write it: messages[0].content.

    The names `inside` of the place are a client's own: none is that of a type.
    """
    path = ""
    for step in place:
        if isinstance(step, int):
            path += f"[{step}]"
        elif not _TRIED.match(step):
            path += f".{step}"
    return ".".join((path, *inside)).lstrip(".")
