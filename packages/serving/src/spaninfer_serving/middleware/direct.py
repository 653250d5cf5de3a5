"""Routes that are called without the web framework's layers in between.

Between a request and a function that takes it, FastAPI and Starlette put 14 calls: matching,
dependencies, exit stacks, one more pair of wrappers for errors. A route that takes the request and
returns the response needs none of them.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator

from fastapi import Request
from fastapi.responses import Response
from fastapi.routing import APIRoute, APIRouter
from spaninfer_engine import EngineError
from starlette.types import ASGIApp, Receive, Scope, Send

from spaninfer_serving.http.wrong_path import wrong_method
from spaninfer_serving.wire.errors import Problem


class DirectRoutes:
    """ASGI app that calls the plain routes of routers; `app` gets all other requests, but for those
    whose method the routes of their path do not take.

    `refuse` makes the answer of a Problem or an EngineError.
    """

    def __init__(
        self,
        app: ASGIApp,
        routers: Iterable[APIRouter],
        refuse: Callable[[Request, Problem | EngineError], Response],
    ) -> None:
        self._app, self._refuse = app, refuse
        routes = [route for router in routers for route in _whole_paths(router)]
        self._endpoints = {
            (method, route.path): route.endpoint
            for route in filter(_is_plain, routes)
            for method in route.methods or ()
        }
        self._methods: dict[str, set[str]] = {}
        for route in routes:
            self._methods.setdefault(route.path, set()).update(route.methods or ())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer the request, or pass it on."""
        method, path = scope.get("method", ""), scope.get("path", "")  # a lifespan has neither
        endpoint = self._endpoints.get((method, path))
        allowed = self._methods.get(path, (method,))
        if endpoint is None and method in allowed:
            await self._app(scope, receive, send)
            return
        request = Request(scope, receive, send)
        try:
            if endpoint is None:
                raise wrong_method(method, path, allowed)
            response = await endpoint(request)
        except (Problem, EngineError) as error:
            response = self._refuse(request, error)
        await response(scope, receive, send)


def _whole_paths(router: APIRouter) -> Iterator[APIRoute]:
    """Yield the routes whose paths have no parameters."""
    for route in router.routes:
        if isinstance(route, APIRoute) and "{" not in route.path:
            yield route


def _is_plain(route: APIRoute) -> bool:
    """Return whether a route takes the request alone and returns a response.

    None with dependencies, which may decide who is let in.
    """
    signature = inspect.signature(route.endpoint, eval_str=True)
    kinds = [each.annotation for each in signature.parameters.values()]
    result = signature.return_annotation
    returns_response = isinstance(result, type) and issubclass(result, Response)
    return kinds == [Request] and returns_response and not route.dependencies
