"""Log-probabilities of prompts over HTTP: vLLM's form, the engine's numbers, and bounds."""

import json

import numpy as np
import openai
import pytest
from fastapi.testclient import TestClient
from spaninfer_engine import SamplingParams
from spaninfer_serving import Settings, create_app
from spaninfer_serving.answers.prompt_logprobs import prompt_logprob_pieces

TEXT, CHAT = "/v1/completions", "/v1/chat/completions"
HELLO = [{"role": "user", "content": "hello"}]
PROMPT = [7, 250, 3, 7, 98]
ONE = {"max_tokens": 1}


def error_of(response):
    assert response.status_code == 400, response.text
    return response.json()["error"]


def in_vllms_form(entries, words):
    """Return the engine's entries as vLLM writes them, written down once more."""
    found = [None]
    for entry in entries:
        own = {entry.token_id: (entry.logprob, entry.rank)}
        likeliest = {token: (logprob, at + 1) for at, (token, logprob) in enumerate(entry.top)}
        found.append(
            {
                str(token): {
                    "logprob": pytest.approx(logprob, abs=1e-6),
                    "rank": rank,
                    "decoded_token": words.token_bytes(token).decode("utf-8", "replace"),
                }
                for token, (logprob, rank) in (own | likeliest).items()
            }
        )
    return found


@pytest.mark.parametrize("likeliest", [0, 1, 5, 20])
def test_a_completion_reports_the_engines_log_probabilities_of_its_prompt(
    client, engine, likeliest
):
    sampling = SamplingParams(max_tokens=1, prompt_logprobs=likeliest)
    [truth] = engine.generate([PROMPT], sampling)

    answer = client.post(TEXT, json={"prompt": PROMPT, "prompt_logprobs": likeliest, **ONE}).json()

    [choice] = answer["choices"]
    expected = in_vllms_form(truth.prompt_logprobs, engine.tokenizer)
    assert choice["prompt_logprobs"] == expected
    assert choice["logprobs"] is None
    for token_id, found in zip(PROMPT[1:], choice["prompt_logprobs"][1:], strict=True):
        assert next(iter(found)) == str(token_id)  # the prompt's own token is the first
        assert len(found) in (likeliest, likeliest + 1) if likeliest else len(found) == 1
        ranked = sorted(found.values(), key=lambda each: each["rank"])
        assert np.all(np.diff([each["logprob"] for each in ranked]) <= 1e-6)


def test_a_chat_reports_them_once_beside_its_choices_and_what_else_was_asked_for(client, engine):
    asked = {"messages": HELLO, "n": 2, "logprobs": True, "return_token_ids": True, **ONE}

    answer = client.post(CHAT, json=asked | {"prompt_logprobs": 2}).json()

    ids = answer["prompt_token_ids"]
    assert engine.tokenizer.decode(ids, skip_special=False) == (
        "<|turn|>user:hello<|end|><|turn|>assistant:"
    )
    [truth] = engine.generate([ids], SamplingParams(max_tokens=1, prompt_logprobs=2))
    assert answer["prompt_logprobs"] == in_vllms_form(truth.prompt_logprobs, engine.tokenizer)
    assert [len(each["logprobs"]["content"]) for each in answer["choices"]] == [1, 1]
    assert [len(each["token_ids"]) for each in answer["choices"]] == [1, 1]


def test_every_choice_of_every_prompt_has_those_of_its_own_prompt(client):
    asked = {"prompt": ["abc", "x"], "n": 2, "prompt_logprobs": 0, **ONE}

    choices = client.post(TEXT, json=asked).json()["choices"]

    said = [
        [None if each is None else each[next(iter(each))]["decoded_token"] for each in found]
        for found in (choice["prompt_logprobs"] for choice in choices)
    ]
    assert said == [[None, "b", "c"], [None, "b", "c"], [None], [None]]
    assert choices[0]["prompt_logprobs"] == choices[1]["prompt_logprobs"]


def test_they_are_what_an_echo_says(client):
    asked = {"prompt": "abcd", "echo": True, "logprobs": 3, "prompt_logprobs": 3, **ONE}

    [choice] = client.post(TEXT, json=asked).json()["choices"]

    echoed = choice["logprobs"]
    assert echoed["tokens"][:4] == list("abcd")
    for token, logprob, found in zip(
        "bcd", echoed["token_logprobs"][1:], choice["prompt_logprobs"][1:], strict=False
    ):
        own = next(iter(found.values()))
        assert own["decoded_token"] == token
        assert own["logprob"] == pytest.approx(logprob)


def test_openais_client_reads_them(live, engine):
    host, port = live(engine).address
    with openai.OpenAI(base_url=f"http://{host}:{port}/v1", api_key="none") as client:
        more = {"prompt_logprobs": 1, "return_token_ids": True}
        text = client.completions.create(model="tiny", prompt="ab", max_tokens=1, extra_body=more)
        chat = client.chat.completions.create(
            model="tiny", messages=HELLO, max_tokens=1, extra_body=more
        )

    assert text.choices[0].prompt_logprobs[0] is None
    assert set(text.choices[0].prompt_logprobs[1]) >= {str(text.choices[0].prompt_token_ids[1])}
    assert len(chat.prompt_logprobs) == len(chat.prompt_token_ids)


@pytest.mark.parametrize("path", [TEXT, CHAT])
def test_a_stream_has_the_ids_of_the_prompt_once_and_refuses_its_log_probabilities(client, path):
    body = {"prompt": "ab"} if path == TEXT else {"messages": HELLO}
    body |= {"max_tokens": 3, "stream": True, "ignore_eos": True}

    lines = client.post(path, json=body | {"return_token_ids": True}).text.split("\n\n")
    error = error_of(client.post(path, json=body | {"prompt_logprobs": 0}))

    events = [json.loads(line.removeprefix("data: ")) for line in lines if "{" in line]
    holders = events if path == CHAT else [event["choices"][0] for event in events]
    whole = client.post(path, json=body | {"stream": False, "return_token_ids": True}).json()
    expected = (whole if path == CHAT else whole["choices"][0])["prompt_token_ids"]
    assert [each.get("prompt_token_ids") for each in holders] == [expected] + [None] * (
        len(events) - 1
    )
    assert error["param"] == "prompt_logprobs"
    assert "cannot be streamed" in error["message"]


@pytest.mark.parametrize(
    "more",
    [
        {"prompt_logprobs": -1},
        {"prompt_logprobs": 21},
        {"prompt_logprobs": 1.5},
        {"prompt_logprobs": 2, "echo": True, "logprobs": 1},
    ],
)
def test_what_cannot_be_reported_is_refused_by_name(client, more):
    error = error_of(client.post(TEXT, json={"prompt": "ab", **more}))

    assert error["param"] == "prompt_logprobs"


LONG = [100 + i % 50 for i in range(3000)]


@pytest.fixture
def long_client(long_engine):
    return TestClient(create_app(long_engine, Settings()))


def test_long_lists_are_written_in_pieces(long_client, long_engine):
    sampling = SamplingParams(max_tokens=1, prompt_logprobs=20)
    [truth] = long_engine.generate([LONG], sampling)
    words = long_engine.tokenizer

    pieces = list(prompt_logprob_pieces(truth.prompt_logprobs, words))
    answer = long_client.post(TEXT, json={"prompt": LONG, "prompt_logprobs": 20, **ONE})

    assert max(map(len, pieces)) < 300_000  # of 4 MB: 128 tokens
    assert json.loads("".join(pieces)) == in_vllms_form(truth.prompt_logprobs, words)
    assert len(answer.json()["choices"][0]["prompt_logprobs"]) == 3000


@pytest.mark.parametrize(
    ("more", "param"),
    [
        ({"prompt": [LONG] * 20, "prompt_logprobs": 20}, "prompt_logprobs"),
        ({"prompt": LONG, "n": 64, "prompt_logprobs": 6}, "prompt_logprobs"),
        ({"prompt": LONG, "n": 128, "return_token_ids": True}, None),
        ({"prompt": [LONG] * 20, "n": 18, "return_token_ids": True}, "return_token_ids"),
    ],
)
def test_an_answer_repeats_so_much_of_its_prompts_and_no_more(long_client, more, param):
    answer = long_client.post(TEXT, json=ONE | more)

    if param is None:
        assert answer.status_code == 200
        return
    error = error_of(answer)
    assert (error["param"], error["code"]) == (param, "echo_too_large")
    assert "at most 1048576" in error["message"]
