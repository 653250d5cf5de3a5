"""The server process under malformed bodies, disconnects, signals and occupied addresses."""

import http.client
import json
import queue
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial

import httpx
import pytest

JSON = {"Content-Type": "application/json"}
PHASES = ("stream", "start", "whole", "body")  # "start": before the answer has begun
LONG = {"prompt": "Once upon a time", "max_tokens": 3000, "ignore_eos": True, "stream": True}
ANSWER_S = 120.0  # these limits only end a test that has failed

get, post = partial(httpx.get, timeout=ANSWER_S), partial(httpx.post, timeout=ANSWER_S)


def until(condition, server=None):
    """Wait for a condition; where it never comes true, the failure says what the server printed."""
    end = time.monotonic() + ANSWER_S
    while not condition():
        assert time.monotonic() < end, f"it never came true\n{server and found_of(server)}"
        time.sleep(0.01)


def found_of(server):
    """All that is known of a server that does not do what it should: its stacks as well."""
    ended = server.process.poll()
    if ended is None:
        server.process.send_signal(signal.SIGABRT)  # faulthandler prints where each thread is
        ended = server.wait()
    return f"the process ended with {ended} and printed:\n{server.printed}"


def request(url, **body):
    """Return the address of a server, and a request for it as bytes."""
    host, port = url.removeprefix("http://").split(":")
    data = json.dumps(LONG | body).encode()
    head = "POST /v1/completions HTTP/1.1\r\nHost: {}\r\nContent-Type: application/json\r\n"
    length = f"Content-Length: {len(data)}\r\n\r\n"
    return (host, int(port)), (head.format(host) + length).encode() + data


def cut(url, phase, number=0):
    """Send a long request, and hang up in some phase of it."""
    place, data = request(url, stream=phase != "whole", prompt=f"Once there was a {number}")
    with socket.create_connection(place, timeout=ANSWER_S) as connection:
        connection.sendall(data[: len(data) // 2] if phase == "body" else data)
        if phase == "stream":
            received = b""
            while b"data: " not in received:
                received += connection.recv(65536)


def spans(server, state):
    return server.metric(f'spans{{group="0",state="{state}"}}')


def test_a_body_that_is_not_json_is_refused(server):
    response = post(f"{server.url}/v1/completions", content=b'{"prompt": ', headers=JSON)

    assert response.status_code == 400
    assert response.json()["error"]["code"] == "invalid_json"


def test_a_body_of_100_mb_is_refused_and_the_server_goes_on(server):
    response = post(f"{server.url}/v1/completions", content=b"x" * (100 << 20))

    assert response.status_code == 413
    most = (50 << 20) + 32 * get(f"{server.url}/v1/models/demo").json()["max_model_len"]
    assert f"{most} bytes" in response.json()["error"]["message"]
    assert get(f"{server.url}/health/ready").json() == {"status": "ready"}


HOSTILE = {
    "lists": (b'{"prompt": [' + b"[1]," * 6_000_000 + b"[1]]}", "too_many_values"),
    "ids": (b'{"prompt": [' + b"1," * 12_000_000 + b"1]}", "too_many_values"),
    "names": (b'{"metadata": {' + b'"":1,' * 5_000_000 + b'"":1}}', "too_many_values"),
    "words": (b'{"prompt": "' + b"the fox " * 3_000_000 + b'"}', "context_length_exceeded"),
}  # fmt: skip


@pytest.fixture(scope="module")
def roomy(serve):
    """A server that takes long bodies."""
    with serve("--max-body", "32MiB") as server:
        yield server


@pytest.mark.parametrize("name", HOSTILE)
def test_a_body_of_24_mb_holds_up_no_stream_of_others(roomy, name):
    body, code = HOSTILE[name]
    address = f"{roomy.url}/v1/completions"
    events, answered = queue.SimpleQueue(), threading.Event()

    def stream():
        with httpx.stream("POST", address, json=LONG, timeout=ANSWER_S) as response:
            for line in response.iter_lines():
                if line.startswith("data: {"):
                    events.put(line)
                if answered.is_set():
                    return  # the rest takes ten times as long

    with ThreadPoolExecutor(1) as thread:
        streaming = thread.submit(stream)
        try:
            events.get(timeout=ANSWER_S)  # it has begun
            during = 0
            for _ in range(3):  # some 40 come; fewer where other programs have the CPUs
                before = events.qsize()
                answer = post(address, content=body, headers=JSON)
                during += events.qsize() - before
                if during >= 10:
                    break
        finally:
            answered.set()
        streaming.result(ANSWER_S)

    assert answer.json()["error"]["code"] == code
    assert during >= 10


@pytest.mark.parametrize(("method", "path"), [("GET", "/v1/nothing"), ("GET", "/v1/completions")])
def test_a_wrong_address_has_openais_error_body(server, method, path):
    response = httpx.request(method, server.url + path)

    assert response.status_code in (404, 405)
    assert response.json()["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize("phase", PHASES)
def test_a_request_that_its_client_cuts_gives_its_spans_back(server, phase):
    cut(server.url, phase)

    until(lambda: spans(server, "held") == 0)
    assert server.metric("running_requests") == server.metric("waiting_requests") == 0


def test_after_1000_cut_requests_no_span_is_missing(server):
    until(lambda: spans(server, "held") == 0)  # of requests before
    total = spans(server, "kept") + spans(server, "free")

    with ThreadPoolExecutor(16) as threads:
        list(threads.map(lambda i: cut(server.url, PHASES[i % len(PHASES)], i), range(1000)))

    until(lambda: server.metric("running_requests") + server.metric("waiting_requests") == 0)
    until(lambda: spans(server, "held") == 0)
    assert spans(server, "kept") + spans(server, "free") == total
    assert post(f"{server.url}/v1/completions", json={"prompt": "x", "max_tokens": 1}).json()


def test_the_playground_loads_nothing_from_elsewhere(server):
    page = get(server.url)

    assert page.headers["content-security-policy"].startswith("default-src 'self'")
    for name in ("app.js", "style.css", "icon.svg"):
        assert f"/page/{name}" in page.text
        assert get(f"{server.url}/page/{name}").status_code == 200
    assert "//" not in page.text.replace("http-equiv", "")


def test_the_start_up_table_says_what_was_decided_and_why(server):
    printed = server.printed

    for word in ("backend", "dtype", "context", "KV cache", "prefix cache"):
        assert word in printed


@pytest.mark.slow
def test_a_connection_is_kept_for_longer_than_clients_keep_theirs(server):
    connection = http.client.HTTPConnection(server.url.removeprefix("http://"))
    for pause_s in (0, 6):  # httpx, and with it OpenAI's client, gives up one that idles for 5 s
        time.sleep(pause_s)
        connection.request("GET", "/v1/models")
        assert json.load(connection.getresponse())["data"]


def test_a_full_queue_answers_429_and_when_to_come_back(serve):
    with serve("--max-running", "1", "--max-waiting", "1") as server:
        place, data = request(server.url)
        with socket.create_connection(place) as first, socket.create_connection(place) as second:
            first.sendall(data)
            until(lambda: server.metric("running_requests") == 1)
            second.sendall(data)
            until(lambda: server.metric("waiting_requests") == 1)

            refused = post(f"{server.url}/v1/completions", json={"prompt": "x"})

        until(lambda: server.metric("running_requests") == 0)
        assert server.metric("waiting_requests") == 0
        assert server.metric('http_responses_total{status="429"}') == 1

    assert refused.status_code == 429
    assert refused.headers["retry-after"] == "1"
    assert refused.json()["error"]["code"] == "queue_full"


def test_sigterm_lets_running_requests_finish(serve):
    with serve() as server:
        place, data = request(server.url, max_tokens=40)
        head, body = data.split(b"\r\n\r\n")
        with socket.create_connection(place, timeout=ANSWER_S) as connection:
            connection.sendall(head + b"\r\nExpect: 100-continue\r\n\r\n")
            connection.recv(1, socket.MSG_PEEK)  # the request is under way, and waits for its body
            server.process.send_signal(signal.SIGTERM)
            told = r"still running: \d; they may take 30 s"
            until(lambda: re.search(told, server.printed), server)
            connection.sendall(body)
            answer = http.client.HTTPResponse(connection)
            answer.begin()
            *_, last, done = filter(None, answer.read().decode().split("\n"))

        assert server.wait() == 0

    assert done == "data: [DONE]"
    assert json.loads(last.removeprefix("data: "))["choices"][0]["finish_reason"] == "length"
    with pytest.raises(httpx.ConnectError):
        get(f"{server.url}/health/live")


@pytest.mark.parametrize("api_servers", ["0", "1"])
@pytest.mark.parametrize(("limit", "signals"), [("0", 1), ("30", 2)])
def test_a_stream_that_has_no_time_left_ends_with_an_error(serve, limit, signals, api_servers):
    with serve("--drain", limit, "--api-server-count", api_servers) as server:
        place, data = request(server.url)
        with socket.create_connection(place, timeout=ANSWER_S) as connection:
            connection.sendall(data)
            until(lambda: server.metric("running_requests") == 1, server)
            for _ in range(signals):
                server.process.send_signal(signal.SIGINT)
                # Else two are one.
                until(lambda: "requests still running: " in server.printed, server)
            rest = b"".join(iter(lambda: connection.recv(65536), b""))

        assert server.wait() == 0

    assert b'"code": "stopping"' in rest
    assert rest.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")
    assert "Traceback" not in server.printed


def test_an_open_address_without_a_key_is_refused_before_anything_is_loaded():
    command = [sys.executable, "-m", "spaninfer", "serve", "--host", "0.0.0.0"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=ANSWER_S, check=False)

    assert done.returncode == 2
    assert "--api-key SECRET, or --no-auth" in " ".join(done.stderr.split())


def test_with_a_key_only_health_and_page_are_open(serve):
    with serve("--api-key", "secret") as server:
        assert get(f"{server.url}/v1/models").status_code == 401
        assert get(f"{server.url}/metrics").status_code == 401
        assert get(f"{server.url}/health/live").status_code == 200
        assert get(server.url).status_code == 200
        assert server.client(api_key="secret").models.list().data
        until(lambda: '"GET /v1/models" 200' in server.printed)

    assert '"GET /v1/models" 401' in server.printed
    assert "secret" not in server.printed


def test_a_port_that_is_taken_is_an_error_of_one_sentence(server):
    port = server.url.rsplit(":", 1)[1]
    command = [sys.executable, "-m", "spaninfer", "serve", "--port", port]

    done = subprocess.run(command, capture_output=True, text=True, timeout=ANSWER_S, check=False)

    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert f"cannot listen on 127.0.0.1:{port}" in " ".join(done.stderr.split())


def test_a_page_of_others_reaches_a_local_server_under_no_other_name(server):
    refused = get(f"{server.url}/v1/models", headers={"Host": "evil.test"})

    assert refused.status_code == 403
    assert refused.json()["error"]["code"] == "host_not_allowed"


def test_bytes_that_are_no_http_end_their_connection_and_nothing_else(server):
    place, _ = request(server.url)
    for garbage in (b"\x16\x03\x01\x02\x00\r\n\r\n", b"GET\r\n\r\n", b"x" * 200_000):
        connection = socket.create_connection(place, timeout=ANSWER_S)
        with connection, suppress(ConnectionError):  # it may be closed while we write
            connection.sendall(garbage)
            assert connection.recv(12) in (b"HTTP/1.1 400", b"HTTP/1.1 431", b"")

    assert get(f"{server.url}/health/ready").status_code == 200
