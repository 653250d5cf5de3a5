"""Embedding, ranking and classification through API servers, against a single-process server."""

import json
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from api_servers import Running, ask, serving
from small_encoders import write_encoder, write_reranker, write_sentence_files
from spaninfer_engine import Engine
from spaninfer_serving import Settings
from spaninfer_serving.admission.keys import KeyLimits, UserKey, hash_of
from spaninfer_serving.app import create_app
from starlette.testclient import TestClient

pytestmark = pytest.mark.slow  # a process starts in 2 to 5 s
TEXTS = ["fox crow", "cheese", "the grapes who the fox"]
MODELS: dict[str, Callable[[Path], Path]] = {
    "embeds": lambda home: write_encoder(home / "embeds"),
    "classifies": lambda home: write_encoder(
        home / "classifies", "BertForSequenceClassification", labels=3
    ),
    "cross-encodes": lambda home: write_encoder(
        home / "crosses", "BertForSequenceClassification", labels=1
    ),
    "scores by logits": lambda home: write_reranker(home / "reranks"),
}
RERANK = {"query": "who", "documents": TEXTS, "top_n": 2}
CASES: dict[str, list[tuple[str, Any]]] = {
    "embeds": [
        ("/v1/embeddings", {"input": TEXTS}),
        ("/v1/embeddings", {"input": [4, 5], "encoding_format": "base64", "dimensions": 8}),
        ("/v1/embeddings", {"input": "fox", "prompt_name": "query"}),
        ("/v1/embeddings", {"input": "fox", "prompt_name": "other"}),
        ("/v1/embeddings", {"input": ["fox", "crow"], "prompt": "the "}),
        ("/v1/embeddings", {"input": "fox", "dimensions": 99}),
        ("/v1/embeddings", {"input": [99]}),
        ("/v1/embeddings", {"input": "fox " * 100}),
        ("/v1/embeddings", {"input": "fox " * 100, "truncate_prompt_tokens": -1}),
        ("/rerank", RERANK),
        ("/score", {"text_1": "who", "text_2": TEXTS}),
        ("/classify", {"input": "fox"}),
        ("/v1/completions", {"prompt": "fox"}),
    ],
    "classifies": [("/classify", {"input": TEXTS}), ("/rerank", RERANK)],
    "cross-encodes": [("/classify", {"input": TEXTS}), ("/rerank", RERANK)],
    "scores by logits": [("/rerank", RERANK), ("/v1/embeddings", {"input": "fox"})],
}


@pytest.fixture(scope="module", params=MODELS)
def model(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[str, Engine]]:
    """A model of each kind."""
    folder = MODELS[request.param](tmp_path_factory.mktemp("models"))
    if request.param == "embeds":
        write_sentence_files(folder, prompts={"query": "who"})
    with Engine(folder, weights="dummy", max_waiting=64) as engine:
        yield request.param, engine


KEYS = (UserKey("limited", hash_of("few"), KeyLimits(tokens_per_minute=12)),)


@pytest.fixture(scope="module")
def several(model: tuple[str, Engine]) -> Iterator[Running]:
    """Two API servers."""
    with serving(model[1], api_keys=("secret",), user_keys=KEYS) as running:
        yield running


def test_answers_are_those_of_the_server_of_one_process(
    model: tuple[str, Engine], several: Running
) -> None:
    name, engine = model
    app = create_app(engine, Settings(api_keys=("secret",)))
    with TestClient(app, headers={"Authorization": "Bearer secret"}) as single:
        for path, body in CASES[name]:
            expected = single.post(path, json=body)
            status, (found,) = ask(several.address, path, body)
            answer = {
                key: value for key, value in expected.json().items() if key not in ("id", "created")
            }
            assert (status, found) == (expected.status_code, answer), path


def test_requests_of_all_servers_share_steps_and_the_limits_of_their_key(
    model: tuple[str, Engine], several: Running
) -> None:
    if model[0] != "embeds":
        return
    body = {"input": TEXTS}
    (expected,) = ask(several.address, "/v1/embeddings", body)[1]
    before = model[1].stats().embedded_texts
    with ThreadPoolExecutor(12) as pool:
        found = list(pool.map(lambda _: ask(several.address, "/v1/embeddings", body), range(48)))
    assert all(status == 200 and answer == [expected] for status, answer in found)
    assert model[1].stats().embedded_texts == before + 48 * len(TEXTS)
    one = {"input": "fox"}  # 3 tokens
    statuses = Counter(ask(several.address, "/v1/embeddings", one, "few")[0] for _ in range(6))
    assert statuses == {200: 4, 429: 2}


def test_texts_of_who_has_left_are_not_computed(
    model: tuple[str, Engine],
    several: Running,
    monkeypatch: pytest.MonkeyPatch,
    until: Callable[[Callable[[], bool]], None],
) -> None:
    name, engine = model
    if name != "embeds":
        return
    compute, may_go_on, begun, computed = engine.rows_and_errors, Event(), Event(), []

    def held(texts: Any) -> Any:
        begun.set()
        assert may_go_on.wait(120)
        computed.append(len(texts))
        return compute(texts)

    monkeypatch.setattr(engine, "rows_and_errors", held)
    batcher = several.servers._batcher
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(ask, several.address, "/v1/embeddings", {"input": "fox"})
        assert begun.wait(120)
        leaver = HTTPConnection(*several.address, timeout=120)
        headers = {"Authorization": "Bearer secret", "Content-Type": "application/json"}
        leaver.request("POST", "/v1/embeddings", json.dumps({"input": TEXTS}), headers)
        until(lambda: batcher._num_waiting == len(TEXTS))
        leaver.close()
        until(lambda: batcher._num_waiting == 0)
        may_go_on.set()
        assert first.result(120)[0] == 200
    assert ask(several.address, "/v1/embeddings", {"input": "fox"})[0] == 200
    assert computed == [1, 1]
