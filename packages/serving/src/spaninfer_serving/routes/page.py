"""GET / and /page/*, the playground; and a sentence at /docs."""

from __future__ import annotations

from importlib.resources import files
from mimetypes import guess_type

from fastapi import APIRouter, Request
from fastapi.responses import PlainTextResponse, Response

from spaninfer_serving.wire.errors import Problem

router = APIRouter()

# Read once: files that are sent to many slow readers would each be open for as long as that takes.
FILES = {
    file.name: (file.read_bytes(), guess_type(file.name)[0])
    for file in (files("spaninfer_serving") / "page").iterdir()
}

# The page loads nothing from elsewhere, and nothing else may be framed around it.
HEADERS = {
    "Content-Security-Policy": (
        "default-src 'self'; img-src 'self' data:; media-src data:; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
}

DOCS = """This server speaks OpenAI's API at /v1; GET /openapi.json describes it for programs.
Parameters, errors and metrics: the guide "Serve a model" of spaninfer (docs/guides/serve.md).
A playground is at /.
"""


@router.head("/", include_in_schema=False)
@router.get("/", include_in_schema=False)
async def page(_: Request) -> Response:
    """Return the playground."""
    return _file("index.html")


@router.head("/page/{name}", include_in_schema=False)
@router.get("/page/{name}", include_in_schema=False)
async def page_file(name: str) -> Response:
    """Return one of the playground's files."""
    if name not in FILES:
        raise Problem(404, f"there is no GET /page/{name}")
    return _file(name)


@router.get("/docs", include_in_schema=False)
async def docs() -> PlainTextResponse:
    """Say where the documentation is."""
    return PlainTextResponse(DOCS)


def _file(name: str) -> Response:
    content, media_type = FILES[name]
    return Response(content, media_type=media_type, headers=HEADERS)
