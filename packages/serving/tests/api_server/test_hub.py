"""API servers beside one engine: equal answers, and isolated failures."""

import json
import os
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack
from http.client import HTTPConnection, HTTPResponse
from threading import Event, Thread
from typing import Any

import pytest
from api_servers import Running, ask, open_answer, serving
from spaninfer_engine import Engine
from spaninfer_serving import Settings, bind
from spaninfer_serving.admission.keys import KeyLimits, UserKey, hash_of
from spaninfer_serving.server import Server

pytestmark = pytest.mark.slow  # a process starts in 2 to 5 s
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


@pytest.fixture(scope="module")
def several(tool_engine: Engine) -> Iterator[Running]:
    """Two API servers, with keys."""
    with serving(tool_engine, drain_s=20, **KEYS) as running:
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
    "SGLang's generate": (
        "/generate",
        {
            "input_ids": [65, 66, 67],
            "return_logprob": True,
            "top_logprobs_num": 2,
            "logprob_start_len": 0,
            "sampling_params": {"max_new_tokens": 5, **GREEDY},
        },
    ),
    "a suffix": ("/v1/completions", {"prompt": "Once", "suffix": "upon"}),
    "log-probabilities of a prompt": (
        "/v1/completions",
        {"prompt": ["Once", [65, 66]], "n": 2, "max_tokens": 1, "prompt_logprobs": 3, **GREEDY},
    ),
    "log-probabilities of a chat's prompt": (
        "/v1/chat/completions",
        {**CHAT, "prompt_logprobs": 1, "return_token_ids": True},
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
        assert ask(several.address, path)[0] == ask(single, path)[0] == 404
        return
    ask(single, path, body)  # from now on, both find the prompt in the prefix cache
    assert ask(several.address, path, body) == ask(single, path, body)


def test_an_answer_ends_at_a_stop_string_and_the_engine_with_it(
    several: Running, single: tuple[str, int]
) -> None:
    whole = ask(single, *CASES["completion"])[1][0]["choices"][0]["text"]
    body = {"prompt": "Once", "max_tokens": 3000, "stop": [whole[5:8]], **GREEDY}
    for stream in (False, True):
        asked = {**body, "stream": stream}
        found = ask(several.address, "/v1/completions", asked)
        assert found == ask(single, "/v1/completions", asked)


def test_an_operator_reaches_the_requests_of_all_api_servers(
    several: Running, tool_engine: Engine, frozen: Callable[..., AbstractContextManager[None]]
) -> None:
    body = {"prompt": "a", "max_tokens": 3500, "stream": True, **GREEDY}
    with ThreadPoolExecutor(8) as pool:
        opened = list(
            pool.map(lambda _: open_answer(several.address, "/v1/completions", body), range(8))
        )
        with frozen(tool_engine, 8):
            status, (said,) = ask(several.address, "/abort_requests", {"abort_all": True}, ADMIN)
        assert status == 200
        assert len(said["aborted"]) == 8
        for connection, response in opened:
            assert b'"finish_reason":"abort"' in response.read()
            connection.close()


def test_who_leaves_is_stopped(
    several: Running,
    tool_engine: Engine,
    until: Callable[[Callable[[], bool]], None],
    frozen: Callable[..., AbstractContextManager[None]],
) -> None:
    body = {"prompt": "a", "max_tokens": 3500, "stream": True, **GREEDY}
    connection, response = open_answer(several.address, "/v1/completions", body)
    with frozen(tool_engine):
        response.close()
        connection.close()
        until(lambda: tool_engine.stats().running == 0)


def test_a_paused_server_holds_requests_back_and_a_drained_one_refuses_them(
    several: Running,
) -> None:
    path, body = CASES["chat"]
    ask(several.address, path, body)  # from now on, the prefix cache has the prompt
    expected = ask(several.address, path, body)
    assert ask(several.address, "/pause", {}, ADMIN)[1][0]["is_paused"]
    with ThreadPoolExecutor(4) as pool:
        waiting = [pool.submit(ask, several.address, path, body) for _ in range(4)]
        assert ask(several.address, "/is_paused", key=ADMIN)[1][0]["is_paused"]
        assert not any(each.done() for each in waiting)
        ask(several.address, "/resume", {}, ADMIN)
        assert [each.result(120) for each in waiting] == [expected] * 4
    assert ask(several.address, "/drain", {}, ADMIN)[0] == 200
    assert [ask(several.address, path, body)[0] for _ in range(4)] == [503] * 4
    assert ask(several.address, "/health")[0] == 503
    ask(several.address, "/resume", {}, ADMIN)
    assert ask(several.address, path, body) == expected


def test_the_rate_of_a_key_is_counted_once_for_all_api_servers(several: Running) -> None:
    path, body = "/v1/completions", {"prompt": "a", "max_tokens": 1, **GREEDY}
    statuses = Counter(ask(several.address, path, body, USER)[0] for _ in range(6))
    assert statuses == {200: 3, 429: 3}
    prompt = {"prompt": [65] * 16, "max_tokens": 1, **GREEDY}
    assert [ask(several.address, path, prompt, BRIEF)[0] for _ in range(3)] == [200, 200, 429]


def _metric(address: tuple[str, int], name: str) -> float:
    connection, response = open_answer(address, "/metrics", key=ADMIN)
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
        assert ask(several.address, "/v1/completions", body)[0] == 200
    after = [_metric(several.address, name) for name in names]
    assert [new - old for new, old in zip(after, before, strict=False)] == [10, 30]
    until(lambda: _metric(several.address, responses) >= before[2] + 10)


def test_the_clients_of_others_lose_nothing_where_an_api_server_is_killed(
    several: Running, tool_engine: Engine, until: Callable[[Callable[[], bool]], None]
) -> None:
    answered = _metric(several.address, "spaninfer_output_tokens_sum")
    body = {"prompt": "a", "max_tokens": 600, "stream": True, **GREEDY}
    expected = [len(ask(several.address, "/v1/completions", body)[1])]
    with ThreadPoolExecutor(12) as pool, ExitStack() as stack:
        opened = list(
            pool.map(lambda _: open_answer(several.address, "/v1/completions", body), range(12))
        )
        for connection, response in opened:
            stack.callback(connection.close)
            response.readline()
        before = several.process_ids
        os.kill(before[0], signal.SIGKILL)
        lengths = list(pool.map(_num_lines, (response for _, response in opened)))
    whole = [length for length in lengths if length is not None]
    assert {length + 1 for length in whole} <= set(expected)  # one line was read before
    assert len(whole) < 12 or before != several.process_ids
    until(lambda: tool_engine.stats().running == 0)
    until(lambda: several.process_ids != before and several.servers.are_ready)
    assert _metric(several.address, "spaninfer_output_tokens_sum") >= answered + 600
    assert ask(several.address, *CASES["chat"])[0] == 200


def _num_lines(response: HTTPResponse) -> int | None:
    """Return how many lines that are not empty follow; None where the connection is cut."""
    try:
        return sum(bool(line.strip()) for line in response.read().splitlines())
    except (OSError, ValueError, __import__("http.client").client.IncompleteRead):
        return None


def test_a_response_is_kept_for_all_api_servers_and_for_its_account_alone(
    several: Running, single: tuple[str, int]
) -> None:
    def conversation(address: tuple[str, int]) -> list[Any]:
        said: dict[str, Any] = {"max_output_tokens": 8, "temperature": 0}
        found, last = [], None
        for number in range(6):  # each on a connection of its own: any API server may get it
            asked = {**said, "input": f"Question {number}", "previous_response_id": last}
            connection, response = open_answer(address, "/v1/responses", asked)
            answer = json.load(response)
            connection.close()
            assert response.status == 200, answer
            assert answer["store"]
            last = answer["id"]
            found.append((answer["output"][0]["content"], answer["usage"]["input_tokens"]))
        for _ in range(4):
            assert ask(address, f"/v1/responses/{last}")[0] == 200
        assert ask(address, f"/v1/responses/{last}", key=USER)[0] == 404
        going_on = {**said, "input": "a", "previous_response_id": last}
        assert ask(address, "/v1/responses", going_on, BRIEF)[0] == 404
        assert _delete(address, f"/v1/responses/{last}") == 200
        assert [ask(address, f"/v1/responses/{last}")[0] for _ in range(4)] == [404] * 4
        status, (refusal,) = ask(address, "/v1/responses", going_on)
        return [*found, status, refusal["error"]["param"], refusal["error"]["code"]]

    found = conversation(several.address)
    assert found[-3:] == [404, "previous_response_id", "response_not_found"]
    assert found == conversation(single)


def _delete(address: tuple[str, int], path: str) -> int:
    connection = HTTPConnection(*address, timeout=120)
    connection.request("DELETE", path, headers={"Authorization": "Bearer secret"})
    response = connection.getresponse()
    response.read()
    connection.close()
    return response.status


def test_a_prompt_that_the_engine_refuses_is_counted_nowhere(several: Running) -> None:
    def counts() -> list[str]:
        connection, answer = open_answer(several.address, "/metrics", key=ADMIN)
        lines = answer.read().decode().splitlines()
        connection.close()
        return [line for line in lines if "prompt_tokens_count" in line]

    before = counts()
    status, _ = ask(several.address, "/v1/completions", {"prompt": [10**6], "max_tokens": 2})

    assert status == 400
    assert counts() == before != []


def test_a_drained_server_finishes_what_runs(several: Running) -> None:
    """The last test: it ends the servers."""
    body = {"prompt": "a", "max_tokens": 200, "stream": True, **GREEDY}
    connection, response = open_answer(several.address, "/v1/completions", body)
    response.readline()
    several.drain()
    assert b"[DONE]" in response.read()
    connection.close()
    several.thread.join(120)
    assert not several.thread.is_alive()
    with pytest.raises(ConnectionRefusedError):
        open_answer(several.address, "/health")
