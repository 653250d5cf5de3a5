"""Text completions with a suffix, over HTTP."""

import json
import shutil

import openai
import pytest
from fastapi.testclient import TestClient
from spaninfer_engine import Engine
from spaninfer_serving import Settings, create_app
from tokenizers import Tokenizer

TEXT = "/v1/completions"
MARKS = ["<fim_prefix>", "<fim_suffix>", "<fim_middle>", "<fim_pad>", "<file_sep>"]
ASKED = {"prompt": "def f(", "suffix": "):", "max_tokens": 4}


@pytest.fixture(scope="module")
def filling(folder, tmp_path_factory):
    """The tiny model with StarCoder's marks in its vocabulary, and weights made up for it."""
    home = tmp_path_factory.mktemp("filling") / "tiny"
    shutil.copytree(folder, home)
    library = Tokenizer.from_file(str(home / "tokenizer.json"))
    library.add_special_tokens(MARKS)
    library.save(str(home / "tokenizer.json"))
    config = json.loads((home / "config.json").read_text())
    config["vocab_size"] += len(MARKS)
    (home / "config.json").write_text(json.dumps(config))
    with Engine(home, backend="reference", weights="dummy", memory=1 << 22) as engine:
        yield engine


@pytest.fixture
def web(filling):
    return TestClient(create_app(filling, Settings()), raise_server_exceptions=False)


def expected(engine, prefix, suffix):
    whole = f"<fim_prefix>{prefix}<fim_suffix>{suffix}<fim_middle>"
    return engine.tokenizer.encode(whole, parse_special=True)


def test_the_official_client_asks_for_the_text_between_two_others(live, filling):
    host, port = live(filling).address
    with openai.OpenAI(base_url=f"http://{host}:{port}/v1", api_key="none") as client:
        assert client.models.list().data[0].supports_suffix
        answer = client.completions.create(
            model="tiny",
            prompt=["def f(", "class "],
            suffix="):",
            max_tokens=4,
            extra_body={"return_token_ids": True, "ignore_eos": True},
        )

    prompts = [choice.prompt_token_ids for choice in answer.choices]
    assert prompts == [expected(filling, prefix, "):") for prefix in ("def f(", "class ")]
    assert answer.usage.prompt_tokens == sum(map(len, prompts))
    assert answer.usage.completion_tokens == 8


def test_what_stands_behind_changes_the_answer_and_an_empty_text_asks_for_nothing(web):
    def answer(**more):
        asked = ASKED | {"temperature": 0, "ignore_eos": True, "return_token_ids": True} | more
        return web.post(TEXT, json=asked).json()["choices"][0]

    plain = answer(suffix="")
    assert plain["prompt_token_ids"] == answer(suffix=None)["prompt_token_ids"]
    assert len(plain["prompt_token_ids"]) == len("def f(")
    assert len(answer()["prompt_token_ids"]) == len("def f():") + 3


@pytest.mark.parametrize("mark", ["<fim_pad>", "<file_sep>"])
@pytest.mark.parametrize("stream", [False, True])
def test_the_marks_that_end_a_file_end_the_answer_and_are_no_text(web, filling, mark, stream):
    bias = {str(filling.tokenizer.find_id(mark)): 100}
    asked = ASKED | {"logit_bias": bias, "stream": stream, "skip_special_tokens": False}

    answer = web.post(TEXT, json=asked).text

    texts = [answer] if not stream else [x[6:] for x in answer.split("\n\n") if x[6:7] == "{"]
    choices = [choice for text in texts for choice in json.loads(text)["choices"]]
    assert "".join(choice["text"] for choice in choices) == ""
    assert choices[-1]["finish_reason"] == "stop"
    without = {name: value for name, value in asked.items() if name != "suffix"}
    plain = web.post(TEXT, json=without | {"stream": False}).json()["choices"][0]
    assert (plain["finish_reason"], plain["text"]) == ("length", mark * 4)


@pytest.mark.parametrize(
    ("more", "param", "said"),
    [
        ({"echo": True}, "echo", "cannot be combined with suffix"),
        ({"prompt": [1, 2]}, "prompt", "token ids"),
        ({"prompt": ["a", [1]]}, "prompt[1]", "string"),
        ({"suffix": 5}, "suffix", "string"),
        ({"suffix": "x" * 100_000}, "suffix", "maximum context length"),
        ({"suffix": "x" * 252}, "prompt", "maximum context length"),
    ],
    ids=str,
)
def test_what_goes_with_no_suffix_is_refused_by_name(web, more, param, said):
    answer = web.post(TEXT, json=ASKED | more)

    assert answer.status_code == 400
    error = answer.json()["error"]
    assert error["param"] == param
    assert said in error["message"]


def test_a_model_without_marks_refuses_and_names_them(client):
    error = client.post(TEXT, json=ASKED).json()["error"]

    assert (error["param"], error["code"]) == ("suffix", "unsupported_parameter")
    assert "vocabulary has none" in error["message"]
    assert "<|fim_prefix|>" in error["message"]
    assert client.get("/v1/models").json()["data"][0]["supports_suffix"] is False
    chat = {"messages": [{"role": "user", "content": "x"}], "suffix": "y"}
    assert client.post("/v1/chat/completions", json=chat).status_code == 400
