import json
import re
from threading import get_ident

import pytest
from fastapi.testclient import TestClient
from spaninfer_engine import Engine
from spaninfer_engine.output.handle import ResultQueue
from spaninfer_engine.text.tokenizer import Tokenizer
from spaninfer_serving import Settings, create_app
from spaninfer_serving.admission.keys import hash_of
from spaninfer_serving.app import ROUTERS

JSON = {"Content-Type": "application/json"}
HELLO = [{"role": "user", "content": "hello"}]
TOOL = {"type": "function", "function": {"name": "look"}}
CALL = {"id": "1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
CHAT, TEXT = "/v1/chat/completions", "/v1/completions"


def error_of(response, status):
    assert response.status_code == status, response.text
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return error


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b'{"prompt": ',
        b'{"prompt": "\xff"}',
        b'{"prompt": "half a pair: \\ud800"}',
        '{"prompt": "x"}'.encode("utf-16"),
        b'{"prompt": ' + b"[" * 10_000 + b"]" * 10_000 + b"}",
        b'{"prompt": "x", "max_tokens": 1' + b"0" * 5000 + b"}",
    ],
)
def test_what_is_not_json_is_refused_as_such(client, body):
    error = error_of(client.post(TEXT, content=body, headers=JSON), 400)

    assert error["code"] == "invalid_json"
    assert error["message"].startswith("the body is not JSON: ")


@pytest.mark.parametrize("body", [b"null", b"[1]", b'"x"', b"7"])
def test_json_that_is_no_object_is_refused(client, body):
    assert "object" in error_of(client.post(TEXT, content=body, headers=JSON), 400)["message"]


@pytest.mark.parametrize(
    ("headers", "words"),
    [
        ({"Content-Type": "text/plain"}, "text/plain"),
        ({"Content-Type": "application/x-www-form-urlencoded"}, "application/json"),
        ({}, "not given"),
        (JSON | {"Content-Encoding": "gzip"}, "gzip"),
    ],
)
def test_a_body_must_be_announced_as_plain_json(client, headers, words):
    response = client.post(TEXT, content=b'{"prompt": "x"}', headers=headers)

    assert words in error_of(response, 415)["message"]


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        (TEXT, {}, "prompt"),
        (TEXT, {"prompt": 5}, "prompt"),
        (TEXT, {"prompt": ["a", 5]}, "prompt[1]"),
        (TEXT, {"prompt": "x", "temperature": float("nan")}, "temperature"),
        (TEXT, {"prompt": "x", "temperature": float("inf")}, "temperature"),
        (TEXT, {"prompt": "x", "top_p": 0}, "top_p"),
        (TEXT, {"prompt": "x", "max_tokens": 2.5}, "max_tokens"),
        (TEXT, {"prompt": "x", "seed": 2**64}, "seed"),
        (TEXT, {"prompt": "x", "deadline_s": 0}, "deadline_s"),
        (TEXT, {"prompt": "x", "deadline_s": float("inf")}, "deadline_s"),
        (TEXT, {"prompt": "x", "logit_bias": {"the": 1}}, "logit_bias"),
        (TEXT, {"prompt": "x", "logit_bias": {"99999": 1}}, "logit_bias"),
        (TEXT, {"prompt": "x", "stop_token_ids": [0] * 2000}, "stop_token_ids"),
        (TEXT, {"prompt": ["x"] * 1025}, "prompt"),
        (TEXT, {"prompt": ["x"] * 1000, "n": 100}, "n"),
        (TEXT, {"prompt": "x" * 300}, "prompt"),
        (TEXT, {"prompt": [10**30]}, "prompt"),
        (TEXT, {"prompt": [10**30], "echo": True}, "prompt"),
        (TEXT, {"prompt": [-1], "echo": True}, "prompt"),
        (TEXT, {"prompt": "x", "top_k": 10**30}, "top_k"),
        (TEXT, {"prompt": "x", "min_tokens": 2**31}, "min_tokens"),
        (TEXT, {"prompt": "x", "no_repeat_ngram_size": 2**31}, "no_repeat_ngram_size"),
        (TEXT, {"prompt": "x", "stream_options": {"include_usage": True}}, "stream_options"),
        (CHAT, {"messages": HELLO * 100}, "messages"),
        (CHAT, {"messages": [{"role": "robot", "content": "x"}]}, "messages[0].role"),
        (CHAT, {"messages": [*HELLO, {"role": "user"}]}, "messages[1].content"),
        (
            CHAT,
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": "x"}]}]},
            "messages[0].content[0].image_url",
        ),
        (CHAT, {"messages": HELLO, "chat_template_kwargs": {"messages": []}},
         "chat_template_kwargs.messages"),
        (CHAT, {"messages": HELLO, "chat_template_kwargs": {"self": 1}},
         "chat_template_kwargs.self"),
        (CHAT, {"messages": HELLO, "tools": [{}]}, "tools[0]"),
        (CHAT, {"messages": HELLO, "tools": [TOOL]}, "tools"),
        (CHAT, {"messages": HELLO, "tools": [TOOL] * 513}, "tools"),
        (CHAT, {"messages": HELLO, "tool_choice": "required"}, "tool_choice"),
        (CHAT, {"messages": HELLO, "tool_choice": "always"}, "tool_choice"),
        (CHAT, {"messages": HELLO, "tool_choice": {"type": "function", "function": {"name": 1}}},
         "tool_choice.function.name"),
        (CHAT, {"messages": HELLO, "reasoning_effort": "high"}, "reasoning_effort"),
        (CHAT, {"messages": HELLO, "reasoning_effort": "much"}, "reasoning_effort"),
        (CHAT, {"messages": [{"role": "tool", "content": "x"}]}, "messages[0]"),
        (CHAT, {"messages": [{"role": "user", "content": "x", "tool_call_id": "1"}]},
         "messages[0]"),
        (CHAT, {"messages": [{"role": "user", "content": "x", "tool_calls": [CALL]}]},
         "messages[0]"),
        (CHAT, {"messages": [{"role": "assistant", "tool_calls": [{**CALL, "type": "x"}]}]},
         "messages[0].tool_calls[0]"),
    ],
)  # fmt: skip
def test_a_parameter_at_fault_is_named(client, path, body, param):
    error = error_of(client.post(path, content=json.dumps(body), headers=JSON), 400)

    assert error["param"] == param
    assert error["type"] == "invalid_request_error"


def test_a_long_prompt_says_how_long_it_is_and_what_fits(client):
    error = error_of(client.post(TEXT, json={"prompt": "x" * 300}), 400)

    assert error["code"] == "context_length_exceeded"
    assert error["message"].startswith("this model's maximum context length is 256 tokens")
    assert "300 tokens" in error["message"]


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        (TEXT, {"prompt": "x" * 100_000}, "prompt"),
        (TEXT, {"prompt": ["x", "x" * 100_000]}, "prompt"),
        (CHAT, {"messages": [{"role": "user", "content": "x" * 100}] * 1000}, "messages"),
        (CHAT, {"messages": [{"role": "assistant", "content": "x" * 100_000}]}, "messages"),
    ],
    ids=["text", "second text", "messages", "answers"],
)
def test_of_a_far_too_long_prompt_only_the_beginning_is_read(
    client, monkeypatch, path, body, param
):
    encoded, lens = Tokenizer.encode, []

    def encode(self, text, **options):
        lens.append(len(text))
        return encoded(self, text, **options)

    monkeypatch.setattr(Tokenizer, "encode", encode)

    error = error_of(client.post(path, json=body), 400)

    assert (error["code"], error["param"]) == ("context_length_exceeded", param)
    assert "this model's maximum context length is 256 tokens" in error["message"]
    assert "more than 4096 tokens" in error["message"]
    assert max(lens) == 4096  # 16 characters per token of a context of 256


def test_a_million_wrong_items_are_refused_at_the_first(client):
    ids = [1] * 1_000_000 + ["x"]

    error = error_of(client.post(TEXT, json={"prompt": ids}), 400)

    assert error["param"].startswith("prompt")


def test_an_error_does_not_send_back_a_megabyte(client):
    for body in ({"prompt": "x", "model": "m" * 10**6}, {"prompt": "x", "p" * 10**6: 1},
                 {"prompt": "x", "stop": ["s" * 10**5] * 17}):  # fmt: skip
        response = client.post(TEXT, json=body)

        assert response.status_code in (400, 404)
        assert len(response.content) < 2000


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/v1/nothing", 404),
        ("GET", TEXT, 405),
        ("DELETE", "/v1/models", 405),
        ("GET", "//v1/models", 404),
        ("GET", "/V1/models", 404),
        ("GET", "/page/nothing.js", 404),
        ("GET", "/page/..%2fapp.py", 404),
        ("GET", "/health/live/", 404),
        ("GET", "/v1/models/gpt-9", 404),
    ],
)
def test_a_wrong_address_has_the_same_error_body(client, method, path, status):
    error = error_of(client.request(method, path, follow_redirects=False), status)

    assert error["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    ("method", "path", "said"),
    [
        (
            "POST",
            "/chat/completions",
            "; did you mean '/v1/chat/completions'?",
        ),  # no /v1 in base_url
        ("POST", "/v1/chat/completion", "; did you mean '/v1/chat/completions'?"),
        ("GET", "/v1", ": it is the base URL for clients; GET /v1/models lists the model"),
        ("GET", TEXT, "; it takes POST"),
        ("OPTIONS", "/v1/responses/resp_1", "; it takes DELETE, GET"),
        ("GET", "/v1/responses/input_tokens", "; it takes POST"),
        ("OPTIONS", "/v1/responses/input_tokens", "; it takes POST"),
        ("GET", "/favicon.svg.gz.zip", ""),  # nothing is near
        ("POST", "/v1/images/generations", ""),  # nor here; /pause_generation was
        ("POST", "/v1/tokenize", "; did you mean '/tokenize'?"),
        ("GET", "/health/live/", "; did you mean '/health/live'?"),
    ],
)
def test_a_wrong_address_is_answered_with_the_one_that_was_meant(client, method, path, said):
    answer = client.request(method, path)
    error = error_of(answer, 405 if "takes" in said else 404)

    assert error["message"] == f"there is no {method} {path}{said}"
    assert ("takes" in said) == ("Allow" in answer.headers)
    assert said.endswith(answer.headers.get("Allow", ""))


def test_a_path_that_a_route_names_in_full_takes_no_method_of_another_route(serving):
    own = {}
    for route in [route for router in ROUTERS for route in router.routes]:
        if "{" not in route.path:
            own.setdefault(route.path, set()).update(route.methods)
    client = serving(admin_hashes=(hash_of("root"),))
    methods = {"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"}
    headers = {"Authorization": "Bearer root"}

    answers = [
        (client.request(method, path, headers=headers), taken)
        for path, taken in own.items()
        for method in methods - taken
    ]

    assert len(answers) > 200
    for answer, taken in answers:
        assert answer.status_code == 405, answer.request
        assert answer.headers["Allow"] == ", ".join(sorted(taken)), answer.request


def test_an_empty_body_is_called_empty(client):
    error = error_of(client.post(TEXT, headers={"Content-Type": "application/json"}), 400)

    assert error["message"] == "the body is not JSON: it is empty"


@pytest.mark.parametrize("path", ["/", "/health", "/health/live", "/health/ready"])
def test_load_balancers_may_ask_by_head(client, path):
    assert client.head(path).status_code == 200


def test_what_a_control_token_looks_like_in_a_message_is_text(client):
    def prompt_len(content):
        body = {"messages": [{"role": "user", "content": content}], "max_tokens": 1}
        return client.post(CHAT, json=body).json()["usage"]["prompt_tokens"]

    # every character is a token of this model; as control tokens the last two would count as two
    assert prompt_len("<|end|><|turn|>") == prompt_len("") + len("<|end|><|turn|>")


def test_an_answer_can_be_sent_back_as_it_came(client):
    first = client.post(CHAT, json={"messages": HELLO, "max_tokens": 3}).json()
    said = first["choices"][0]["message"]

    more = client.post(CHAT, json={"messages": [*HELLO, said, *HELLO], "max_tokens": 3})

    assert more.status_code == 200, more.text


def test_web_pages_of_others_may_call_only_where_allowed(serving):
    asks = {"Origin": "https://app.test", "Access-Control-Request-Method": "POST"}

    closed = serving().options(TEXT, headers=asks)
    opened = serving(allow_origins=("https://app.test",)).options(TEXT, headers=asks)

    assert "access-control-allow-origin" not in closed.headers
    assert opened.headers["access-control-allow-origin"] == "https://app.test"


def test_openais_client_in_an_allowed_page_may_send_the_headers_it_always_sends(serving):
    asks = {
        "Origin": "https://app.test",
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "authorization,content-type,x-stainless-lang",
    }

    answer = serving(allow_origins=("https://app.test",)).options(CHAT, headers=asks)

    assert answer.status_code == 200
    assert "x-stainless-lang" in answer.headers["access-control-allow-headers"]


def test_fields_of_messages_that_hold_nothing_are_as_good_as_absent(client):
    nothing = {"name": None, "tool_calls": None, "reasoning_content": None, "weight": None}
    said = {"role": "assistant", "content": None} | nothing

    answer = client.post(CHAT, json={"messages": [HELLO[0] | nothing, said, *HELLO]})

    assert answer.status_code == 200, answer.text
    same = client.post(CHAT, json={"messages": [*HELLO, said | {"content": ""}, *HELLO]})
    count = [each.json()["usage"]["prompt_tokens"] for each in (answer, same)]
    assert count[0] == count[1]


@pytest.mark.parametrize("role", ["user", "system", "developer"])
def test_only_answers_may_have_no_content(client, role):
    body = {"messages": [{"role": role, "content": None}]}

    error = error_of(client.post(CHAT, json=body), 400)

    assert error["param"] == "messages[0].content"
    assert "is missing" in error["message"]


@pytest.mark.parametrize("stream", [True, False])
def test_every_choice_that_echoes_its_prompt_has_the_prompts_logprobs(client, stream):
    body = {"prompt": ["abc", "xy"], "echo": True, "logprobs": 1, "n": 2, "max_tokens": 2}

    answer = client.post(TEXT, json=body | {"stream": stream, "ignore_eos": True})

    bodies = [answer.text] if not stream else re.findall("data: ({.*})", answer.text)
    parts = [choice for text in bodies for choice in json.loads(text)["choices"]]
    for index, prompt in enumerate(("abc", "abc", "xy", "xy")):
        mine = [part["logprobs"] for part in parts if part["index"] == index]
        tokens = [token for part in mine for token in part["tokens"]]
        numbers = [number for part in mine for number in part["token_logprobs"]]
        assert tokens[: len(prompt)] == list(prompt)
        assert len(numbers) == len(prompt) + 2
        assert numbers.count(None) == 1


@pytest.mark.parametrize("num_top", [0, 2])
@pytest.mark.parametrize("echo", [False, True])
@pytest.mark.parametrize("stream", [False, True])
def test_log_probabilities_of_a_completion_have_the_chosen_token_and_its_place(
    client, stream, echo, num_top
):
    """Of a random model whose tokens are bytes, most of them parts of characters."""
    body = {"prompt": "aé\u20ac", "echo": echo, "logprobs": num_top, "max_tokens": 200, "seed": 5,
            "temperature": 2, "ignore_eos": True, "stream": stream}  # fmt: skip

    answer = client.post(TEXT, json=body)

    bodies = [answer.text] if not stream else re.findall("data: ({.*})", answer.text)
    parts = [choice for each in bodies for choice in json.loads(each)["choices"]]
    text = "".join(part["text"] for part in parts)
    columns = [part["logprobs"] for part in parts]
    tokens, offsets, numbers, tops = (
        [item for column in columns for item in column[name]]
        for name in ("tokens", "text_offset", "token_logprobs", "top_logprobs")
    )
    assert len(offsets) == 200 + len(body["prompt"].encode()) * echo
    assert offsets == sorted(offsets)
    letters = 0
    for token, at, number, top in zip(tokens, offsets, numbers, tops, strict=True):
        if token.startswith("bytes:"):
            assert at < len(text)
            assert not text[at].isascii()
        elif not token.startswith("<|"):
            letters += 1
            assert text[at] == token
        assert top is None if number is None else top[token] == number
        assert top is None or len(top) in (num_top, num_top + 1)
    assert 0 < letters < len(tokens)


def test_of_many_prompts_all_are_answered_or_none(client, engine):
    before = engine.stats().generated_tokens
    asked = {"prompt": [[1]] * 150 + [[10**6]], "max_tokens": 200, "ignore_eos": True}

    error = error_of(client.post(TEXT, json=asked), 400)

    engine.sync(timeout=120)
    assert error["param"] == "prompt"
    assert engine.stats().generated_tokens - before < 150 * 200


@pytest.mark.parametrize("stream", [True, False])
def test_a_prompt_is_scored_without_an_answer(client, stream):
    body = {"prompt": ["abc", "xy"], "echo": True, "logprobs": 1, "max_tokens": 0, "n": 2}
    if stream:
        body |= {"stream": True, "stream_options": {"include_usage": True}}
    asked = {"prompt": "abc", "echo": True, "logprobs": 1, "max_tokens": 3}
    with_answer = client.post(TEXT, json=asked).json()["choices"][0]["logprobs"]

    answer = client.post(TEXT, json=body)

    bodies = [answer.text] if not stream else re.findall("data: ({.*})", answer.text)
    parts = [choice for text in bodies for choice in json.loads(text)["choices"]]
    parts.sort(key=lambda part: part["index"])
    assert [part["text"] for part in parts] == ["abc", "abc", "xy", "xy"]
    assert {part["finish_reason"] for part in parts} == {"length"}
    assert parts[1]["logprobs"]["tokens"] == ["a", "b", "c"]
    scores, expected = parts[1]["logprobs"]["token_logprobs"], with_answer["token_logprobs"]
    assert scores == [None, *map(pytest.approx, expected[1:3])]
    assert json.loads(bodies[-1])["usage"]["completion_tokens"] == 0


@pytest.mark.parametrize("stream", [True, False])
def test_choices_of_a_prompt_that_nobody_sent_before_report_nothing_cached(client, stream):
    prompt = f"{stream}{' new' * 20}"
    body = {"prompt": prompt, "n": 3, "max_tokens": 2, "ignore_eos": True, "stream": stream}
    if stream:
        body["stream_options"] = {"include_usage": True}

    answer = client.post(TEXT, json=body).text

    last = json.loads(answer if not stream else re.findall("data: ({.*})", answer)[-1])
    assert last["usage"]["prompt_tokens_details"] == {"cached_tokens": 0}
    assert last["usage"]["total_tokens"] == len(prompt) + 6


def test_a_server_without_a_key_answers_to_names_of_this_machine_alone(engine):
    app = create_app(engine, Settings(), local_only=True)
    here, there = (
        TestClient(app, base_url=f"http://{host}") for host in ("localhost", "evil.test")
    )

    refused = there.get("/v1/models")

    assert error_of(refused, 403)["code"] == "host_not_allowed"
    assert refused.headers["x-request-id"].startswith("req-")
    assert 'responses_total{status="403"} 1.0' in here.get("/metrics").text
    assert here.get("/v1/models").status_code == 200


@pytest.mark.parametrize(
    ("path", "body"), [(TEXT, {"prompt": "x"}), (CHAT, {"messages": HELLO, "logprobs": True})]
)
def test_long_lists_of_logprobs_are_made_off_the_event_loop(client, monkeypatch, path, body):
    made_in, loop_in = set(), set()
    shown, taken = Tokenizer.token_bytes, ResultQueue.get_nowait

    def token_bytes(self, token_id, **options):
        made_in.add(get_ident())
        return shown(self, token_id, **options)

    def get_nowait(self):
        loop_in.add(get_ident())
        return taken(self)

    monkeypatch.setattr(Tokenizer, "token_bytes", token_bytes)
    monkeypatch.setattr(ResultQueue, "get_nowait", get_nowait)

    likeliest = {"top_logprobs": 3} if path == CHAT else {"logprobs": 3}
    answer = client.post(path, json=body | likeliest | {"max_tokens": 2})

    assert answer.json()["choices"][0]["logprobs"]
    assert loop_in
    assert made_in
    assert not made_in & loop_in


def test_the_page_may_load_only_what_is_its_own(client):
    page = client.get("/")

    assert page.headers["content-security-policy"].startswith("default-src 'self'")
    assert page.headers["x-content-type-options"] == "nosniff"
    for name in ("app.js", "style.css", "icon.svg"):
        assert f"/page/{name}" in page.text
        assert client.get(f"/page/{name}").status_code == 200


def test_every_reference_of_the_description_leads_somewhere(client):
    text = client.get("/openapi.json").text
    schemas = json.loads(text)["components"]["schemas"]

    found = {part.split('"')[0] for part in text.split("#/components/schemas/")[1:]}

    assert {"ChatRequest", "CompletionRequest", "ChatResponse", "Error"} <= found <= set(schemas)


def test_the_description_names_every_status_and_content_type_that_is_answered(client):
    paths = client.get("/openapi.json").json()["paths"]
    chat, live = paths[CHAT]["post"], paths["/health/live"]["get"]

    assert {"200", "400", "401", "404", "408", "413", "415", "429", "500", "503"} <= set(
        chat["responses"]
    )
    assert set(chat["responses"]["200"]["content"]) == {"application/json", "text/event-stream"}
    assert set(live["responses"]["503"]["content"]) == {"application/json"}
    assert set(paths["/metrics"]["get"]["responses"]["200"]["content"]) == {"text/plain"}
    assert not [
        operation
        for operations in paths.values()
        for operation in operations.values()
        if "422" in operation["responses"]  # no route answers it
    ]


@pytest.mark.parametrize(
    ("path", "kind", "needed"),
    [
        (CHAT, "ChatRequest", {"messages": [{"role": "user", "content": "x"}], "max_tokens": 1}),
        (TEXT, "CompletionRequest", {"prompt": "x", "max_tokens": 1}),
    ],
)
def test_whatever_need_not_be_given_may_be_null_and_the_description_says_so(
    client, path, kind, needed
):
    schema = client.get("/openapi.json").json()["components"]["schemas"][kind]
    optional = schema["properties"].keys() - set(schema["required"])

    assert optional >= {"stream", "temperature", "return_token_ids"}
    for name in optional:
        described = schema["properties"][name]
        assert {"type": "null"} in described.get("anyOf", ()) or None in described["enum"]
    assert client.post(path, json=dict.fromkeys(optional) | needed).status_code == 200


def test_docs_say_where_the_documentation_is(client):
    answer = client.get("/docs")

    assert answer.status_code == 200
    assert "/openapi.json" in answer.text


def test_metrics_count_requests_tokens_and_statuses_exactly(client, at_rest):
    before = at_rest()
    client.post(TEXT, json={"prompt": "abc", "n": 2, "max_tokens": 5, "ignore_eos": True})
    client.post(TEXT, json={})
    at_rest()

    text = client.get("/metrics").text

    lines = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    assert float(lines['spaninfer_http_responses_total{status="200"}']) == 1
    assert float(lines['spaninfer_http_responses_total{status="400"}']) == 1
    assert float(lines["spaninfer_output_tokens_sum"]) == 10
    assert float(lines["spaninfer_request_seconds_count"]) == 2
    generated = float(lines["spaninfer_generated_tokens_total"])
    assert generated - before.generated_tokens == 10
    assert float(lines['spaninfer_spans{group="0",state="in_use"}']) == 0


def test_metrics_of_offloading_count_what_each_tier_gave(folder, tmp_path):
    asked = {"prompt": "abc" * 20, "max_tokens": 2, "ignore_eos": True}
    options = {"backend": "reference", "memory": 1 << 20, "span_len": 4, "kv_disk": tmp_path}
    with Engine(folder, **options) as engine:
        TestClient(create_app(engine, Settings())).post(TEXT, json=asked)

    with Engine(folder, **options) as engine:
        client = TestClient(create_app(engine, Settings()))
        cached = client.post(TEXT, json=asked).json()["usage"]["prompt_tokens_details"]
        text = client.get("/metrics").text

    lines = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    found = float(lines['spaninfer_offload_hit_tokens_total{tier="disk"}'])
    assert found == cached["cached_tokens"] > 0
    assert float(lines['spaninfer_offload_spans_total{event="read"}']) == found / 4
    assert float(lines["spaninfer_offload_disk_bytes"]) > 0
    assert float(lines['spaninfer_offload_spans_total{event="expired"}']) == 0


def test_a_closed_engine_answers_503_and_is_not_ready(folder):
    engine = Engine(folder, backend="reference", memory=1 << 20)
    client = TestClient(create_app(engine, Settings()))
    engine.close()

    refused = client.post(TEXT, json={"prompt": "x"})

    assert error_of(refused, 503)["code"] == "unavailable"
    assert refused.headers["retry-after"] == "1"
    assert client.get("/health/ready").status_code == 503
    assert client.get("/health").status_code == 503
    assert client.get("/health/live").status_code == 200


def test_the_description_links_a_response_with_what_is_done_with_it_when_it_is_kept(client):
    paths = client.get("/openapi.json").json()["paths"]
    kept = paths["/v1/responses/{response_id}"]

    links = paths["/v1/responses"]["post"]["responses"]["200"]["links"]

    assert set(links) == {"get", "delete"}
    for method, link in links.items():
        assert link["operationId"] == kept[method]["operationId"]
        assert link["parameters"] == {kept[method]["parameters"][0]["name"]: "$response.body#/id"}
