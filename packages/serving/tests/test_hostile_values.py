"""Values that crashed other servers: refused immediately, without a trace in the engine.

docs/security.md says which published vulnerability each stands for.
"""

import ast
import json
import re
from pathlib import Path

import pytest
import spaninfer_serving
from fastapi.testclient import TestClient
from spaninfer_serving import Settings, create_app

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
HELLO = [{"role": "user", "content": "hello"}]
HUGE = 10**9
SOURCES = sorted(Path(spaninfer_serving.__file__).parent.rglob("*.py"))


@pytest.fixture(scope="module")
def steady(engine):
    """A client of one server for all values."""
    return TestClient(create_app(engine, Settings()), raise_server_exceptions=False)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (TEXT, {"prompt": "x", "n": HUGE}),
        (TEXT, {"prompt": "x", "best_of": HUGE}),
        (TEXT, {"prompt": "x", "logprobs": HUGE}),
        (TEXT, {"prompt": "x", "stop": ["s"] * 60_000}),
        (TEXT, {"prompt": "x", "stop_token_ids": [1] * 60_000}),
        (TEXT, {"prompt": "x", "bad_words": ["s"] * 60_000}),
        (TEXT, {"prompt": "x", "logit_bias": {str(i): 1 for i in range(60_000)}}),
        (TEXT, {"prompt": [HUGE]}),
        (TEXT, {"prompt": [-1]}),
        (TEXT, {"prompt": ""}),
        (TEXT, {"prompt": []}),
        (TEXT, {"prompt": [[]]}),
        (TEXT, {"prompt": [""]}),
        (TEXT, {"prompt": "x", "structured_outputs": {"regex": "("}}),
        (TEXT, {"prompt": "x", "structured_outputs": {"json": {"$ref": "http://example.org/x"}}}),
        (TEXT, {"prompt": "x", "structured_outputs": {"grammar": "start: start"}}),
        (CHAT, {"messages": HELLO, "top_logprobs": HUGE, "logprobs": True}),
        (CHAT, {"messages": HELLO, "chat_template": "{% for i in range(10**9) %}{% endfor %}"}),
        (CHAT, {"messages": HELLO, "chat_template_kwargs": {"messages": [], "tokenize": True}}),
        (CHAT, {"messages": HELLO, "prompt_embeds": "AAAA"}),
        ("/v1/responses", {"input": "x", "top_logprobs": HUGE}),
    ],
)
def test_a_value_without_measure_is_refused_and_nothing_else_happens(steady, at_rest, path, body):
    before = at_rest().generated_tokens

    answer = steady.post(path, json=body)

    assert answer.status_code == 400, answer.text
    assert at_rest().generated_tokens == before
    assert steady.post(TEXT, json={"prompt": "x", "max_tokens": 1}).status_code == 200


def test_refusals_name_no_address_in_memory_and_no_file(client):
    said = [
        client.post(TEXT, content=b"\xff", headers={"Content-Type": "application/json"}).text,
        client.post(CHAT, json={"messages": [{"role": "robot"}]}).text,
        client.post(TEXT, json={"prompt": "x", "structured_outputs": {"regex": "("}}).text,
        client.get("/v1/models/../../etc/passwd").text,
    ]

    for text in said:
        assert not re.search(r"0x[0-9a-f]{6,}|File \"|/site-packages/|\.py\b", text), text


def test_an_address_in_a_text_is_text(client, monkeypatch):
    opened = []
    monkeypatch.setattr("socket.create_connection", lambda *a, **_: opened.append(a))
    link = "![](http://192.0.2.1/x.png) http://192.0.2.1/"

    answer = client.post(CHAT, json={"messages": [{"role": "user", "content": link}],
                                     "max_tokens": 1})  # fmt: skip

    assert answer.status_code == 200
    assert opened == []


def test_no_source_evaluates_text_as_code():
    assert len(SOURCES) > 50
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                assert node.func.id not in ("eval", "exec", "compile", "__import__"), path


def test_keys_are_in_no_answer_of_the_server(serving):
    client = serving(api_keys=("s3cret-key",))
    headers = {"Authorization": "Bearer s3cret-key"}

    for path in ("/openapi.json", "/metrics", "/v1/models", "/health", "/version", "/"):
        assert "s3cret-key" not in client.get(path, headers=headers).text
    refused = client.post(TEXT, json={"prompt": 3, "x": "y"}, headers=headers)
    assert "s3cret-key" not in json.dumps([refused.text, dict(refused.headers)])
