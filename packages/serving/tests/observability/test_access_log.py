import logging
import re
import socket

import pytest
from fastapi.testclient import TestClient
from spaninfer_engine import Engine
from spaninfer_serving import Settings, create_app
from spaninfer_serving.routes import (
    admin,
    chat,
    completions,
    health,
    messages,
    page,
    responses,
    tokenize,
)

JOURNAL = "spaninfer_serving.access_log"


@pytest.fixture
def failing(engine):
    """A server with a route that fails in a way nobody has thought of."""
    app = create_app(engine, Settings())

    @app.get("/fails")
    async def fails():
        raise ZeroDivisionError("a secret path")

    return TestClient(app, raise_server_exceptions=False)


@pytest.mark.parametrize("stream", [False, True])
def test_a_request_that_comes_after_the_engine_s_end_is_one_line_of_the_log(folder, caplog, stream):
    """Whatever ended it was logged, with its traceback, when it happened."""
    with Engine(folder, backend="reference", memory=1 << 22, span_len=16) as ended:
        client = TestClient(create_app(ended, Settings()))

    answer = client.post("/v1/completions", json={"prompt": "ab", "stream": stream})

    assert answer.status_code == 503
    [record] = [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert record.getMessage().startswith("POST /v1/completions: ")
    assert record.exc_info is None


def test_every_answer_has_an_id_of_its_own(client):
    ids = {client.get(path).headers["x-request-id"] for path in ("/", "/v1/models", "/nothing")}

    assert len(ids) == 3


def test_the_clients_own_id_comes_back(client):
    headers = {"X-Request-Id": "job-7:a.b_c"}

    assert client.get("/health/live", headers=headers).headers["x-request-id"] == "job-7:a.b_c"


@pytest.mark.parametrize("name", ["", "x" * 200, "two words", "line%0a", 'a"b'])
def test_an_id_that_could_forge_a_line_of_the_log_is_replaced(client, name):
    headers = {"X-Request-Id": name}

    assert client.get("/health/live", headers=headers).headers["x-request-id"].startswith("req-")


@pytest.mark.parametrize(
    ("forwarded", "written"),
    [("192.0.2.7", "192.0.2.7"), ("2001:db8::7", "2001:db8::7"), ("\x1b[2Jadmin", "-"),
     ('192.0.2.7 "GET /" 200', "-"), ("9" * 1000, "-")],
)  # fmt: skip
def test_a_forwarded_address_forges_no_line_of_the_log(live, caplog, until, forwarded, written):
    with caplog.at_level(logging.INFO, JOURNAL):
        server = live()
        with socket.create_connection(server.address, timeout=120) as connection:
            line = f"GET /health/live HTTP/1.1\r\nHost: localhost\r\nX-Forwarded-For: {forwarded}"
            connection.sendall(f"{line}\r\n\r\n".encode())
            assert connection.recv(1 << 12).startswith(b"HTTP/1.1 200")
        until(lambda: caplog.messages)

    assert caplog.messages[0].startswith(f'{written} "GET /health/live" 200 ')


def test_a_refused_key_is_answered_with_an_id_too(serving):
    response = serving(api_keys=("secret",)).get("/v1/models")

    assert response.status_code == 401
    assert response.headers["x-request-id"]


def test_a_failure_tells_nothing_but_the_id_under_which_the_log_has_it(failing, caplog):
    response = failing.get("/fails", headers={"X-Request-Id": "job-8"})

    assert response.status_code == 500
    assert response.json()["error"]["type"] == "server_error"
    assert "secret" not in response.text
    assert response.headers["x-request-id"] == "job-8"
    assert "request job-8 failed" in caplog.text
    assert "a secret path" in caplog.text


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", {"prompt": "a"}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}]}),
        ("/v1/responses", {"input": "a"}),
        ("/v1/messages", {"max_tokens": 1, "messages": [{"role": "user", "content": "a"}]}),
        ("/tokenize", {"prompt": "a"}),
        ("/metrics", None),
        ("/", None),
    ],
)
def test_an_unforeseen_failure_of_any_route_is_json_with_an_id(client, monkeypatch, path, body):
    def fail(*_):
        raise ZeroDivisionError("a secret path")

    for module in (admin, chat, completions, health, messages, page, responses, tokenize):
        for name in {"service_of", "_file", "_check_version"} & set(vars(module)):
            monkeypatch.setattr(module, name, fail)
    asked = {"model": "tiny", **body} if body else None

    answer = client.request("POST" if body else "GET", path, json=asked)

    assert (answer.status_code, answer.headers["content-type"]) == (500, "application/json")
    assert answer.json()["error"]["message"].startswith("the server failed")
    assert answer.headers["x-request-id"]
    assert "secret" not in answer.text


def test_a_line_per_request_is_there_for_who_asks(client, caplog):
    body = {"prompt": "a prompt nobody may read", "max_tokens": 1}
    with caplog.at_level(logging.INFO, JOURNAL):
        client.post("/v1/completions?key=k", json=body, headers={"Authorization": "Bearer k"})

    [line] = [record.message for record in caplog.records if record.name == JOURNAL]
    assert '"POST /v1/completions" 200' in line
    assert re.search(r" prompt 24, output 1 token, [0-9.]+ tok/s req-", line)
    assert "prompt nobody" not in line
    assert "key=k" not in line
    assert "Bearer" not in line


@pytest.mark.parametrize("stream", [False, True])
def test_the_line_counts_the_tokens_of_all_choices_and_each_prompt_once(client, caplog, stream):
    body = {"prompt": ["ab", "cde"], "n": 2, "max_tokens": 3, "ignore_eos": True, "stream": stream}
    with caplog.at_level(logging.INFO, JOURNAL):
        client.post("/v1/completions", json=body)

    [line] = [record.message for record in caplog.records if record.name == JOURNAL]
    assert " prompt 5, output 12 tokens, " in line


@pytest.mark.parametrize("stream", [False, True])
def test_a_prompt_with_an_unknown_id_is_refused_without_tokens(client, caplog, stream):
    before = re.findall(r"prompt_tokens_count.*", client.get("/metrics").text)
    with caplog.at_level(logging.INFO, JOURNAL):
        client.post("/v1/completions", json={"prompt": [10**6], "stream": stream})

    [line] = [record.message for record in caplog.records if record.name == JOURNAL]
    assert re.search(r" 400 [0-9.]+ ms req-", line)
    assert re.findall(r"prompt_tokens_count.*", client.get("/metrics").text) == before != []


def test_a_refusal_and_a_page_have_a_line_without_tokens(client, caplog):
    with caplog.at_level(logging.INFO, JOURNAL):
        client.post("/v1/completions", json={"prompt": "x", "n": 0})
        client.get("/v1/models")

    lines = [record.message for record in caplog.records if record.name == JOURNAL]
    assert ['" 400 ' in lines[0], '" 200 ' in lines[1]] == [True, True]
    assert not any("tok" in line.partition("HTTP")[2] for line in lines)


def test_a_program_that_serves_an_app_of_its_own_has_no_lines_unasked(client, caplog):
    client.get("/health/live")

    assert not [record for record in caplog.records if record.name == JOURNAL]
