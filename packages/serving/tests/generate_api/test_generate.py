"""SGLang's native route, as reinforcement-learning frameworks call it."""

import json
import threading

import httpx
import pytest
from spaninfer_engine import SamplingParams
from spaninfer_serving.admission.keys import hash_of
from spaninfer_serving.wire.generate import GenerateResponse, GenerateResult

IDS = [ord(letter) - ord("!") for letter in "hello"]  # the tokenizer begins with "!"
GREEDY = {"temperature": 0, "max_new_tokens": 5, "ignore_eos": True}
ASKED = {"input_ids": IDS, "sampling_params": GREEDY}
TRUTH = SamplingParams(temperature=0, max_tokens=5, ignore_eos=True, logprobs=2, prompt_logprobs=2)


@pytest.fixture
def post(client):
    def ask(**more):
        return client.post("/generate", json=ASKED | more)

    return ask


@pytest.fixture
def truth(engine):
    [completion] = engine.generate([IDS], TRUTH)
    return completion


def rows(entries):
    """Return the engine's entries as SGLang's triples."""
    return [[pytest.approx(each.logprob, abs=1e-4), each.token_id, None] for each in entries]


def tops(entries):
    return [[[pytest.approx(p, abs=1e-4), i, None] for i, p in each.top] for each in entries]


def test_token_ids_are_continued_and_counted(post, truth):
    answer = post().json()

    meta = answer.pop("meta_info")
    assert answer == {"text": truth.text, "output_ids": list(truth.token_ids)}
    assert meta["finish_reason"] == {"type": "length", "length": 5}
    assert (meta["prompt_tokens"], meta["completion_tokens"]) == (5, 5)
    assert set(meta) == {
        *("id", "finish_reason", "prompt_tokens", "completion_tokens", "cached_tokens"),
        "weight_version",
        "e2e_latency",
    }


def test_a_text_is_continued_as_its_ids_are(client, post):
    by_text = client.post("/generate", json={"text": "hello", "sampling_params": GREEDY}).json()

    assert by_text["output_ids"] == post().json()["output_ids"]


def test_log_probabilities_are_of_the_answer_alone_unless_a_start_is_given(post, truth):
    meta = post(return_logprob=True).json()["meta_info"]

    assert meta["output_token_logprobs"] == rows(truth.logprobs)
    assert meta["input_token_logprobs"] == []
    assert "output_top_logprobs" not in meta


@pytest.mark.parametrize("start", [0, 2, 4])
def test_from_its_start_the_prompt_has_them_too_and_nothing_for_the_first(post, truth, start):
    asked = {"return_logprob": True, "logprob_start_len": start, "top_logprobs_num": 2}

    meta = post(**asked).json()["meta_info"]

    behind = truth.prompt_logprobs[start:]
    assert meta["input_token_logprobs"] == [[None, IDS[start], None], *rows(behind)]
    assert meta["input_top_logprobs"] == [None, *tops(behind)]
    assert meta["output_token_logprobs"] == rows(truth.logprobs)
    assert meta["output_top_logprobs"] == tops(truth.logprobs)


def test_texts_stand_beside_ids_where_they_are_wanted(post, engine):
    asked = {"return_logprob": True, "logprob_start_len": 0, "return_text_in_logprobs": True}

    meta = post(**asked).json()["meta_info"]

    assert [text for _, _, text in meta["input_token_logprobs"]] == list("hello")
    for _, token_id, text in meta["output_token_logprobs"]:
        assert text == engine.tokenizer.token_bytes(token_id).decode("utf-8", "replace")


def test_several_prompts_and_several_answers_are_a_list(client, post):
    asked = {"input_ids": [IDS, IDS[:2]], "sampling_params": GREEDY | {"n": 2}}

    answers = client.post("/generate", json=asked).json()

    assert [each["meta_info"]["prompt_tokens"] for each in answers] == [5, 5, 2, 2]
    assert answers[0]["output_ids"] == answers[1]["output_ids"] == post().json()["output_ids"]
    assert len(client.post("/generate", json=ASKED | {"input_ids": [IDS]}).json()) == 1
    assert len(client.post("/generate", json={"text": ["a"]}).json()) == 1


@pytest.mark.parametrize(
    ("sampling", "reason"),
    [
        ({"stop": "?"}, {"type": "stop", "matched": "?"}),
        ({"stop_token_ids": [ord("?")]}, None),
    ],
)
def test_an_answer_says_at_what_it_stopped(post, engine, sampling, reason):
    mark = engine.tokenizer.encode("?", add_special=False)[0]
    if reason is None:
        sampling, reason = {"stop_token_ids": [mark]}, {"type": "stop", "matched": mark}
    forced = {"logit_bias": {str(mark): 100}}

    trimmed = post(sampling_params=GREEDY | forced | sampling).json()
    kept = post(sampling_params=GREEDY | forced | sampling | {"no_stop_trim": True}).json()

    assert trimmed["meta_info"]["finish_reason"] == reason
    assert (trimmed["text"], kept["text"]) == ("", "?")


def test_forms_go_by_sglangs_names(client):
    forms = {
        "regex": "(yes|no)",
        "ebnf": 'start: "yes" | "no"',
        "json_schema": json.dumps({"enum": ["yes", "no"]}),
    }
    for name, form in forms.items():
        sampling = {"max_new_tokens": 20, name: form}
        said = client.post("/generate", json={"text": "x", "sampling_params": sampling}).json()
        assert said["text"].strip('"') in ("yes", "no"), name


def events_of(text):
    events = [line.removeprefix("data: ") for line in text.split("\n\n") if line]
    assert events.pop() == "[DONE]"
    return [json.loads(event) for event in events]


def test_events_hold_all_that_there_is_so_far(post):
    whole = post(return_logprob=True).json()

    events = events_of(post(stream=True, return_logprob=True).text)

    for event in events:
        GenerateResult.model_validate(event)
        count = event["meta_info"]["completion_tokens"]
        assert event["output_ids"] == whole["output_ids"][:count]
        assert whole["text"].startswith(event["text"].rstrip("\ufffd"))
        assert len(event["meta_info"]["output_token_logprobs"]) == count
    assert [event["meta_info"]["completion_tokens"] for event in events][-1] == 5
    assert all(event["meta_info"]["finish_reason"] is None for event in events[:-1])
    latency = ("id", "e2e_latency", "cached_tokens")
    ends = [
        {name: value for name, value in each["meta_info"].items() if name not in latency}
        for each in (events[-1], whole)
    ]
    assert ends[0] == ends[1]
    assert events[-1]["text"] == whole["text"]


def test_a_long_stream_is_not_the_square_of_its_answer(post):
    sampling = GREEDY | {"max_new_tokens": 240}

    events = events_of(post(stream=True, sampling_params=sampling).text)

    counts = [event["meta_info"]["completion_tokens"] for event in events]
    assert counts[-1] == 240
    assert len(counts) <= 32 + 32 * 4  # every token, then every 32nd part: 1.03 ** 66 > 240 / 32


def test_events_of_several_say_whose_they_are(client):
    asked = {"text": ["a", "b"], "stream": True, "sampling_params": GREEDY}

    events = events_of(client.post("/generate", json=asked).text)

    last = {event["index"]: event for event in events}
    assert sorted(last) == [0, 1]
    assert all(each["meta_info"]["finish_reason"]["type"] == "length" for each in last.values())


def test_a_request_is_ended_by_the_id_that_it_brought(live, frozen):
    root = {"Authorization": "Bearer root"}
    running = live(admin_hashes=(hash_of("root"),))
    url = "http://{}:{}".format(*running.address)
    sampling = {"max_new_tokens": 240, "ignore_eos": True}
    answers = []

    def ask():
        body = {"text": "x", "rid": "rollout-7", "sampling_params": sampling}
        answers.append(httpx.post(f"{url}/generate", json=body, headers=root, timeout=120).json())

    thread = threading.Thread(target=ask)
    thread.start()
    with frozen(running.server._service.engine):
        ended = httpx.post(f"{url}/abort_request", json={"rid": "rollout-7"}, headers=root).json()
        thread.join(120)

    meta = answers[0]["meta_info"]
    assert ended == {"aborted": ["rollout-7"]}
    assert meta["id"] == "rollout-7"
    assert meta["finish_reason"]["type"] == "abort"
    assert len(answers[0]["output_ids"]) == meta["completion_tokens"] < 240


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, None),
        ({"text": "a", "input_ids": [1]}, None),
        ({"text": "a", "image_data": "x"}, "image_data"),
        ({"text": "a", "lora_path": "x"}, "lora_path"),
        ({"text": "a", "return_hidden_states": True}, "return_hidden_states"),
        ({"text": "a", "prompt": "a"}, "prompt"),
        ({"text": "a", "rid": "a b"}, "rid"),
        ({"text": "a", "sampling_params": {"temperature": 3}}, "sampling_params.temperature"),
        ({"text": "a", "sampling_params": {"top_k": -2}}, "sampling_params.top_k"),
        ({"text": "a", "sampling_params": {"max_new_tokens": 0}}, "sampling_params.max_new_tokens"),
        ({"text": "a", "sampling_params": {"stop_regex": "a+"}}, "sampling_params.stop_regex"),
        ({"text": "a", "sampling_params": {"max_tokens": 3}}, "sampling_params.max_tokens"),
        ({"text": "a", "sampling_params": [{}, {}]}, "sampling_params"),
        ({"text": "a", "sampling_params": {"regex": "a", "ebnf": 'start: "a"'}}, "sampling_params"),
        ({"text": "a", "sampling_params": {"regex": "("}}, "sampling_params.regex"),
        ({"text": "a" * 300}, "text"),
        ({"input_ids": [1] * 300}, "input_ids"),
        ({"input_ids": [10**6]}, "input_ids"),
        ({"text": "a", "return_logprob": True, "top_logprobs_num": 21}, "top_logprobs_num"),
        ({"text": "a", "return_logprob": True, "logprob_start_len": 1}, "logprob_start_len"),
        ({"text": "a", "return_logprob": True, "logprob_start_len": -2}, "logprob_start_len"),
        (
            {"text": "a", "return_logprob": True, "logprob_start_len": 0, "stream": True},
            "logprob_start_len",
        ),
    ],
    ids=str,
)
def test_what_cannot_be_done_is_refused_by_sglangs_names(client, body, param):
    answer = client.post("/generate", json=body)

    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert error["param"] == param
    if param not in (None, "text", "input_ids"):
        assert param.rpartition(".")[2] in error["message"]


def test_defaults_that_frameworks_send_are_accepted_and_the_description_holds(client, post):
    sent = {
        **dict.fromkeys(("image_data", "lora_path", "token_ids_logprob", "rid")),
        "log_metrics": True,
        "return_hidden_states": False,
        "logprob_start_len": -1,
        "sampling_params": GREEDY | {"spaces_between_special_tokens": True, "custom_params": None},
    }
    answer = post(**sent)

    assert answer.status_code == 200, answer.text
    GenerateResponse.model_validate(answer.json())
    described = client.get("/openapi.json").json()["paths"]["/generate"]["post"]
    examples = described["requestBody"]["content"]["application/json"]["examples"]
    for example in examples.values():
        assert client.post("/generate", json=example["value"]).status_code == 200


def test_priority_needs_a_key_for_it_as_everywhere(serving):
    client = serving(api_keys=("k",))

    answer = client.post(
        "/generate", json={"text": "x", "priority": 1}, headers={"Authorization": "Bearer k"}
    )

    assert answer.status_code == 403
    assert answer.json()["error"]["param"] == "priority"
