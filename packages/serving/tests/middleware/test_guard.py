import asyncio

import httpx
import pytest
from spaninfer_serving.middleware.guard import BodyBudget, Guard
from spaninfer_serving.middleware.local_names import LocalNames
from spaninfer_serving.settings import Settings
from spaninfer_serving.wire.errors import Problem
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route


async def echo(request):
    return PlainTextResponse(f"{len(await request.body())} bytes")


def send(settings, method="POST", path="/v1/x", **options):
    routes = [
        Route(p, echo, methods=["GET", "POST"]) for p in ("/v1/x", "/health/live", "/metrics")
    ]
    app = Guard(Starlette(routes=routes), settings, settings.largest_body(context=100), 8)

    async def call():
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            return await client.request(method, path, **options)

    return asyncio.run(call())


def test_a_body_under_the_limit_arrives_whole():
    assert send(Settings(max_body_bytes=10), content=b"x" * 10).text == "10 bytes"


def test_a_declared_body_over_the_limit_is_refused_by_size():
    response = send(Settings(max_body_bytes=10), content=b"x" * 11)

    assert response.status_code == 413
    assert response.json()["error"]["message"].endswith("limit of 10 bytes")


def test_a_body_that_does_not_say_its_size_is_counted():
    async def chunks():
        for _ in range(3):
            yield b"xxxx"

    assert send(Settings(max_body_bytes=10), content=chunks()).status_code == 413


def test_large_bodies_share_a_bounded_room_and_give_it_back():
    budget = BodyBudget(ordinary_bytes=10, own_bytes=50, shared_bytes=100)
    budget.take(0, 110)
    with pytest.raises(Problem, match="too many bodies"):
        budget.take(0, 11)

    budget.give_back(110)
    budget.take(0, 110)

    assert (budget.own_bytes, budget.shared_bytes) == (40, 0)


def test_large_bodies_leave_room_for_as_many_ordinary_ones_as_there_are_places():
    budget = BodyBudget(ordinary_bytes=10, own_bytes=50, shared_bytes=100)
    budget.take(0, 60)
    budget.take(60, 50)

    for _ in range(4):
        budget.take(0, 7)
        budget.take(7, 3)

    assert (budget.own_bytes, budget.shared_bytes) == (0, 0)


def test_bodies_on_their_way_share_the_room_of_the_guard_until_they_are_whole():
    app = Guard(Starlette(routes=[Route("/v1/x", echo, methods=["POST"])]), Settings(), 10, 3)
    app._body_budget = BodyBudget(ordinary_bytes=5, own_bytes=15, shared_bytes=10)

    async def call():
        async def slow(size, go_on):
            yield b"x" * size
            await go_on.wait()

        async def post(content):
            transport = httpx.ASGITransport(app)
            async with httpx.AsyncClient(transport=transport) as client:
                return (await client.post("http://localhost/v1/x", content=content)).status_code

        go_on = asyncio.Event()
        waiting = [asyncio.ensure_future(post(slow(10, go_on))) for _ in range(2)]
        while app._body_budget.shared_bytes:
            await asyncio.sleep(0)
        refused = await post(b"x" * 6)
        fits = await post(b"x" * 5)
        go_on.set()
        return refused, fits, await asyncio.gather(*waiting), await post(b"x" * 10)

    assert asyncio.run(call()) == (429, 200, [200, 200], 200)


@pytest.mark.parametrize(
    ("path", "headers", "status"),
    [
        ("/v1/x", {}, 401),
        ("/health/live", {}, 200),
        ("/v1/x", {"Authorization": "Bearer k", "Content-Length": "11"}, 413),
    ],
)
def test_nothing_is_read_of_a_body_that_is_refused(path, headers, status):
    async def body():
        raise AssertionError("it was asked for")
        yield b""

    settings = Settings(api_keys=("k",), max_body_bytes=10)

    async def stub(scope, receive, send):
        await PlainTextResponse("ok")(scope, receive, send)

    async def call():
        transport = httpx.ASGITransport(Guard(stub, settings, 10, 8))
        async with httpx.AsyncClient(transport=transport) as client:
            return await client.post(f"http://localhost{path}", content=body(), headers=headers)

    assert asyncio.run(call()).status_code == status


@pytest.mark.parametrize("framing", [("5", "chunked"), ("0", "chunked"), ("5", "identity")])
def test_a_body_with_two_statements_about_its_end_is_refused(framing):
    headers = dict(zip(("Content-Length", "Transfer-Encoding"), framing, strict=True))

    response = send(Settings(), content=b"x" * 5, headers=headers)

    assert response.status_code == 400
    assert response.json()["error"]["code"] == "ambiguous_length"
    assert response.headers["connection"] == "close"


@pytest.mark.parametrize("path", ["/v1/x", "/metrics", "/anything"])
def test_everything_is_closed_without_the_key(path):
    response = send(Settings(api_keys=("secret",)), path=path)

    assert response.status_code == 401
    assert response.json()["error"]["code"] == "invalid_api_key"


@pytest.mark.parametrize("value", ["Bearer wrong", "Basic secret", "secret", "Bearer "])
def test_a_wrong_key_is_refused(value):
    headers = {"Authorization": value}

    assert send(Settings(api_keys=("secret",)), headers=headers).status_code == 401


def test_the_key_opens():
    headers = {"Authorization": "Bearer secret"}

    assert send(Settings(api_keys=("secret",)), headers=headers).status_code == 200


def test_health_is_public():
    assert send(Settings(api_keys=("secret",)), "GET", "/health/live").status_code == 200


@pytest.mark.parametrize(
    "path",
    ["//v1/x", "/v1/x/", "/V1/X", "/page", "/pagex", "/healthx", "/health/livex", "/page/../v1/x"],
)
def test_no_spelling_of_a_path_gets_around_the_key(path):
    response = send(Settings(api_keys=("secret",)), "GET", path)

    assert response.status_code in (401, 404)
    assert "bytes" not in response.text


def test_websockets_need_no_key_because_there_are_none():
    sent = []

    async def call():
        async def keep(message):
            sent.append(message)

        app = Guard(Starlette(), Settings(), 10, 8)
        await app({"type": "websocket", "path": "/v1/x", "headers": []}, None, keep)

    asyncio.run(call())

    assert sent == [{"type": "websocket.close"}]


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost:8000", 200),
        ("127.0.0.1", 200),
        ("[::1]:8000", 200),
        ("chat.localhost", 200),
        ("evil.test", 403),
        ("evil.test:8000", 403),
        ("localhost.evil.test", 403),
        ("127.0.0.1.evil.test", 403),
        ("localhost@evil.test", 403),
        ("[", 403),
        ("", 403),
    ],
)
def test_a_local_server_answers_to_no_other_name(host, status):
    app = LocalNames(Starlette(routes=[Route("/", echo)]))

    async def call():
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app)) as client:
            return await client.get("http://localhost/", headers={"Host": host})

    assert asyncio.run(call()).status_code == status
