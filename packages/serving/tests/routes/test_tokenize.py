"""Tokenisation over HTTP: prompts as a model receives them."""

import pytest

HELLO = [{"role": "user", "content": "hé"}]
RENDERED = "<|turn|>user:hé<|end|><|turn|>assistant:"


def test_a_text_has_the_ids_that_come_back_as_the_text(client, engine):
    answer = client.post("/tokenize", json={"prompt": "hé <|end|>"}).json()

    assert answer == {
        "count": len(answer["tokens"]),
        "max_model_len": engine.context,
        "tokens": engine.tokenizer.encode("hé <|end|>"),
    }
    back = client.post("/detokenize", json={"tokens": answer["tokens"]}).json()
    assert back == {"prompt": "hé <|end|>"}
    assert not engine.tokenizer.special_ids & set(answer["tokens"])


def test_a_conversation_has_the_ids_of_its_rendered_text(client, engine):
    rendered = client.post("/apply-template", json={"messages": HELLO}).json()
    answer = client.post(
        "/tokenize", json={"messages": HELLO, "return_token_strs": True, "model": "tiny"}
    ).json()

    assert rendered == {"prompt": RENDERED}
    assert answer["tokens"] == engine.encode_chat(HELLO)
    assert answer["token_strs"][0] == "<|turn|>"
    shown = client.post("/detokenize", json={"tokens": answer["tokens"]}).json()
    assert shown == {"prompt": RENDERED}


def test_what_is_left_open_and_variables_are_the_requests(client):
    body = {"messages": HELLO, "add_generation_prompt": False}

    assert client.post("/apply-template", json=body).json() == {"prompt": RENDERED[:-18]}


@pytest.mark.parametrize(
    ("path", "body", "param", "status"),
    [
        ("/tokenize", {}, None, 400),
        ("/tokenize", {"prompt": "x", "messages": HELLO}, None, 400),
        ("/tokenize", {"prompt": 5}, "prompt", 400),
        ("/tokenize", {"prompt": "x", "model": "other"}, "model", 404),
        ("/tokenize", {"promt": "x"}, "promt", 400),
        ("/tokenize", {"prompt": "x" * 100_000}, "prompt", 400),
        ("/detokenize", {}, "tokens", 400),
        ("/detokenize", {"tokens": [1, 10**30]}, "tokens[1]", 400),
        ("/detokenize", {"tokens": [-1]}, "tokens[0]", 400),
        ("/detokenize", {"tokens": "x"}, "tokens", 400),
        ("/apply-template", {"messages": []}, "messages", 400),
        ("/apply-template", {"messages": HELLO, "temperature": 1}, "temperature", 400),
        ("/apply-template", {"messages": HELLO, "reasoning_effort": "high"},
         "reasoning_effort", 400),
    ],
)  # fmt: skip
def test_a_request_at_fault_is_told_what(client, path, body, param, status):
    response = client.post(path, json=body)

    assert response.status_code == status, response.text
    assert response.json()["error"]["param"] == param


def test_null_is_the_default_of_every_parameter(client):
    nulls = {"tools": None, "model": None, "tool_choice": None, "chat_template_kwargs": None}

    answer = client.post("/apply-template", json={"messages": HELLO} | nulls)

    assert answer.json() == {"prompt": RENDERED}


def test_what_a_body_lacks_is_said_in_a_sentence(client):
    error = client.post("/tokenize", json={}).json()["error"]

    assert error["message"] == "the body needs either a prompt or messages"


def test_long_texts_are_tokenised_beside_the_others(client):
    answer = client.post("/tokenize", json={"prompt": "x" * 3000})

    assert answer.json()["count"] == 3000
