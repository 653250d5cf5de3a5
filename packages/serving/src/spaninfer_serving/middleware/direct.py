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

from spaninfer_serving.wire.errors import Problem


class DirectRoutes:
    """ASGI app that calls the plain routes of routers; `app` gets all other requests.

    `refuse` makes the answer of a Problem or an EngineError.
    """

    def __init__(
        self,
        app: ASGIApp,
        routers: Iterable[APIRouter],
        refuse: Callable[[Request, Problem | EngineError], Response],
    ) -> None:
        self._app, self._refuse = app, refuse
        self._endpoints = {
            (method, route.path): route.endpoint
            for router in routers
            for route in _plain_routes(router)
            for method in route.methods or ()
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer the request, or pass it on."""
        endpoint = self._endpoints.get((scope.get("method", ""), scope.get("path", "")))
        if endpoint is None:  # neither has a lifespan's scope
            await self._app(scope, receive, send)
            return
        request = Request(scope, receive, send)
        try:
            response = await endpoint(request)
        except (Problem, EngineError) as error:
            response = self._refuse(request, error)
        await response(scope, receive, send)


def _plain_routes(router: APIRouter) -> Iterator[APIRoute]:
    """Yield the routes that take the request alone and return a response.

    Not those with dependencies, which may decide who is let in.
    """
    for route in router.routes:
        if isinstance(route, APIRoute) and "{" not in route.path and not route.dependencies:
            signature = inspect.signature(route.endpoint, eval_str=True)
            kinds = [each.annotation for each in signature.parameters.values()]
            result = signature.return_annotation
            if kinds == [Request] and isinstance(result, type) and issubclass(result, Response):
                yield route
