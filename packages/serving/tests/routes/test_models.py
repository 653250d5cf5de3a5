"""Model names: listed, accepted, and returned in answers."""

import openai
import pytest
from small_encoders import write_encoder
from spaninfer_engine import ConfigError, Engine
from spaninfer_serving import Settings, create_app
from starlette.testclient import TestClient

NAMES = ("tiny", "gpt-4o-mini", "org/tiny:latest")
HELLO = [{"role": "user", "content": "hello"}]
ASKED = {
    "/v1/completions": {"prompt": "x", "max_tokens": 1},
    "/v1/chat/completions": {"messages": HELLO, "max_tokens": 1},
    "/v1/responses": {"input": "x", "max_output_tokens": 1},
    "/v1/messages": {"messages": HELLO, "max_tokens": 1},
}


@pytest.fixture
def named(serving):
    return serving(further_names=NAMES[1:])


def test_every_name_is_listed_the_first_first(named):
    listed = named.get("/v1/models").json()["data"]

    assert [each["id"] for each in listed] == list(NAMES)
    assert [each["display_name"] for each in listed] == list(NAMES)
    nameless = {"id": "", "display_name": ""}
    assert all(each | nameless == listed[0] | nameless for each in listed)
    for name in NAMES:
        assert named.get(f"/v1/models/{name}").json()["id"] == name


@pytest.mark.parametrize("path", ["/model_info", "/get_model_info"])
def test_it_is_described_in_sglang_s_form_without_a_path_of_the_server(named, path):
    assert named.get(path).json() == {
        "model_path": "tiny",
        "is_generation": True,
        "has_image_understanding": False,
        "has_audio_understanding": False,
        "weight_version": "default",
    }


@pytest.mark.parametrize("path", ASKED)
def test_an_answer_carries_the_name_that_was_asked_for_or_the_first(named, path):
    for name in NAMES:
        assert named.post(path, json=ASKED[path] | {"model": name}).json()["model"] == name
    assert named.post(path, json=ASKED[path]).json()["model"] == NAMES[0]


def test_the_official_client_reads_the_name_that_it_asked_for_in_every_chunk(live, engine):
    host, port = live(engine, further_names=NAMES[1:]).address
    with openai.OpenAI(base_url=f"http://{host}:{port}/v1", api_key="none") as client:
        assert [each.id for each in client.models.list()] == list(NAMES)
        chunks = client.chat.completions.create(
            model=NAMES[2], messages=HELLO, max_tokens=3, stream=True
        )
        assert {chunk.model for chunk in chunks} == {NAMES[2]}


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        *(("POST", path, body | {"model": "other"}) for path, body in ASKED.items()),
        ("POST", "/tokenize", {"prompt": "x", "model": "other"}),
        ("POST", "/detokenize", {"tokens": [1], "model": "other"}),
        ("GET", "/v1/models/other", None),
    ],
)
def test_another_name_is_refused_with_all_that_there_are(named, method, path, body):
    answer = named.request(method, path, json=body)

    assert answer.status_code == 404
    assert answer.json()["error"]["message"] == (
        "the model 'other' does not exist; this server has 'tiny', 'gpt-4o-mini', 'org/tiny:latest'"
    )


def test_vectors_scores_and_labels_carry_the_name_that_was_asked_for(tmp_path):
    folder = write_encoder(tmp_path / "small", "BertForSequenceClassification", labels=2)
    asked = {
        "/v1/embeddings": {"input": "fox"},
        "/rerank": {"query": "fox", "documents": ["crow"]},
        "/score": {"text_1": "fox", "text_2": "crow"},
        "/classify": {"input": "fox"},
    }
    with Engine(folder, backend="reference", weights="dummy") as engine:
        web = TestClient(create_app(engine, Settings(further_names=("other",))))
        for path, body in asked.items():
            answers = [web.post(path, json=body | more) for more in ({}, {"model": "other"})]
            if answers[0].status_code == 200:  # what this model is for
                assert [each.json()["model"] for each in answers] == ["small", "other"]
        assert web.post("/classify", json=asked["/classify"]).status_code == 200


def test_an_empty_name_is_refused():
    with pytest.raises(ConfigError, match="a name of the model is empty"):
        Settings(further_names=("",))


@pytest.mark.parametrize("name", ["a\nb", "a\r\nX: y", "\0", "\ud800"])
def test_a_name_that_cannot_be_printed_is_refused(name):
    with pytest.raises(ConfigError, match="cannot be printed"):
        Settings(further_names=("other", name))


def test_a_name_that_is_given_twice_is_listed_once(engine):
    web = TestClient(create_app(engine, Settings(further_names=("tiny", "b", "b"))))

    assert [each["id"] for each in web.get("/v1/models").json()["data"]] == ["tiny", "b"]
