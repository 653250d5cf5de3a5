"""The ASGI application: routes, errors, guard and the playground around one engine."""

from __future__ import annotations

import logging
from functools import cache
from importlib.metadata import version

from fastapi import FastAPI, Request
from fastapi.middleware.cors import CORSMiddleware
from fastapi.responses import JSONResponse
from spaninfer_engine import Engine, EngineError, EngineUnavailable
from starlette.exceptions import HTTPException

from spaninfer_serving.access_log import ID_HEADER, AccessLog
from spaninfer_serving.error_mapping import problem_of
from spaninfer_serving.guard import Guard, LocalNames
from spaninfer_serving.openapi import describe
from spaninfer_serving.routes import chat, completions, health, models, page, texts, tokenize
from spaninfer_serving.service import Service
from spaninfer_serving.settings import Settings
from spaninfer_serving.targets import OriginForm
from spaninfer_serving.wire.errors import Problem

log = logging.getLogger(__name__)


def create_app(engine: Engine, settings: Settings, *, local_only: bool = False) -> FastAPI:
    """Return the application; whoever made the engine closes it.

    `local_only`: requests that are addressed to another host than this machine are refused.
    """
    app = FastAPI(
        title="spaninfer",
        version=version("spaninfer-serving"),
        docs_url=None,  # both load scripts from elsewhere; see routes/page.py
        redoc_url=None,
        redirect_slashes=False,  # the redirect would go wherever the Host header says
    )
    # FastAPI's way to do it; made once: it takes tens of milliseconds
    app.openapi = cache(lambda: describe(app))  # type: ignore[method-assign]
    app.state.service = service = Service.new(engine, settings)
    for part in (chat, completions, texts, tokenize, models, health, page):
        app.include_router(part.router)
    app.add_exception_handler(Problem, _answer_problem)
    app.add_exception_handler(EngineError, _answer_engine_error)
    app.add_exception_handler(HTTPException, _answer_http)
    app.add_middleware(
        Guard,
        settings=settings,
        max_body_bytes=settings.largest_body(engine.context, takes_media=engine.takes_media),
        num_places=engine.resolved.max_running + engine.resolved.max_waiting,
    )
    if local_only:
        app.add_middleware(LocalNames)
    app.add_middleware(AccessLog, count=service.metrics.count_response)
    if settings.allow_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=list(settings.allow_origins),
            allow_methods=["GET", "POST"],
            allow_headers=["*"],  # OpenAI's JavaScript client sends a dozen of its own
            expose_headers=[ID_HEADER.decode(), "Retry-After"],
        )
    app.add_middleware(OriginForm)
    return app


def _respond(problem: Problem) -> JSONResponse:
    return JSONResponse(problem.body(), problem.status, headers=problem.headers)


async def _answer_problem(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, Problem)
    return _respond(error)


async def _answer_engine_error(request: Request, error: Exception) -> JSONResponse:
    problem = problem_of(error, getattr(request.state, "prompt_param", "prompt"))
    if problem.status >= 500:
        # An engine that has failed said how when it did: later requests are a line each.
        trace = None if isinstance(error, EngineUnavailable) else error
        log.error("%s %s: %s", request.method, request.url.path, error, exc_info=trace)
    return _respond(problem)


async def _answer_http(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    place = f"{request.method} {request.url.path}"
    message = f"there is no {place}" if error.status_code in (404, 405) else str(error.detail)
    return _respond(Problem(error.status_code, message, headers=dict(error.headers or {})))
