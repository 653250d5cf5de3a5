"""Load over real sockets: no client is refused as one of many, or waits behind long requests."""

import asyncio
import json
import re
import threading

import pytest
from spaninfer_engine import Engine
from spaninfer_engine.text.tokenizer import Tokenizer

GIVE_UP_S = 120
TEXT = "the quick brown fox jumps over the lazy dog. " * 27  # 1.2 KB


def as_bytes(path, body, **headers):
    data = json.dumps(body).encode()
    lines = [
        f"POST {path} HTTP/1.1",
        "Host: localhost",
        "Content-Type: application/json",
        "Connection: close",
        f"Content-Length: {len(data)}",
        *(f"{name}: {value}" for name, value in headers.items()),
    ]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + data


async def sent(address, path, body, **headers):
    """Connect, send a request, and return the connection's two ends."""
    reader, writer = await asyncio.open_connection(*address)
    writer.write(as_bytes(path, body, **headers))
    await writer.drain()
    return reader, writer


async def answered(reader, writer):
    """Return the status and the JSON of an answer."""
    answer = await asyncio.wait_for(reader.read(), GIVE_UP_S)
    writer.close()
    head, _, body = answer.partition(b"\r\n\r\n")
    return int(head.split()[1]), body


async def ask(address, path, body, **headers):
    return await answered(*await sent(address, path, body, **headers))


@pytest.fixture
def many_files():
    """As many open files as a test with 1,000 connections needs."""
    resource = pytest.importorskip("resource", reason="there is no such limit here")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 4096:
        pytest.skip(f"a process may open {hard} files at the most")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 4096), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize(
    ("count", "prompt"),
    [(256, TEXT), (256, [100] * 512), (1000, TEXT)],
    ids=["256 of 1.2 KB", "256 of 512 ids", "1000 of 1.2 KB"],
)
@pytest.mark.usefixtures("many_files")
def test_of_ordinary_clients_that_come_at_once_none_is_refused(
    long_engine, listening, count, prompt
):
    body = {"prompt": prompt, "max_tokens": 1}

    async def drive(address):
        await ask(address, "/v1/completions", body)
        return await asyncio.gather(*(ask(address, "/v1/completions", body) for _ in range(count)))

    with listening(long_engine) as address:
        statuses = [status for status, _ in asyncio.run(drive(address))]

    assert statuses == [200] * count


def test_the_limit_that_users_meet_is_max_waiting(long_folder, listening):
    options = {"backend": "reference", "memory": 1 << 23, "max_running": 1, "max_waiting": 8}
    long = {"prompt": TEXT, "max_tokens": 200, "ignore_eos": True}

    async def drive(address):
        return await asyncio.gather(*(ask(address, "/v1/completions", long) for _ in range(32)))

    with Engine(long_folder, **options) as engine, listening(engine) as address:
        answers = asyncio.run(drive(address))

    refusals = [json.loads(body)["error"] for status, body in answers if status == 429]
    assert sum(status == 200 for status, _ in answers) >= 8
    assert refusals
    assert {error["code"] for error in refusals} == {"queue_full"}
    assert all(re.search("max.waiting", error["message"]) for error in refusals)


@pytest.fixture
def gate(monkeypatch):
    """Holds up every text of more than 50,000 characters until it is set; lists those begun."""
    gate, encode = threading.Event(), Tokenizer.encode
    gate.begun = []

    def held_up(self, text, **options):
        if len(text) > 50_000:
            gate.begun.append(text)
            assert gate.wait(GIVE_UP_S)
        return encode(self, text, **options)

    monkeypatch.setattr(Tokenizer, "encode", held_up)
    yield gate
    gate.set()


def long_chat(letter):
    """Return a conversation of 300 KB; what a model said before is not cut off early."""
    said = {"role": "assistant", "content": letter * 300_000}
    return {"messages": [said, {"role": "user", "content": "and?"}]}


async def until_left(address, count):
    """Wait until so many clients have left before their answers."""
    said = f'spaninfer_http_responses_total{{status="499"}} {count}.0'
    async with asyncio.timeout(GIVE_UP_S):
        while True:
            reader, writer = await asyncio.open_connection(*address)
            writer.write(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            text = await reader.read()
            writer.close()
            if said in text.decode():
                return
            await asyncio.sleep(0.01)


def test_a_short_request_waits_for_no_long_one_and_who_leaves_costs_nothing_more(
    long_engine, listening, gate
):
    chat = "/v1/chat/completions"

    async def drive(address):
        long = [await sent(address, chat, long_chat("x")) for _ in range(16)]
        status, _ = await ask(address, "/v1/completions", {"prompt": TEXT, "max_tokens": 1})
        for _, writer in long:
            writer.transport.abort()
        await until_left(address, len(long))
        begun = len(gate.begun)
        staying = asyncio.ensure_future(ask(address, chat, long_chat("y")))
        gate.set()
        return status, begun, (await staying)[0]

    with listening(long_engine) as address:
        short, begun, staying = asyncio.run(drive(address))

    assert short == 200
    assert staying == 400  # it is too long, which is found by tokenising it
    assert begun <= 1
    assert len(gate.begun) <= 2


def test_a_priority_is_for_those_who_have_the_key_for_it(engine, listening):
    body = {"prompt": "x", "max_tokens": 1, "priority": -1}
    path, keys = "/v1/completions", {"api_keys": ("plain",), "priority_keys": ("first",)}

    async def drive(address):
        plain = {"Authorization": "Bearer plain"}
        return [
            await ask(address, path, body, **plain),
            await ask(address, path, body | {"priority": 0}, **plain),
            await ask(address, path, body, Authorization="Bearer first"),
        ]

    with listening(engine, **keys) as address:
        (status, refusal), *others = asyncio.run(drive(address))

    error = json.loads(refusal)["error"]
    assert (status, error["param"], error["code"]) == (403, "priority", "priority_not_allowed")
    assert "--priority-key" in error["message"]
    assert [status for status, _ in others] == [200, 200]


def test_without_any_key_no_priority_can_be_set(engine, listening):
    with listening(engine) as address:
        status, _ = asyncio.run(ask(address, "/v1/completions", {"prompt": "x", "priority": -1}))

    assert status == 403


def in_chunks(body):
    """Return the chunks of a body in chunked transfer encoding."""
    chunks = []
    while body:
        size, _, rest = body.partition(b"\r\n")
        chunks.append(rest[: int(size, 16)])
        body = rest[int(size, 16) + 2 :]
    return chunks


SCORED = {"prompt": [100 + i % 50 for i in range(3000)], "echo": True, "logprobs": 20}


def test_a_prompts_log_probabilities_are_sent_in_pieces(long_engine, listening):
    with listening(long_engine) as address:
        asked = ask(address, "/v1/completions", SCORED | {"max_tokens": 0})
        status, body = asyncio.run(asked)

    chunks = in_chunks(body)
    logprobs = json.loads(b"".join(chunks))["choices"][0]["logprobs"]
    assert status == 200
    assert max(map(len, chunks)) < 200_000  # of 1.8 MB
    assert {name: len(values) for name, values in logprobs.items()} == dict.fromkeys(logprobs, 3000)
    assert logprobs["top_logprobs"][0] is None
    assert all(logprobs["top_logprobs"][1:])  # fewer than 20 where bytes are no characters


def test_a_stream_has_them_in_pieces_too_and_the_same(long_engine, listening):
    async def drive(address):
        return [
            await ask(address, "/v1/completions", SCORED | {"max_tokens": 2, "seed": 1} | form)
            for form in ({"stream": True}, {"stream": False})
        ]

    with listening(long_engine) as address:
        (_, streamed), (_, whole) = asyncio.run(drive(address))

    lines = b"".join(in_chunks(streamed)).split(b"\n\n")
    events = [json.loads(line[6:])["choices"][0] for line in lines if line.startswith(b"data: {")]
    [choice] = json.loads(b"".join(in_chunks(whole)))["choices"]
    assert max(len(event["logprobs"]["tokens"]) for event in events) <= 128
    assert "".join(event["text"] for event in events) == choice["text"]
    for name, values in choice["logprobs"].items():
        assert [value for event in events for value in event["logprobs"][name]] == values


@pytest.mark.parametrize(
    ("body", "param", "words"),
    [
        (SCORED | {"n": 20}, "logprobs", "1260000 log-probabilities.*at most 1048576"),
        ({"prompt": "é" * 2000, "echo": True, "n": 128}, "echo", None),
        ({"prompt": ["x" * 4000] * 40, "echo": True, "n": 60}, "echo", "9600000 characters"),
    ],
)
def test_more_than_an_answer_can_repeat_is_refused(long_engine, listening, body, param, words):
    with listening(long_engine) as address:
        status, answer = asyncio.run(ask(address, "/v1/completions", body | {"max_tokens": 1}))

    if words is None:
        assert status == 200
        return
    error = json.loads(answer)["error"]
    assert (status, error["param"], error["code"]) == (400, param, "echo_too_large")
    assert re.search(words, error["message"])
