"""Every field of every body that starts work, with every kind of value that JSON can write."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Iterator

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from httpx import ASGITransport, AsyncClient
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
def app(engine) -> FastAPI:
    """One server for all values."""
    return create_app(engine, Settings())


def failures(app: FastAPI, path: str, bodies: Iterable[str]) -> list[object]:
    """Return what is no answer and no refusal.

    All are asked in one event loop: a TestClient starts one for each, which takes three times as
    long as an answer.
    """

    async def ask() -> list[object]:
        wrong: list[object] = []
        headers = {"Content-Type": "application/json"}
        to_app = ASGITransport(app, raise_app_exceptions=False)
        async with AsyncClient(transport=to_app, base_url="http://server") as client:
            for body in bodies:
                answer = await client.post(path, content=body.encode(), headers=headers)
                said = answer.status_code in (200, 501) or "message" in answer.json()["error"]
                if not said or answer.status_code in (500, 502, 503, 504):
                    wrong.append((body[:200], answer.status_code, answer.text[:200]))
        return wrong

    return asyncio.run(ask())


@pytest.mark.slow
@pytest.mark.parametrize("path", BODIES)
def test_whatever_a_field_is_it_is_taken_or_refused(app, at_rest, path):
    assert failures(app, path, hostile(*BODIES[path])) == []
    at_rest()
    client = TestClient(app)
    assert client.post("/v1/completions", json={"prompt": "x", "max_tokens": 1}).status_code == 200


def test_whatever_a_sampling_parameter_of_generate_is_it_is_taken_or_refused(app, at_rest):
    bodies = (
        f'{{"text": "x", "sampling_params": {sampling}}}'
        for sampling in hostile(GenerateSampling, {"max_new_tokens": 2})
    )

    assert failures(app, "/generate", bodies) == []
    at_rest()
