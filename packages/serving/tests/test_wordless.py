"""A model without tokenizer files over HTTP: token ids in, token ids out."""

import json
import shutil

import httpx
import pytest
from fastapi.testclient import TestClient
from spaninfer_engine import Engine
from spaninfer_serving import Settings, create_app

TEXT, CHAT = "/v1/completions", "/v1/chat/completions"
PROMPT = [7, 250, 3]


@pytest.fixture(scope="module")
def wordless(folder, tmp_path_factory):
    bare = tmp_path_factory.mktemp("models") / "bare"
    kept = ("config.json", "model.safetensors")
    shutil.copytree(
        folder, bare, ignore=lambda _, names: [name for name in names if name not in kept]
    )
    with Engine(bare, backend="reference", memory=1 << 22, span_len=16) as engine:
        yield TestClient(create_app(engine, Settings()), raise_server_exceptions=False)


def test_a_server_of_a_model_without_tokenizer_starts(folder, tmp_path, live):
    kept = ("config.json", "model.safetensors")
    for name in kept:
        shutil.copy(folder / name, tmp_path)

    with Engine(tmp_path, backend="reference", memory=1 << 22, span_len=16) as engine:
        host, port = live(engine).address

        assert httpx.get(f"http://{host}:{port}/health/ready").status_code == 200


ASKED = {"prompt": PROMPT, "max_tokens": 5, "temperature": 0, "ignore_eos": True}


def test_ids_are_continued_with_the_ids_that_the_same_model_with_a_tokenizer_draws(
    wordless, client
):
    asked = ASKED | {"return_token_ids": True}

    without, with_words = (each.post(TEXT, json=asked).json() for each in (wordless, client))

    [choice], [expected] = without["choices"], with_words["choices"]
    assert choice["text"] == ""
    assert choice["finish_reason"] == "length"
    assert choice["token_ids"] == expected["token_ids"]
    assert len(choice["token_ids"]) == 5
    assert choice["prompt_token_ids"] == PROMPT
    assert without["usage"] == with_words["usage"]


def test_ids_are_streamed(wordless):
    asked = ASKED | {"return_token_ids": True, "stream": True}

    whole = wordless.post(TEXT, json=ASKED | {"return_token_ids": True}).json()["choices"][0]
    lines = wordless.post(TEXT, json=asked).text.split("\n\n")

    events = [json.loads(line.removeprefix("data: ")) for line in lines if "{" in line]
    choices = [choice for event in events for choice in event["choices"]]
    streamed = [token for choice in choices for token in choice.get("token_ids") or []]
    assert streamed == whole["token_ids"]
    assert all(choice["text"] == "" for choice in choices)


def test_an_answer_ends_at_an_id_and_tells_log_probabilities_of_ids(wordless):
    ids = wordless.post(TEXT, json=ASKED | {"return_token_ids": True}).json()["choices"][0][
        "token_ids"
    ]

    asked = ASKED | {"stop_token_ids": [ids[1]], "return_token_ids": True, "logprobs": 1}
    choice = wordless.post(TEXT, json=asked).json()["choices"][0]

    assert choice["finish_reason"] == "stop"
    assert choice["token_ids"] == ids[: ids.index(ids[1]) + 1]
    assert len(choice["logprobs"]["token_logprobs"]) == len(choice["token_ids"])


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        (TEXT, {"prompt": "Hello"}, "prompt"),
        (TEXT, {"prompt": ["Hello", "you"]}, "prompt"),
        (TEXT, {"prompt": "x" * 100_000}, "prompt"),
        (CHAT, {"messages": [{"role": "user", "content": "Hello"}]}, "messages"),
    ],
)
def test_text_is_refused_with_what_to_send_in_its_place(wordless, path, body, param):
    response = wordless.post(path, json=body)

    error = response.json()["error"]
    assert response.status_code == 400
    assert error["param"] == param
    assert "this model has no tokenizer files; send token ids" in error["message"]


@pytest.mark.parametrize(("name", "value"), [("stop", ["x"]), ("bad_words", ["x"])])
def test_what_looks_at_text_is_refused_where_there_is_none(wordless, name, value):
    response = wordless.post(TEXT, json=ASKED | {name: value})

    assert response.status_code == 400
    assert response.json()["error"]["param"] == name
    assert "without tokenizer files" in response.json()["error"]["message"]
