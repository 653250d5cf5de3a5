"""/v1/responses over real sockets, with OpenAI's client."""

import json
from contextlib import contextmanager

import openai
import pytest
from fastapi.testclient import TestClient
from openai.types.responses import ResponseItem
from pydantic import TypeAdapter
from recorded_answers import HERMES_NOW, HERMES_PARIS, OFFERED
from spaninfer_serving import Settings, create_app
from spaninfer_serving.answers.blocks import BlockAnswer

TOOLS = [{"type": "function", **tool["function"]} for tool in OFFERED]
BOTH = f"<think>\nThey ask.\n</think>\n\nOne moment.\n{HERMES_PARIS}\n{HERMES_NOW}"


@pytest.fixture
def responding(scripted):
    """What serves an engine that always says the same, and gives OpenAI's client of a key."""

    @contextmanager
    def serve(text, **settings):
        with scripted(text, **settings) as (host, port):
            base_url = f"http://{host}:{port}/v1"

            def client_of(key="none"):
                return openai.OpenAI(base_url=base_url, api_key=key, max_retries=0)

            yield client_of

    return serve


@pytest.fixture(scope="module")
def refusing(tool_engine):
    """A client of one server for all refusals: starting one takes longer than they do."""
    return TestClient(create_app(tool_engine, Settings()))


def respond(client, asked="What is the weather in Paris?", **options):
    return client.responses.create(model="tiny", input=asked, **options)


def kinds(response):
    return [item.type for item in response.output]


def test_a_text_is_answered_with_a_message_and_counted(responding):
    with responding("It is sunny.") as client_of:
        response = respond(client_of(), instructions="Be short.", metadata={"a": "b"})

    assert response.output_text == "It is sunny."
    assert (response.status, kinds(response)) == ("completed", ["message"])
    assert response.usage.output_tokens == len("It is sunny.") + 1
    assert response.usage.total_tokens == response.usage.input_tokens + 13
    assert (response.instructions, response.metadata) == ("Be short.", {"a": "b"})
    assert response.text.format.type == "text"


@pytest.mark.slow
def test_reasoning_text_and_calls_are_items_of_their_own(responding):
    with responding(BOTH) as client_of:
        response = respond(client_of(), tools=TOOLS)

    reasoning, message, paris, now = response.output
    assert reasoning.content[0].text == "They ask."
    assert message.content[0].text == response.output_text == "One moment."
    assert (paris.name, json.loads(paris.arguments)) == ("get_weather", {"city": "Paris"})
    assert (now.name, json.loads(now.arguments)) == ("now", {})
    assert len({item.id for item in response.output}) == 4
    assert paris.call_id != now.call_id
    assert response.usage.output_tokens_details.reasoning_tokens == len("They ask.")


def test_a_stream_builds_what_a_whole_response_is(responding):
    with responding(BOTH) as client_of:
        client = client_of()
        whole = respond(client, tools=TOOLS)
        events = list(respond(client, tools=TOOLS, stream=True))
        with client.responses.stream(model="tiny", input="x", tools=TOOLS) as stream:
            put_together = stream.until_done().get_final_response()

    def said(response):
        return [item.model_dump(exclude={"id", "call_id"}) for item in response.output]

    final = events[-1].response
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert [event.type for event in events[:2]] == ["response.created", "response.in_progress"]
    assert events[-1].type == "response.completed"
    assert events[0].response.id == final.id
    assert said(final) == said(whole)
    assert kinds(put_together) == kinds(whole)
    deltas = [each for each in events if each.type == "response.function_call_arguments.delta"]
    assert len(deltas) > 4
    for index, item in enumerate(final.output):
        of_item = [e for e in events if getattr(e, "output_index", None) == index]
        assert of_item[0].type == "response.output_item.added"
        assert of_item[-1].item == item
        text = "".join(e.delta for e in of_item if e.type.endswith(".delta"))
        assert text == (item.arguments if item.type == "function_call" else item.content[0].text)


def test_the_tokens_of_a_prompt_are_counted_as_a_response_counts_them(responding):
    with responding("It is sunny.") as client_of:
        client = client_of()
        first = respond(client, tools=TOOLS, instructions="Be short.")
        counted = client.responses.input_tokens.count(
            model="tiny", input="What is the weather in Paris?", tools=TOOLS,
            instructions="Be short.",
        )  # fmt: skip
        going_on = respond(client, "And now?", previous_response_id=first.id)
        counted_on = client.responses.input_tokens.count(
            input="And now?", previous_response_id=first.id
        )
        with pytest.raises(openai.NotFoundError):
            client_of().responses.input_tokens.count(input="x", previous_response_id="resp_no")
        with pytest.raises(openai.BadRequestError) as caught:
            client.responses.retrieve(first.id, stream=True)

    assert counted.object == "response.input_tokens"
    assert counted.input_tokens == first.usage.input_tokens
    assert counted_on.input_tokens == going_on.usage.input_tokens
    assert caught.value.param == "stream"


@pytest.mark.slow
def test_a_conversation_goes_on_from_a_kept_response(responding):
    with responding(BOTH) as client_of:
        client = client_of()
        first = respond(client, tools=TOOLS)
        calls = [item for item in first.output if item.type == "function_call"]
        results = [
            {"type": "function_call_output", "call_id": call.call_id, "output": "sunny"}
            for call in calls
        ]
        going_on = respond(client, results, tools=TOOLS, previous_response_id=first.id)
        sent_back = respond(
            client,
            [{"role": "user", "content": "What is the weather in Paris?"}, *first.output, *results],
            tools=TOOLS,
        )
        last = respond(client, "And now?", tools=TOOLS, previous_response_id=going_on.id)

    assert going_on.previous_response_id == first.id
    assert going_on.usage.input_tokens == sent_back.usage.input_tokens
    assert last.usage.input_tokens > going_on.usage.input_tokens > first.usage.input_tokens


def test_kept_responses_are_read_and_deleted_by_their_key_alone(responding):
    with responding("Yes.", api_keys=("one", "two")) as client_of:
        one, two = client_of("one"), client_of("two")
        kept = respond(one)
        unkept = respond(one, store=False)

        assert one.responses.retrieve(kept.id) == kept
        for client, name in ((two, kept.id), (one, unkept.id), (one, "resp_none")):
            with pytest.raises(openai.NotFoundError):
                client.responses.retrieve(name)
            with pytest.raises(openai.NotFoundError) as caught:
                respond(client, previous_response_id=name)
            assert caught.value.body["param"] == "previous_response_id"
        with pytest.raises(openai.NotFoundError):
            two.responses.delete(kept.id)
        one.responses.delete(kept.id)
        with pytest.raises(openai.NotFoundError):
            one.responses.retrieve(kept.id)


def test_what_a_response_was_made_from_is_listed(responding):
    with responding("Yes.") as client_of:
        client = client_of()
        call = {"type": "function_call", "call_id": "c1", "name": "now", "arguments": "{}"}
        custom = {"type": "custom_tool_call", "call_id": "c2", "name": "run", "input": "1 + 1"}
        given = [
            {"role": "developer", "content": "Be short."},
            {"role": "user", "content": [{"type": "input_text", "text": "What time"},
                                         {"type": "input_text", "text": " is it?"}]},
            {"type": "reasoning", "summary": [],
             "content": [{"type": "reasoning_text", "text": "Hm."}]},
            call, custom,
            {"type": "function_call_output", "call_id": "c1", "output": "noon"},
            {"type": "custom_tool_call_output", "call_id": "c2", "output": "2"},
        ]  # fmt: skip
        first = respond(client, given, instructions="Speak English.")
        second = respond(client, "Sure?", previous_response_id=first.id)
        listing = client.responses.input_items
        listed = listing.list(second.id, order="asc", limit=100).data
        newest = [item.id for item in listing.list(second.id)]
        pages = list(listing.list(second.id, order="asc", limit=2))
        behind = listing.list(second.id, after=newest[0], limit=3)
        before = listing.list(first.id, order="asc").data

    developer, user, reasoning, named, ran, noon, two, answer, sure = listed
    assert (developer.role, developer.content[0].text) == ("developer", "Be short.")
    assert "".join(part.text for part in user.content) == "What time is it?"
    assert reasoning.content[0].text == "Hm."
    assert (named.type, named.name, named.call_id) == ("function_call", "now", "c1")
    assert (ran.type, ran.input, ran.call_id) == ("custom_tool_call", "1 + 1", "c2")
    assert (noon.type, noon.output, noon.call_id) == ("function_call_output", "noon", "c1")
    assert (two.type, two.output) == ("custom_tool_call_output", "2")
    assert (answer.role, answer.content[0].text) == ("assistant", first.output_text)
    assert (sure.role, sure.content[0].text) == ("user", "Sure?")
    assert newest == [item.id for item in reversed(listed)]
    assert [item.id for item in pages] == [item.id for item in listed]
    assert [item.id for item in behind.data] == newest[1:4]
    assert behind.has_more
    assert len(before) == 7
    for item in listed:
        TypeAdapter(ResponseItem).validate_python(item.to_dict(), strict=True)


def test_a_list_of_items_is_of_the_key_alone_and_refuses_by_name(responding):
    with responding("Yes.", api_keys=("one", "two")) as client_of:
        one, two = client_of("one"), client_of("two")
        kept = respond(one)
        for client, name in ((two, kept.id), (one, "resp_none")):
            with pytest.raises(openai.NotFoundError):
                client.responses.input_items.list(name)
            with pytest.raises(openai.NotFoundError):
                client.responses.cancel(name)
        for param, value in (("order", "up"), ("limit", 0), ("limit", 101), ("limit", "x"),
                             ("after", "msg_x"), ("include", ["message.output_text.logprobs"]),
                             ("before", "msg_x")):  # fmt: skip
            with pytest.raises(openai.BadRequestError) as caught:
                one.responses.input_items.list(kept.id, extra_query={param: value})
            assert caught.value.body["param"] == param, caught.value.body
        with pytest.raises(openai.BadRequestError, match="background"):
            one.responses.cancel(kept.id)
        asked = one.responses.retrieve(
            kept.id, include=["reasoning.encrypted_content"], include_obfuscation=False
        )

    assert asked == kept


def test_a_server_that_keeps_nothing_says_so(responding):
    with responding("Yes.", max_stored_responses=0) as client_of:
        response = respond(client_of(), store=True)

        with pytest.raises(openai.NotFoundError):
            client_of().responses.retrieve(response.id)


def test_an_answer_that_a_limit_cuts_is_incomplete(responding):
    with responding("It is sunny.") as client_of:
        whole = respond(client_of(), max_output_tokens=5)
        *_, last = respond(client_of(), max_output_tokens=5, stream=True)

    assert last.type == "response.incomplete"
    for response in (whole, last.response):
        assert response.status == response.output[0].status == "incomplete"
        assert response.incomplete_details.reason == "max_output_tokens"
        assert response.output_text == "It is"


def test_a_call_that_breaks_off_is_text(responding):
    text = HERMES_PARIS.replace('"Paris"', '"Paris", oops')
    with responding(text) as client_of:
        whole = respond(client_of(), tools=TOOLS)
        *_, last = respond(client_of(), tools=TOOLS, stream=True)

    assert kinds(whole) == ["message"]
    assert whole.output_text == last.response.output_text == text
    assert last.response.output[0].status == "incomplete"


def test_an_answer_has_the_form_of_a_schema(tool_engine, listening):
    schema = {"type": "object", "properties": {"level": {"enum": ["low", "high"]}},
              "required": ["level"], "additionalProperties": False}  # fmt: skip
    asked = {"format": {"type": "json_schema", "name": "level", "schema": schema, "strict": True}}
    with listening(tool_engine) as (host, port):
        client = openai.OpenAI(base_url=f"http://{host}:{port}/v1", api_key="-", max_retries=0)
        response = respond(client, text=asked, max_output_tokens=100)
        schema["properties"]["level"] = {"$ref": "#/nowhere"}
        with pytest.raises(openai.BadRequestError) as caught:
            respond(client, text=asked)

    assert json.loads(response.output_text)["level"] in ("low", "high")
    assert caught.value.body["param"] == "text.format.schema"


@pytest.mark.parametrize(
    ("options", "param"),
    [
        ({"truncation": "auto"}, "truncation"),
        ({"background": True}, "background"),
        ({"conversation": "conv_1"}, "conversation"),
        ({"prompt": {"id": "p"}}, "prompt"),
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"include": ["message.output_text.logprobs"]}, "include[0]"),
        ({"tools": [{"type": "web_search"}]}, "tools[0]"),
        ({"text": {"verbosity": "low"}}, "text.verbosity"),
        ({"reasoning": {"summary": "detailed"}}, "reasoning.summary"),
        ({"input": []}, "input"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0]"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]},
         "input[0].content[0].image_url"),
        ({"input": [{"type": "function_call", "call_id": "1", "name": "f", "arguments": "["}]},
         "input[0].arguments"),
        ({"input": "x" * 9000}, "input"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"temperature": -1}, "temperature"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"text": {"format": {"type": "json_schema", "name": "x"}}}, "text.format.schema"),
        ({"text": {"format": {"type": "json_schema", "schema": {}}}}, "text.format.name"),
        ({"messages": []}, "messages"),
    ],
)  # fmt: skip
def test_what_a_response_cannot_do_is_refused_by_name(refusing, options, param):
    answer = refusing.post("/v1/responses", json={"input": "x"} | options)

    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == param, answer.text


def test_what_clients_send_by_habit_passes(responding):
    habits = {
        "truncation": "disabled", "background": False, "include": [], "user": "me", "tools": [],
        "tool_choice": "auto", "parallel_tool_calls": True, "service_tier": "auto",
        "text": {"format": {"type": "text"}, "verbosity": "medium"}, "top_logprobs": 0,
        "reasoning": {"effort": None, "summary": "auto"}, "prompt_cache_key": "k",
    }  # fmt: skip
    with responding("Yes.") as client_of:
        assert respond(client_of(), **habits).output_text == "Yes."


def test_a_failure_in_the_middle_of_a_stream_is_an_error_event(responding, monkeypatch):
    pushed = BlockAnswer.push

    def push(self, output):
        if self.blocks:
            raise RuntimeError("no more")
        return pushed(self, output)

    monkeypatch.setattr(BlockAnswer, "push", push)
    with responding("It is sunny.") as client_of:
        *_, last = respond(client_of(), stream=True)

    assert last.type == "error"
    assert last.message.startswith("the server failed")


@pytest.mark.slow
def test_the_examples_of_responses_are_answered(tool_engine, listening):
    with listening(tool_engine) as (host, port):
        client = openai.OpenAI(base_url=f"http://{host}:{port}/v1", api_key="-", max_retries=0)
        paths = client.get("../openapi.json", cast_to=dict)["paths"]
        described = paths["/v1/responses"]["post"]["requestBody"]["content"]["application/json"]
        for name, example in described["examples"].items():
            answer = client.post("/responses", body=example["value"], cast_to=dict)
            assert answer["status"] in ("completed", "incomplete"), name
