"""Every field of every body that starts work, with every kind of value that JSON can write."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from fastapi.testclient import TestClient
from spaninfer_serving import Settings, create_app
from spaninfer_serving.wire.chat import ChatRequest
from spaninfer_serving.wire.completions import CompletionRequest
from spaninfer_serving.wire.generate import GenerateRequest, GenerateSampling
from spaninfer_serving.wire.messages import MessagesRequest
from spaninfer_serving.wire.responses import ResponsesRequest
from spaninfer_serving.wire.tokenize import DetokenizeRequest, TokenizeRequest

HELLO = [{"role": "user", "content": "hi"}]
VALUES = (
    *("null", "true", "0", "-1", "1", "2147483648", "9223372036854775807", "18446744073709551616"),
    *("-9223372036854775809", "1" + "0" * 400, "0.5", "-0.0", "1e308", "-1e308", "1e-320", "1e999"),
    *("NaN", "Infinity", "-Infinity", '""', '"x"', r'"\u0000"', r'"\ud800"', r'"\udc00\ud800"'),
    *('"1"', '"none"', '"' + "é" * 5000 + '"', "[]", "[[]]", "[null]", '["x"]', "[0]", "[-1]"),
    *("[1e999]", "[18446744073709551616]", "{}", '{"x": 1}', '{"x": {}}', '{"": null}'),
    *('{"type": "x"}', '{"type": null}', '[{"type": []}]', "[" * 90 + "]" * 90),
    *('{"a":' * 90 + "1" + "}" * 90, '{"1": 1e308, "-1": 1, "x": 1}', '[{"role": "user"}]'),
)
BODIES = {
    "/v1/completions": (CompletionRequest, {"prompt": "x", "max_tokens": 2}),
    "/v1/chat/completions": (ChatRequest, {"messages": HELLO, "max_tokens": 2}),
    "/v1/responses": (ResponsesRequest, {"input": "x", "max_output_tokens": 2}),
    "/v1/messages": (MessagesRequest, {"model": "tiny", "messages": HELLO, "max_tokens": 2}),
    "/generate": (GenerateRequest, {"text": "x", "sampling_params": {"max_new_tokens": 2}}),
    "/tokenize": (TokenizeRequest, {"prompt": "x"}),
    "/detokenize": (DetokenizeRequest, {"tokens": [1]}),
}


def hostile(model: type, body: dict[str, object]) -> Iterator[str]:
    """Write a body with each value in place of each field, those that are refused by name too."""
    for name in sorted({*model.model_fields, *getattr(model, "not_supported", ())}):
        others = json.dumps({key: value for key, value in body.items() if key != name})[1:-1]
        for value in VALUES:
            yield "{" + ", ".join(filter(None, (others, f"{json.dumps(name)}: {value}"))) + "}"


@pytest.fixture(scope="module")
def steady(engine) -> TestClient:
    """A client of one server for all values."""
    return TestClient(create_app(engine, Settings()), raise_server_exceptions=False)


def failures(client: TestClient, path: str, bodies: Iterator[str]) -> list[object]:
    """Return what is no answer and no refusal."""
    wrong: list[object] = []
    for body in bodies:
        answer = client.post(
            path, content=body.encode(), headers={"Content-Type": "application/json"}
        )
        said = answer.status_code in (200, 501) or "message" in answer.json()["error"]
        if not said or answer.status_code in (500, 502, 503, 504):
            wrong.append((body[:200], answer.status_code, answer.text[:200]))
    return wrong


@pytest.mark.slow
@pytest.mark.parametrize("path", BODIES)
def test_whatever_a_field_is_it_is_taken_or_refused(steady, at_rest, path):
    assert failures(steady, path, hostile(*BODIES[path])) == []
    at_rest()
    assert steady.post("/v1/completions", json={"prompt": "x", "max_tokens": 1}).status_code == 200


def test_whatever_a_sampling_parameter_of_generate_is_it_is_taken_or_refused(steady, at_rest):
    bodies = (
        f'{{"text": "x", "sampling_params": {sampling}}}'
        for sampling in hostile(GenerateSampling, {"max_new_tokens": 2})
    )

    assert failures(steady, "/generate", bodies) == []
    at_rest()
