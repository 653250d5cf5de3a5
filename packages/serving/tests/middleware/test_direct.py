"""Routes called without FastAPI's layers."""

from __future__ import annotations

from fastapi import APIRouter, Depends, FastAPI, Request
from fastapi.responses import JSONResponse, PlainTextResponse, Response
from fastapi.testclient import TestClient
from spaninfer_serving.middleware.direct import DirectRoutes
from spaninfer_serving.wire.errors import Problem

LET_IN = "let in"


def refused(request: Request) -> None:
    raise Problem(403, f"{request.url.path} is closed")


def answered(_: Request, error: Exception) -> Response:
    assert isinstance(error, Problem)
    return JSONResponse(error.body(), error.status, headers=error.headers)


def client_of(*routers: APIRouter) -> TestClient:
    app = FastAPI()
    for router in routers:
        app.include_router(router)
    app.add_exception_handler(Problem, answered)
    return TestClient(DirectRoutes(app, routers, answered), raise_server_exceptions=False)


async def plain(_: Request) -> Response:
    return PlainTextResponse(LET_IN)


def test_a_dependency_of_a_router_or_a_route_decides_as_without_the_shortcut() -> None:
    closed = APIRouter(dependencies=[Depends(refused)])
    closed.add_api_route("/closed", plain)
    mixed = APIRouter()
    mixed.add_api_route("/open", plain)
    mixed.add_api_route("/shut", plain, dependencies=[Depends(refused)])
    client = client_of(closed, mixed)

    assert client.get("/open").text == LET_IN
    assert [client.get(path).status_code for path in ("/closed", "/shut")] == [403, 403]


def test_a_problem_of_a_plain_route_is_answered_as_everywhere() -> None:
    async def failing(_: Request) -> Response:
        raise Problem(418, "no coffee here")

    router = APIRouter()
    router.add_api_route("/coffee", failing)

    answer = client_of(router).get("/coffee")

    assert (answer.status_code, answer.json()["error"]["message"]) == (418, "no coffee here")


def test_a_whole_path_with_another_method_is_not_taken_for_a_path_with_a_parameter() -> None:
    def named(name: str) -> Response:
        return PlainTextResponse(name)

    router = APIRouter()
    router.add_api_route("/things/{name}", named, methods=["GET", "DELETE"])
    router.add_api_route("/things/new", plain, methods=["POST"])
    client = client_of(router)

    assert (client.post("/things/new").text, client.get("/things/old").text) == (LET_IN, "old")
    for method in ("GET", "DELETE", "PUT"):
        answer = client.request(method, "/things/new")
        assert (answer.status_code, answer.headers["Allow"]) == (405, "POST")
