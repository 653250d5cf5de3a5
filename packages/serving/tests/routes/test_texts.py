"""Embeddings over HTTP: results of OpenAI's client, and refusals."""

import asyncio
import base64
import json
import logging

import httpx
import numpy as np
import openai
import pytest
from fastapi.testclient import TestClient
from small_encoders import (
    CLS,
    CROW,
    FOX,
    HIDDEN,
    MAX_LEN,
    SEP,
    write_encoder,
    write_reranker,
    write_sentence_files,
)
from spaninfer_engine import Engine
from spaninfer_serving import Settings, create_app
from spaninfer_serving.admission.fair_queue import Client
from spaninfer_serving.engine.text_batcher import TextBatcher
from spaninfer_serving.wire.errors import Problem

EMBED = "/v1/embeddings"
PROMPTS = {"query": "who ", "none": ""}


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    folder = write_encoder(tmp_path_factory.mktemp("models") / "small")
    write_sentence_files(folder, prompts=PROMPTS)
    with Engine(folder, backend="reference", weights="dummy", step_tokens=64) as engine:
        yield engine


@pytest.fixture
def web(encoder):
    return TestClient(create_app(encoder, Settings()), raise_server_exceptions=False)


@pytest.fixture
def official(live, encoder):
    host, port = live(encoder).address
    with openai.OpenAI(base_url=f"http://{host}:{port}/v1", api_key="none") as client:
        yield client


def vectors(response):
    return np.array([item["embedding"] for item in response.json()["data"]], np.float32)


def error_of(response, status=400):
    assert response.status_code == status, response.text
    return response.json()["error"]


# ---- vectors -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "texts"),
    [
        ("fox crow", ["fox crow"]),
        (["fox crow", "fox"], ["fox crow", "fox"]),
        ([CLS, FOX, SEP], [[CLS, FOX, SEP]]),
        ([[CLS, FOX, SEP], [CLS, CROW, FOX, SEP]], [[CLS, FOX, SEP], [CLS, CROW, FOX, SEP]]),
    ],
    ids=["text", "texts", "ids", "lists of ids"],
)
def test_the_official_client_gets_the_engines_vectors_in_the_order_of_its_texts(
    official, encoder, given, texts
):
    answer = official.embeddings.create(model="small", input=given)  # in base64, which it decodes

    got = np.array([item.embedding for item in answer.data], np.float32)
    np.testing.assert_allclose(got, encoder.embed(texts), atol=1e-6)
    assert [item.index for item in answer.data] == list(range(len(texts)))
    tokens = sum(len(encoder.tokenizer.encode(t) if isinstance(t, str) else t) for t in texts)
    assert (answer.usage.prompt_tokens, answer.usage.total_tokens) == (tokens, tokens)
    assert (answer.object, answer.model) == ("list", "small")


def test_base64_holds_the_same_float32_as_the_numbers(web, encoder):
    asked = {"input": ["fox", "crow cheese"], "user": "somebody"}

    numbers = web.post(EMBED, json=asked)
    coded = web.post(EMBED, json=asked | {"encoding_format": "base64"})

    decoded = [
        np.frombuffer(base64.b64decode(item["embedding"]), "<f4") for item in coded.json()["data"]
    ]
    np.testing.assert_array_equal(np.stack(decoded), vectors(numbers))
    np.testing.assert_array_equal(vectors(numbers), encoder.embed(asked["input"]))


def test_fewer_dimensions_are_the_first_ones_at_length_1_again(official, encoder):
    answer = official.embeddings.create(model="small", input="fox crow", dimensions=8)

    plain = encoder.embed("fox crow", normalize=False)[0, :8]
    expected = plain / np.linalg.norm(plain)
    np.testing.assert_allclose(answer.data[0].embedding, expected, rtol=1e-5)


def test_vectors_may_keep_their_length(web, encoder):
    answer = web.post(EMBED, json={"input": "fox", "normalize": False})

    np.testing.assert_array_equal(vectors(answer), encoder.embed("fox", normalize=False))


def test_a_prompt_of_the_models_files_stands_in_front(web, encoder):
    asked = web.post(EMBED, json={"input": "fox", "prompt_name": "query"})

    np.testing.assert_array_equal(vectors(asked), encoder.embed("who fox"))
    error = error_of(web.post(EMBED, json={"input": "fox", "prompt_name": "verse"}))
    assert "this model's prompts are 'query', 'none'" in error["message"]


def test_a_prompt_of_the_requests_own_stands_in_front_of_every_text(official, web, encoder):
    answer = official.embeddings.create(
        model="small", input=["fox", "cheese"], extra_body={"prompt": "the crow "}
    )

    got = np.array([item.embedding for item in answer.data], np.float32)
    np.testing.assert_allclose(got, encoder.embed(["the crow fox", "the crow cheese"]), atol=1e-6)
    none = web.post(EMBED, json={"input": "fox", "prompt": ""})
    np.testing.assert_array_equal(vectors(none), encoder.embed("fox", prompt=""))


def test_a_prompt_is_not_repeated_without_end(web):
    body = {"input": ["fox"] * 2000, "prompt": "x " * 1000}

    error = error_of(web.post(EMBED, json=body))

    assert error["param"] == "prompt"
    assert "4000000 in front of 2000 texts; at most 2097152" in error["message"]


def test_of_a_far_too_long_prompt_only_the_beginning_is_read(web):
    error = error_of(web.post(EMBED, json={"input": "fox", "prompt": "x " * 2**19}))

    assert error["code"] == "context_length_exceeded"
    assert "the prompt has more than" in error["message"]


def test_what_does_not_fit_is_refused_or_cut_as_asked(web, encoder):
    long = "fox " * MAX_LEN

    error = error_of(web.post(EMBED, json={"input": ["fox", long]}))
    cut = web.post(EMBED, json={"input": long, "truncate_prompt_tokens": -1})

    assert error["code"] == "context_length_exceeded"
    assert error["param"] == "input"
    assert f"text 1 has {MAX_LEN + 2} tokens" in error["message"]
    np.testing.assert_array_equal(vectors(cut), encoder.embed(long, truncate=True))
    assert cut.json()["usage"]["prompt_tokens"] == MAX_LEN


def test_more_texts_than_a_step_holds_come_in_order(web, encoder):
    texts = [f"{'fox ' * (number % 7)}crow" for number in range(150)]

    answer = web.post(EMBED, json={"input": texts})

    np.testing.assert_allclose(vectors(answer), encoder.embed(texts), atol=1e-6)


# ---- refusals ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "param", "told"),
    [
        ({}, "input", "is missing"),
        ({"input": []}, "input", "holds 0 texts; allowed is 1 to 2048"),
        ({"input": ["fox"] * 2049}, "input", "holds 2049 texts"),
        ({"input": [[]]}, "input", "empty"),
        ({"input": [[40]]}, "input", "token id 40"),
        ({"input": "fox", "dimensions": 0}, "dimensions", f"allowed is 1 to {HIDDEN}"),
        ({"input": "fox", "dimensions": HIDDEN + 1}, "dimensions", f"1 to {HIDDEN}"),
        ({"input": "fox", "encoding_format": "hex"}, "encoding_format", "'float' or 'base64'"),
        ({"input": "fox", "dimension": 8}, "dimension", "did you mean 'dimensions'"),
        ({"input": "fox", "truncate_prompt_tokens": 7}, "truncate_prompt_tokens", "-1"),
        ({"input": [CLS, FOX], "prompt_name": "query"}, "input", "put in front of texts"),
        ({"input": [CLS, FOX], "prompt": "who "}, "input", "put in front of texts"),
        ({"input": "fox", "prompt": "the ", "prompt_name": "query"}, "prompt", "send one"),
        ({"input": "fox", "prompt": ["the "]}, "prompt", "string"),
    ],
    ids=str,
)
def test_what_cannot_be_is_refused_by_name(web, body, param, told):
    error = error_of(web.post(EMBED, json=body))

    assert error["param"] == param
    assert told in error["message"]


def test_another_model_does_not_exist(web):
    error = error_of(web.post(EMBED, json={"input": "fox", "model": "large"}), 404)

    assert error["code"] == "model_not_found"


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "fox"}]}),
        ("/v1/completions", {"prompt": "fox"}),
        ("/classify", {"input": "fox"}),
    ],
)
def test_an_encoder_says_what_it_answers_instead(web, path, body):
    error = error_of(web.post(path, json=body))

    assert error["code"] == "unsupported_task"
    assert "this server answers at /v1/embeddings, /rerank and /score" in error["message"]


@pytest.mark.parametrize(
    "path", [EMBED, "/rerank", "/v1/rerank", "/v2/rerank", "/score", "/classify"]
)
def test_a_decoder_says_what_it_answers_instead(client, path):
    error = error_of(client.post(path, json={"input": "fox"}))

    assert error["code"] == "unsupported_task"
    assert "/v1/chat/completions and /v1/completions" in error["message"]


# ---- scores of vectors ---------------------------------------------------------------------------


def test_scores_of_an_encoder_are_cosines(web, encoder):
    documents = ["the crow", "fox", "cheese fox grapes"]
    cosines = encoder.embed(documents) @ encoder.embed("who fox")[0]

    scored = web.post("/score", json={"text_1": "who fox", "text_2": documents}).json()
    paired = web.post("/v1/score", json={"queries": documents, "documents": documents}).json()

    np.testing.assert_allclose([item["score"] for item in scored["data"]], cosines, atol=1e-6)
    np.testing.assert_allclose([item["score"] for item in paired["data"]], 1, atol=1e-6)


@pytest.mark.parametrize("path", ["/rerank", "/v1/rerank", "/v2/rerank"])
def test_documents_are_ranked_the_best_first(web, encoder, path):
    documents = ["the crow", {"text": "fox"}, "cheese fox grapes"]
    texts = ["the crow", "fox", "cheese fox grapes"]
    cosines = encoder.embed(texts) @ encoder.embed("who fox")[0]
    best = np.argsort(-cosines)

    answer = web.post(path, json={"query": "who fox", "documents": documents}).json()
    top = web.post(
        path,
        json={"query": "who fox", "documents": documents, "top_n": 1, "return_documents": False},
    ).json()

    assert [item["index"] for item in answer["results"]] == best.tolist()
    assert [item["document"]["text"] for item in answer["results"]] == [texts[i] for i in best]
    scores = [item["relevance_score"] for item in answer["results"]]
    np.testing.assert_allclose(scores, cosines[best], atol=1e-6)
    [only] = top["results"]
    assert (only["index"], only["document"]) == (best[0], None)
    assert answer["usage"]["total_tokens"] == top["usage"]["total_tokens"] > 0


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/rerank", {"query": "fox", "documents": []}, "documents"),
        ("/rerank", {"query": "fox", "documents": ["fox"], "top_n": -1}, "top_n"),
        (
            "/rerank",
            {"query": "fox", "documents": ["a"], "max_tokens_per_doc": 5},
            "max_tokens_per_doc",
        ),
        ("/score", {"text_1": ["a", "b"], "text_2": ["a", "b", "c"]}, "text_1"),
        ("/score", {"text_1": "a", "queries": "a", "text_2": "b"}, "queries"),
    ],
    ids=str,
)
def test_pairs_that_cannot_be_are_refused_by_name(web, path, body, param):
    assert error_of(web.post(path, json=body))["param"] == param


def test_a_reranker_answers_with_its_own_scores_and_at_no_other_address(tmp_path):
    documents = ["the crow", "fox", "cheese fox grapes"]
    folder = write_reranker(tmp_path / "reranker")
    with Engine(folder, backend="reference", weights="dummy") as reranker:
        web = TestClient(create_app(reranker, Settings()), raise_server_exceptions=False)
        expected = reranker.score("who", documents)

        ranked = web.post("/v1/rerank", json={"query": "who", "documents": documents}).json()
        scored = web.post("/score", json={"text_1": "who", "text_2": documents}).json()
        long = {"text_1": "who", "text_2": "fox " * MAX_LEN}
        refused = [web.post(path, json={"input": "fox"}) for path in (EMBED, "/classify")]
        too_long = web.post("/score", json=long)
        cut = web.post("/score", json={**long, "truncate_prompt_tokens": -1}).json()

    assert [item["index"] for item in ranked["results"]] == np.argsort(-expected).tolist()
    got = [item["relevance_score"] for item in ranked["results"]]
    np.testing.assert_allclose(got, np.sort(expected)[::-1], atol=1e-6)
    np.testing.assert_allclose([item["score"] for item in scored["data"]], expected, atol=1e-6)
    assert scored["usage"]["total_tokens"] == 5 + 4 + 6
    assert [error_of(each)["code"] for each in refused] == ["unsupported_task"] * 2
    assert all("/rerank and /score" in error_of(each)["message"] for each in refused)
    error_of(too_long)
    assert cut["usage"]["total_tokens"] == MAX_LEN


# ---- the server ----------------------------------------------------------------------------------


def test_metrics_and_the_access_log_count_texts_and_tokens(encoder, caplog):
    client = TestClient(create_app(encoder, Settings()))
    before = encoder.stats().embedded_texts

    with caplog.at_level(logging.INFO, "spaninfer_serving.access_log"):
        client.post(EMBED, json={"input": ["fox", "crow crow"]})
        page = client.get("/metrics").text

    assert f"spaninfer_embedded_texts_total {before + 2}.0" in page
    assert "spaninfer_prompt_tokens_count 2.0" in page
    assert "spaninfer_prompt_tokens_sum 7.0" in page
    assert "spaninfer_request_seconds_count 1.0" in page
    assert "texts 7 tokens" in caplog.text


@pytest.mark.parametrize("path", [EMBED, "/rerank", "/score"])
def test_the_examples_of_the_description_are_answered(web, path):
    described = web.get("/openapi.json").json()["paths"][path]["post"]["requestBody"]

    example = described["content"]["application/json"]["examples"]["texts"]["value"]

    assert web.post(path, json=example).status_code == 200


def test_a_server_of_an_encoder_is_ready_and_lists_its_model(live, encoder):
    host, port = live(encoder).address
    url = f"http://{host}:{port}"

    assert httpx.get(f"{url}/health/ready").status_code == 200
    assert httpx.get(f"{url}/v1/models").json()["data"][0]["max_model_len"] == MAX_LEN


# ---- steps that requests share -------------------------------------------------------------------


class Gate:
    """An engine whose steps wait to be let through, and are written down."""

    def __init__(self, engine, loop):
        self.resolved, self._engine, self._loop = engine.resolved, engine, loop
        self.steps, self._open = [], asyncio.Event()
        self.failing = None  # a length of texts that have an error instead of a row

    def rows_and_errors(self, texts):
        lengths = [len(text.ids) for text in texts]
        self.steps.append(lengths)
        asyncio.run_coroutine_threadsafe(self._open.wait(), self._loop).result(120)
        rows, _ = self._engine.rows_and_errors(texts)
        failed = (number for number, length in enumerate(lengths) if length == self.failing)
        return rows, dict.fromkeys(failed, ZeroDivisionError("of a kernel"))

    def open(self):
        self._open.set()


def text(encoder, num_tokens):
    return encoder.encode_text([FOX] * num_tokens)


def batched(encoder, work):
    """Run `work(batcher, gate)` in a loop."""

    async def run():
        gate = Gate(encoder, asyncio.get_running_loop())
        return await work(TextBatcher(gate), gate)

    return asyncio.run(run())


async def begun(batcher, client, *lengths_of):
    task = asyncio.ensure_future(batcher.rows(client, lengths_of))
    await asyncio.sleep(0)
    return task


def test_requests_share_steps_and_a_long_list_keeps_no_other_client_waiting(encoder):
    async def work(batcher, gate):
        many = await begun(batcher, Client("a", "1"), *[text(encoder, 30)] * 6)
        one = await begun(batcher, Client("b", "2"), text(encoder, 5))
        gate.open()
        await asyncio.gather(many, one)
        return gate.steps

    first, second, *rest = batched(encoder, work)

    assert first == [30, 30]  # a step has 64 tokens
    assert 5 in second
    assert sum(map(len, rest)) == 3


def test_a_text_that_fails_fails_its_request_and_none_beside_it(encoder):
    async def work(batcher, gate):
        gate.failing = 7
        first = await begun(batcher, Client("a", "1"), text(encoder, 60))
        whole = await begun(batcher, Client("b", "2"), text(encoder, 9), text(encoder, 11))
        failed = await begun(batcher, Client("c", "3"), text(encoder, 8), text(encoder, 7))
        gate.open()
        return gate.steps, await asyncio.gather(first, whole, failed, return_exceptions=True)

    steps, (first, (rows, _), failed) = batched(encoder, work)

    assert sorted(steps[1]) == [7, 8, 9, 11]
    assert first[0].shape == (1, rows.shape[1])
    np.testing.assert_allclose(
        rows, encoder.rows_of([text(encoder, 9), text(encoder, 11)]), atol=1e-6
    )
    assert isinstance(failed, ZeroDivisionError)


def test_texts_of_a_client_that_left_are_in_no_step_and_make_room(encoder):
    async def work(batcher, gate):
        kept = await begun(batcher, Client("a", "1"), text(encoder, 60))
        left = await begun(batcher, Client("b", "2"), *[text(encoder, 7)] * 3)
        left.cancel()
        await asyncio.sleep(0)
        waiting = batcher._num_waiting
        gate.open()
        after = await begun(batcher, Client("c", "3"), text(encoder, 9))
        await asyncio.gather(kept, after)
        return waiting, gate.steps

    assert batched(encoder, work) == (0, [[60], [9]])


def test_more_texts_than_may_wait_are_refused_for_now(encoder):
    async def work(batcher, gate):
        first = await begun(batcher, Client("a", "1"), text(encoder, 60))
        waiting = await begun(batcher, Client("b", "2"), text(encoder, 60))
        most = encoder.resolved.max_waiting
        with pytest.raises(Problem) as refused:
            await batcher.rows(Client("c", "3"), [text(encoder, 1)] * most)
        gate.open()
        await asyncio.gather(first, waiting)
        return refused.value

    problem = batched(encoder, work)

    assert (problem.status, problem.code) == (429, "queue_full")
    assert "1 texts are waiting" in problem.message


def test_an_error_of_a_step_is_that_of_its_requests_alone(encoder):
    async def work(batcher, gate):
        gate.open()
        with pytest.raises(ValueError, match="no such text"):
            await batcher.rows(Client("a", "1"), [Broken()])
        rows, _ = await batcher.rows(Client("a", "1"), [text(encoder, 3)])
        return rows.shape

    class Broken:
        @property
        def ids(self):
            if self._asked:
                raise ValueError("no such text")
            self._asked = True
            return [1]

        _asked = False

    assert batched(encoder, work) == (1, HIDDEN)


def test_a_body_in_pieces_is_whole_json(web):
    texts = ["fox"] * 600  # 600 * 32 numbers: more than one piece

    assert len(json.loads(web.post(EMBED, json={"input": texts}).content)["data"]) == 600
