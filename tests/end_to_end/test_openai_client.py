"""The official client against a server process with the bundled model."""

import asyncio
from concurrent.futures import ThreadPoolExecutor

import openai
import pytest

MODEL = "demo"
CHAT = [{"role": "user", "content": "Tell me a fable about a fox."}]


def ask(client, prompt="Once upon a time", **options):
    settings = {"model": MODEL, "prompt": prompt, "max_tokens": 16, "temperature": 0}
    return client.completions.create(**(settings | options))


def test_the_model_is_listed_with_its_context(client):
    [model] = client.models.list().data

    assert model.id == MODEL
    assert model.max_model_len >= 4096
    assert client.models.retrieve(MODEL).id == MODEL


def test_a_chat_answers_and_ends_by_itself(client):
    answer = client.chat.completions.create(model=MODEL, messages=CHAT, temperature=0)

    [choice] = answer.choices
    assert choice.finish_reason == "stop"
    assert len(choice.message.content.split()) > 20
    assert "<|" not in choice.message.content
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens


def test_a_stream_says_the_same_as_a_whole_answer(client):
    settings = {"model": MODEL, "messages": CHAT, "temperature": 0.8, "seed": 5}
    whole = client.chat.completions.create(**settings)

    events = list(
        client.chat.completions.create(
            **settings, stream=True, stream_options={"include_usage": True}
        )
    )

    text = "".join(event.choices[0].delta.content or "" for event in events if event.choices)
    assert text == whole.choices[0].message.content
    assert events[0].choices[0].delta.role == "assistant"
    assert events[-2].choices[0].finish_reason == "stop"
    assert events[-1].choices == []
    assert events[-1].usage.completion_tokens == whole.usage.completion_tokens


def test_32_requests_at_once_get_what_each_gets_alone(client):
    requests = [
        {"prompt": f"Once there was a number {n}" * (1 + n % 9), "max_tokens": 5 + 7 * n % 50,
         "temperature": 0.9, "seed": n, "extra_body": {"ignore_eos": True}}
        for n in range(32)
    ]  # fmt: skip
    alone = [ask(client, **request) for request in requests]

    with ThreadPoolExecutor(32) as threads:
        together = list(threads.map(lambda request: ask(client, **request), requests))

    assert [a.choices[0].text for a in together] == [a.choices[0].text for a in alone]
    assert [a.usage.completion_tokens for a in together] == [r["max_tokens"] for r in requests]


def test_32_tasks_at_once_ask_for_all_kinds_of_answers(server):
    async def task(client, number):
        settings = {"model": MODEL, "max_tokens": 8 + number, "seed": number}
        match number % 4:
            case 0:
                answer = await client.chat.completions.create(messages=CHAT, **settings)
                return answer.usage.completion_tokens
            case 1:
                stream = await client.chat.completions.create(
                    messages=CHAT, stream=True, stream_options={"include_usage": True}, **settings
                )
                return [event async for event in stream][-1].usage.completion_tokens
            case 2:
                answer = await client.completions.create(prompt=["A", "B"], n=2, **settings)
                return len(answer.choices) * settings["max_tokens"]
            case _:
                stream = await client.completions.create(prompt="A", stream=True, **settings)
                async for _ in stream:
                    break
                await stream.close()
                return 1

    async def tasks():
        async with server.async_client() as client:
            return await asyncio.gather(*(task(client, number) for number in range(32)))

    counts = asyncio.run(tasks())

    assert len(counts) == 32
    assert all(counts)


def test_an_answer_has_the_id_of_its_request(client):
    answer = ask(client, extra_headers={"X-Request-Id": "mine-1"})

    assert answer._request_id == "mine-1"


def test_an_answer_is_sent_back_as_the_client_gave_it(client):
    said = client.chat.completions.create(model=MODEL, messages=CHAT, max_tokens=5)

    more = client.chat.completions.create(
        model=MODEL,
        messages=[*CHAT, said.choices[0].message, {"role": "user", "content": "Go on."}],
        max_tokens=5,
    )

    assert more.usage.prompt_tokens > said.usage.prompt_tokens


def test_choices_of_one_request_differ_and_come_back_with_the_seed(client):
    first, again = (ask(client, n=3, temperature=1, seed=1) for _ in range(2))

    texts = [choice.text for choice in first.choices]
    assert len(set(texts)) == 3
    assert [choice.text for choice in again.choices] == texts


def test_a_stop_string_ends_the_text_in_front_of_it(client):
    whole = ask(client, max_tokens=60).choices[0].text
    stop = whole.split()[5]

    answer = ask(client, max_tokens=60, stop=[stop]).choices[0]

    assert answer.finish_reason == "stop"
    assert answer.text == whole[: whole.index(stop)]
    assert answer.stop_reason == stop


def test_logprobs_cover_every_token_and_the_top_one_is_the_greedy_one(client):
    choice = client.chat.completions.create(
        model=MODEL, messages=CHAT, temperature=0, max_tokens=8, logprobs=True, top_logprobs=3
    ).choices[0]

    assert len(choice.logprobs.content) == 8
    for entry in choice.logprobs.content:
        assert entry.top_logprobs[0].token == entry.token
        assert entry.logprob <= 0
        assert [top.logprob for top in entry.top_logprobs] == sorted(
            (top.logprob for top in entry.top_logprobs), reverse=True
        )


def test_an_echoed_prompt_has_logprobs_from_its_second_token_on(client):
    choice = ask(client, echo=True, logprobs=1, max_tokens=2).choices[0]

    assert choice.text.startswith("Once upon a time")
    assert choice.logprobs.token_logprobs[0] is None
    assert all(logprob <= 0 for logprob in choice.logprobs.token_logprobs[1:])
    assert "".join(choice.logprobs.tokens) == choice.text


def test_token_ids_are_a_prompt_and_come_back_when_asked_for(client):
    text = ask(client, extra_body={"return_token_ids": True}).choices[0]

    ids = ask(client, prompt=text.prompt_token_ids).choices[0]

    assert ids.text == text.text
    assert len(text.token_ids) == 16


def test_many_prompts_are_answered_in_order(client):
    prompts = ["The cat", "A ship", "In the forest"]

    answers = ask(client, prompt=prompts, n=2)

    assert [choice.index for choice in answers.choices] == [0, 1, 2, 3, 4, 5]
    assert answers.choices[2].text == ask(client, prompt="A ship").choices[0].text


def test_an_equal_beginning_is_not_computed_twice(client):
    prompt = "Once upon a time there was a prompt that nobody had sent before. " * 20
    first = ask(client, prompt=prompt, max_tokens=1)

    second = ask(client, prompt=prompt + "And then", max_tokens=1)

    assert first.usage.prompt_tokens_details.cached_tokens == 0
    assert second.usage.prompt_tokens_details.cached_tokens > 0.8 * first.usage.prompt_tokens


@pytest.mark.parametrize(
    ("options", "kind", "param", "words"),
    [
        ({"model": "gpt-9"}, openai.NotFoundError, "model", "gpt-9"),
        ({"prompt": "word " * 9000}, openai.BadRequestError, "prompt", "tokens"),
        ({"prompt": [5, 10**6]}, openai.BadRequestError, "prompt", "1000000"),
        ({"prompt": ""}, openai.BadRequestError, "prompt", "empty"),
        ({"prompt": []}, openai.BadRequestError, "prompt", "empty"),
        ({"top_p": 1.5}, openai.BadRequestError, "top_p", "1.5"),
        ({"temperature": -1}, openai.BadRequestError, "temperature", "-1"),
        ({"max_tokens": 0}, openai.BadRequestError, "max_tokens", "0"),
        ({"n": 1000}, openai.BadRequestError, "n", "128"),
        ({"stop": [""]}, openai.BadRequestError, "stop", "1 to 256 characters"),
        ({"extra_body": {"top_k": -4}}, openai.BadRequestError, "top_k", "-4"),
        ({"extra_body": {"mirostat": 2}}, openai.BadRequestError, "mirostat", "mirostat"),
        ({"suffix": "the end"}, openai.BadRequestError, "suffix", "vocabulary has none"),
    ],
)
def test_a_request_at_fault_is_told_what_and_why(client, options, kind, param, words):
    with pytest.raises(kind) as caught:
        ask(client, **options)

    assert caught.value.body["param"] == param
    assert words in caught.value.body["message"]
    assert ask(client).choices[0].text
