"""API servers beside one engine: the same answers, and faults that stay where they are."""

import json
import os
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPResponse
from threading import Event, Thread
from typing import Any

import pytest
from spaninfer_engine import ConfigError, Engine
from spaninfer_serving import Settings, bind
from spaninfer_serving.keys import KeyLimits, UserKey, hash_of
from spaninfer_serving.server import Server

pytest.importorskip("msgspec", reason="the extra 'api-servers' is not installed")

from spaninfer_serving.api_server.hub import ApiServers

pytestmark = pytest.mark.slow  # a process starts in 2 to 5 s
NUM = 2
GREEDY = {"temperature": 0, "ignore_eos": True}
ADMIN, USER, BRIEF = "admin-secret", "user-secret", "brief-secret"
KEYS: dict[str, Any] = {
    "api_keys": ("secret",),
    "admin_hashes": (hash_of(ADMIN),),
    "user_keys": (
        UserKey("limited", hash_of(USER), KeyLimits(requests_per_minute=3)),
        UserKey("brief", hash_of(BRIEF), KeyLimits(tokens_per_minute=40)),
    ),
}


@dataclass
class Running:
    """API servers whose engine is in this process."""

    servers: ApiServers
    address: tuple[str, int]
    thread: Thread


@contextmanager
def _serving(engine: Engine, **settings: Any) -> Iterator[Running]:
    asked = Settings(port=0, log_requests=False, api_servers=NUM, **settings)
    listener, ready = bind(asked), Event()
    listener.listen(128)
    address = listener.getsockname()
    servers = ApiServers(engine, asked, listener)
    thread = Thread(target=servers.run, args=(ready.set,))
    thread.start()
    try:
        assert ready.wait(300)
        yield Running(servers, address, thread)
    finally:
        if thread.is_alive():
            servers.drain_soon()
        thread.join(120)


@pytest.fixture(scope="module")
def several(tool_engine: Engine) -> Iterator[Running]:
    """Two API servers, with keys."""
    with _serving(tool_engine, drain_s=20, **KEYS) as running:
        yield running


@pytest.fixture(scope="module")
def single(tool_engine: Engine) -> Iterator[tuple[str, int]]:
    """The server of one process around the same engine."""
    asked = Settings(port=0, log_requests=False, drain_s=0, **KEYS)
    listener, started = bind(asked), Event()
    listener.listen()
    server = Server(tool_engine, asked, started.set)
    thread = Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    assert started.wait(120)
    yield listener.getsockname()
    server.should_exit = True
    thread.join(120)


def _open(
    address: tuple[str, int], path: str, body: Any = None, key: str = "secret"
) -> tuple[HTTPConnection, HTTPResponse]:
    connection = HTTPConnection(*address, timeout=120)
    method, data = ("GET", None) if body is None else ("POST", json.dumps(body))
    headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
    connection.request(method, path, data, headers)
    return connection, connection.getresponse()


def _ask(address: tuple[str, int], path: str, body: Any = None, key: str = "secret") -> Any:
    """Return the status and the text of an answer, without what differs from one to the next."""
    connection, response = _open(address, path, body, key)
    text = response.read().decode()
    connection.close()
    return response.status, [_comparable(line) for line in text.splitlines() if line]


def _comparable(line: str) -> Any:
    data = line.removeprefix("data: ")
    if not data.startswith("{"):
        return line
    return _without(json.loads(data))


def _without(value: Any) -> Any:
    if isinstance(value, dict):
        hidden = ("id", "created", "created_at", "item_id", "call_id", "store")
        return {name: _without(each) for name, each in value.items() if name not in hidden}
    return [_without(each) for each in value] if isinstance(value, list) else value


SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
TOOL = {"type": "function", "function": {"name": "look", "parameters": SCHEMA}}
CHAT = {"messages": [{"role": "user", "content": "What is this?"}], "max_tokens": 12, **GREEDY}
FORM = {"messages": CHAT["messages"], "max_tokens": 60, "temperature": 0}
CASES = {
    "completion": ("/v1/completions", {"prompt": "Once", "max_tokens": 70, **GREEDY}),
    "stream": ("/v1/completions", {"prompt": "Once", "max_tokens": 9, "stream": True, **GREEDY}),
    "prompts and choices": (
        "/v1/completions",
        {"prompt": ["a", "bc"], "n": 2, "seed": 7, "max_tokens": 5, "temperature": 1},
    ),
    "log-probabilities": (
        "/v1/completions",
        {"prompt": "Once", "max_tokens": 4, "logprobs": 3, "echo": True, **GREEDY},
    ),
    "streamed log-probabilities": (
        "/v1/chat/completions",
        {**CHAT, "logprobs": True, "top_logprobs": 2, "stream": True},
    ),
    "chat": ("/v1/chat/completions", CHAT),
    "ids": ("/v1/completions", {"prompt": [65, 66, 67], "max_tokens": 4, **GREEDY}),
    "usage in a stream": (
        "/v1/chat/completions",
        {**CHAT, "stream": True, "stream_options": {"include_usage": True}},
    ),
    "schema": (
        "/v1/chat/completions",
        {
            **FORM,
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "n", "schema": SCHEMA, "strict": True},
            },
        },
    ),
    "tool": (
        "/v1/chat/completions",
        {**FORM, "tools": [TOOL], "tool_choice": "required", "stream": True},
    ),
    "responses": ("/v1/responses", {"input": "Hi", "max_output_tokens": 16, "temperature": 0}),
    "messages": (
        "/v1/messages",
        {"messages": CHAT["messages"], "max_tokens": 9, "model": "tiny", "temperature": 0},
    ),
    "tokenize": ("/tokenize", {"prompt": "Once upon"}),
    "models": ("/v1/models", None),
    "no such model": ("/v1/completions", {"prompt": "a", "model": "other"}),
    "too long": ("/v1/completions", {"prompt": [65] * 5000, "max_tokens": 1}),
    "refused by the engine": ("/v1/completions", {"prompt": [9999], "max_tokens": 1}),
    "out of range": ("/v1/completions", {"prompt": "a", "temperature": 7}),
    "schema that is none": (
        "/v1/chat/completions",
        {
            **FORM,
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "n", "schema": {"type": "nothing"}},
            },
        },
    ),
    "embeddings": ("/v1/embeddings", {"input": "a"}),
    "unknown response": ("/v1/responses/resp_1", None),
}


@pytest.mark.parametrize("name", CASES)
def test_an_api_server_answers_as_the_server_of_one_process(
    several: Running, single: tuple[str, int], name: str
) -> None:
    path, body = CASES[name]
    if name == "unknown response":  # they say how many are kept
        assert _ask(several.address, path)[0] == _ask(single, path)[0] == 404
        return
    _ask(single, path, body)  # from now on, both find the prompt in the prefix cache
    assert _ask(several.address, path, body) == _ask(single, path, body)


def test_an_answer_ends_at_a_stop_string_and_the_engine_with_it(
    several: Running, single: tuple[str, int]
) -> None:
    whole = _ask(single, *CASES["completion"])[1][0]["choices"][0]["text"]
    body = {"prompt": "Once", "max_tokens": 3000, "stop": [whole[5:8]], **GREEDY}
    for stream in (False, True):
        asked = {**body, "stream": stream}
        found = _ask(several.address, "/v1/completions", asked)
        assert found == _ask(single, "/v1/completions", asked)


def test_an_operator_reaches_the_requests_of_all_api_servers(several: Running) -> None:
    body = {"prompt": "a", "max_tokens": 3500, "stream": True, **GREEDY}
    with ThreadPoolExecutor(8) as pool:
        opened = list(pool.map(lambda _: _open(several.address, "/v1/completions", body), range(8)))
        for _, response in opened:
            response.readline()
        status, (said,) = _ask(several.address, "/abort_requests", {"abort_all": True}, ADMIN)
        assert status == 200
        assert len(said["aborted"]) == 8
        for connection, response in opened:
            assert b'"finish_reason":"abort"' in response.read()
            connection.close()


def test_who_leaves_is_stopped(
    several: Running, tool_engine: Engine, until: Callable[[Callable[[], bool]], None]
) -> None:
    body = {"prompt": "a", "max_tokens": 3500, "stream": True, **GREEDY}
    connection, response = _open(several.address, "/v1/completions", body)
    response.readline()
    assert tool_engine.stats().running == 1
    response.close()
    connection.close()
    until(lambda: tool_engine.stats().running == 0)


def test_a_paused_server_holds_requests_back_and_a_drained_one_refuses_them(
    several: Running,
) -> None:
    path, body = CASES["chat"]
    expected = _ask(several.address, path, body)
    assert _ask(several.address, "/pause", {}, ADMIN)[1][0]["is_paused"]
    with ThreadPoolExecutor(4) as pool:
        waiting = [pool.submit(_ask, several.address, path, body) for _ in range(4)]
        assert _ask(several.address, "/is_paused", key=ADMIN)[1][0]["is_paused"]
        assert not any(each.done() for each in waiting)
        _ask(several.address, "/resume", {}, ADMIN)
        assert [each.result(120) for each in waiting] == [expected] * 4
    assert _ask(several.address, "/drain", {}, ADMIN)[0] == 200
    assert [_ask(several.address, path, body)[0] for _ in range(4)] == [503] * 4
    assert _ask(several.address, "/health")[0] == 503
    _ask(several.address, "/resume", {}, ADMIN)
    assert _ask(several.address, path, body) == expected


def test_the_rate_of_a_key_is_counted_once_for_all_api_servers(several: Running) -> None:
    path, body = "/v1/completions", {"prompt": "a", "max_tokens": 1, **GREEDY}
    statuses = Counter(_ask(several.address, path, body, USER)[0] for _ in range(6))
    assert statuses == {200: 3, 429: 3}
    prompt = {"prompt": [65] * 16, "max_tokens": 1, **GREEDY}
    assert [_ask(several.address, path, prompt, BRIEF)[0] for _ in range(3)] == [200, 200, 429]


def _metric(address: tuple[str, int], name: str) -> float:
    connection, response = _open(address, "/metrics", key=ADMIN)
    lines = response.read().decode().splitlines()
    connection.close()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(name))


def test_metrics_are_those_of_all_api_servers(
    several: Running, until: Callable[[Callable[[], bool]], None]
) -> None:
    names = ("spaninfer_output_tokens_count", "spaninfer_output_tokens_sum")
    responses = 'spaninfer_http_responses_total{status="200"}'
    before = [_metric(several.address, name) for name in (*names, responses)]
    body = {"prompt": "a", "max_tokens": 3, **GREEDY}
    for _ in range(10):
        assert _ask(several.address, "/v1/completions", body)[0] == 200
    after = [_metric(several.address, name) for name in names]
    assert [new - old for new, old in zip(after, before, strict=False)] == [10, 30]
    until(lambda: _metric(several.address, responses) >= before[2] + 10)


def test_the_clients_of_others_lose_nothing_where_an_api_server_is_killed(
    several: Running, tool_engine: Engine, until: Callable[[Callable[[], bool]], None]
) -> None:
    answered = _metric(several.address, "spaninfer_output_tokens_sum")
    body = {"prompt": "a", "max_tokens": 600, "stream": True, **GREEDY}
    expected = [len(_ask(several.address, "/v1/completions", body)[1])]
    with ThreadPoolExecutor(12) as pool, ExitStack() as stack:
        opened = list(
            pool.map(lambda _: _open(several.address, "/v1/completions", body), range(12))
        )
        for connection, response in opened:
            stack.callback(connection.close)
            response.readline()
        before = several.servers.process_ids
        os.kill(before[0], signal.SIGKILL)
        lengths = list(pool.map(_num_lines, (response for _, response in opened)))
    whole = [length for length in lengths if length is not None]
    assert {length + 1 for length in whole} <= set(expected)  # one line was read before
    assert len(whole) < 12 or before != several.servers.process_ids
    until(lambda: tool_engine.stats().running == 0)
    until(lambda: several.servers.process_ids != before and several.servers.are_ready)
    assert _metric(several.address, "spaninfer_output_tokens_sum") >= answered + 600
    assert _ask(several.address, *CASES["chat"])[0] == 200


def _num_lines(response: HTTPResponse) -> int | None:
    """Return how many lines that are not empty follow; None where the connection is cut."""
    try:
        return sum(bool(line.strip()) for line in response.read().splitlines())
    except (OSError, ValueError, __import__("http.client").client.IncompleteRead):
        return None


def test_a_model_that_embeds_is_refused(
    tool_engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Engine, "tasks", frozenset({"embed"}))
    asked = Settings(port=0, api_servers=NUM)
    with bind(asked) as listener, pytest.raises(ConfigError, match="leave --api-server-count out"):
        ApiServers(tool_engine, asked, listener)


def test_a_drained_server_finishes_what_runs(several: Running) -> None:
    """The last test: it ends the servers."""
    body = {"prompt": "a", "max_tokens": 200, "stream": True, **GREEDY}
    connection, response = _open(several.address, "/v1/completions", body)
    response.readline()
    several.servers.drain_soon()
    assert b"[DONE]" in response.read()
    connection.close()
    several.thread.join(120)
    assert not several.thread.is_alive()
    with pytest.raises(ConnectionRefusedError):
        _open(several.address, "/health")
