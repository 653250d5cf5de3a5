"""The ASGI application: routes, errors, guard and the playground around one engine."""

from __future__ import annotations

import logging
from functools import cache
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from fastapi import FastAPI, Request
from fastapi.middleware.asyncexitstack import AsyncExitStackMiddleware
from fastapi.middleware.cors import CORSMiddleware
from fastapi.responses import JSONResponse
from fastapi.routing import APIRoute
from spaninfer_engine import EngineError
from starlette.exceptions import HTTPException
from starlette.middleware.exceptions import ExceptionMiddleware
from starlette.types import ASGIApp

from spaninfer_serving.engine.client import EngineClient, LocalClient
from spaninfer_serving.error_mapping import problem_of, unexplained
from spaninfer_serving.http.wrong_path import wrong_method, wrong_path
from spaninfer_serving.jobs.service import Service
from spaninfer_serving.messages_api.envelope import AnthropicErrors, ApiKeyHeader
from spaninfer_serving.middleware.direct import DirectRoutes
from spaninfer_serving.middleware.guard import Guard
from spaninfer_serving.middleware.local_names import LocalNames
from spaninfer_serving.middleware.targets import OriginForm
from spaninfer_serving.observability.access_log import ID_HEADER, AccessLog
from spaninfer_serving.observability.figures import Figures
from spaninfer_serving.observability.tracing import Traced, make_tracer
from spaninfer_serving.openapi import describe
from spaninfer_serving.routes import (
    admin,
    cache_map,
    chat,
    completions,
    generate,
    health,
    messages,
    models,
    page,
    responses,
    texts,
    tokenize,
)
from spaninfer_serving.settings import Settings
from spaninfer_serving.wire.errors import Problem

if TYPE_CHECKING:
    from spaninfer_engine import Engine

log = logging.getLogger(__name__)

_APIS = (chat, completions, responses, messages, generate, texts)
_PARTS = (*_APIS, tokenize, models, health, cache_map, page)
ROUTERS = (*(part.router for part in _PARTS), admin.public, admin.router)


def create_app(
    engine: Engine | EngineClient,
    settings: Settings,
    *,
    local_only: bool = False,
    tracer: Any = None,
    figures: Figures | None = None,
) -> FastAPI:
    """Return the ASGI application; the caller closes the engine.

    With `local_only`, requests to another host name than this machine's are refused. `tracer` is an
    OpenTelemetry tracer for a span per request; None: one by the settings. `figures` are the
    counters of this process, if there are several.
    """
    app = _routed()
    app.openapi = _description  # type: ignore[method-assign] # FastAPI's way to do it
    client = engine if isinstance(engine, EngineClient) else LocalClient(engine, settings)
    app.state.service = service = Service.new(client, settings, figures)
    app.add_exception_handler(Problem, _answer_error)
    app.add_exception_handler(EngineError, _answer_error)
    app.add_exception_handler(HTTPException, _answer_http)
    others = ExceptionMiddleware(AsyncExitStackMiddleware(app.router), app.exception_handlers)
    routes = DirectRoutes(others, ROUTERS, _refuse)
    if tracer is None and settings.traces:
        tracer = make_tracer()
    app.middleware_stack = _guarded(routes, service, tracer, local_only=local_only)
    return app


def _routed() -> FastAPI:
    """Return an app with the routes, and nothing else."""
    app = FastAPI(
        title="spaninfer",
        version=version("spaninfer-serving"),
        docs_url=None,  # both load scripts from elsewhere; see routes/page.py
        redoc_url=None,
        redirect_slashes=False,  # the redirect would go wherever the Host header says
    )
    for router in ROUTERS:
        app.include_router(router)
    return app


@cache
def _description() -> dict[str, Any]:
    """Return the OpenAPI document: the same for every app, and 0.1 to 0.3 s of work."""
    return describe(_routed(), _routes())


def _guarded(app: ASGIApp, service: Service, tracer: Any, *, local_only: bool) -> ASGIApp:
    """Return the routes behind everything that a request passes first, innermost first."""
    settings, engine = service.settings, service.engine
    app = Guard(
        app,
        settings,
        max_body_bytes=settings.largest_body(engine.context, takes_media=engine.takes_media),
        num_places=settings.num_places(engine.resolved),
    )
    if local_only:
        app = LocalNames(app)
    if tracer is not None:
        app = Traced(app, tracer=tracer, model=service.model)
    app = AccessLog(app, count=service.metrics.count_response)
    if settings.allow_origins:
        app = CORSMiddleware(
            app,
            allow_origins=list(settings.allow_origins),
            allow_methods=["GET", "POST", "DELETE"],
            allow_headers=["*"],  # OpenAI's JavaScript client sends a dozen of its own
            expose_headers=[ID_HEADER.decode(), "Retry-After"],
        )
    return OriginForm(AnthropicErrors(ApiKeyHeader(app)))


def _respond(problem: Problem) -> JSONResponse:
    return JSONResponse(problem.body(), problem.status, headers=problem.headers)


async def _answer_error(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, Problem | EngineError)
    return _refuse(request, error)


def _refuse(request: Request, error: Problem | EngineError) -> JSONResponse:
    if isinstance(error, Problem):
        return _respond(error)
    problem = problem_of(error, getattr(request.state, "prompt_param", "prompt"))
    if problem.status >= 500:
        place = f"{request.method} {request.url.path}"
        log.error("%s: %s", place, error, exc_info=unexplained(error))
    return _respond(problem)


@cache
def _routes() -> tuple[APIRoute, ...]:
    routes = (route for router in ROUTERS for route in router.routes)
    return tuple(route for route in routes if isinstance(route, APIRoute))


@cache
def _paths() -> tuple[str, ...]:
    """Return the paths of all routes, but for those with a name in them."""
    return tuple(sorted({route.path for route in _routes() if "{" not in route.path}))


async def _answer_http(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    method, path = request.method, request.scope["path"]
    if error.status_code == 405:
        routes = (route for route in _routes() if route.path_regex.match(path))
        # Starlette's Allow has the methods of the first of them alone.
        allowed = {each for route in routes for each in route.methods or ()}
        return _respond(wrong_method(method, path, allowed))
    is_unknown = error.status_code == 404
    message = wrong_path(method, path, _paths()) if is_unknown else str(error.detail)
    return _respond(Problem(error.status_code, message, headers=dict(error.headers or {})))
