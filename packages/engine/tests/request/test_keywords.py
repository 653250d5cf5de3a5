"""Keyword arguments as people type them: sampling parameters, and misspelt names."""

import asyncio
from dataclasses import replace

import pytest
from assembled import answer, engine
from spaninfer_engine.aio import AsyncEngine
from spaninfer_engine.config import EngineConfig
from spaninfer_engine.engine import Engine
from spaninfer_engine.errors import InvalidPrompt, InvalidSampling, RequestError
from spaninfer_engine.output.handle import complete
from spaninfer_engine.request.keywords import check_keywords
from spaninfer_engine.request.request import SamplingParams

SEEDED = SamplingParams(max_tokens=9, seed=3)


def test_sampling_may_be_keyword_arguments():
    with engine() as running:
        spelt = running.generate("abc", SEEDED)

        assert running.generate("abc", max_tokens=9, seed=3).token_ids == spelt.token_ids
        (started,) = complete(running.start_request("abc", max_tokens=9, seed=3)[0])
    assert started.token_ids == spelt.token_ids


def test_keyword_arguments_are_set_on_top_of_what_is_given_and_of_the_model_s_defaults():
    with engine() as running:
        shorter = running.generate(["abc", "d"], [SEEDED, SEEDED], max_tokens=2, ignore_eos=True)
        choices = running.generate(["abc"], SEEDED, n=3)
        defaults = running.start_request("abc", max_tokens=2)[0].request.sampling

        assert defaults.temperature == running.default_sampling.temperature
    assert [len(item.token_ids) for item in shorter] == [2, 2]
    assert {item.seed for item in shorter} == {3}
    assert [item.index for item in choices] == [0, 1, 2]


@pytest.mark.parametrize("call", ["generate", "start_request"])
def test_a_keyword_that_there_is_not_is_refused_with_the_nearest(call):
    with (
        engine() as running,
        pytest.raises(TypeError, match=rf"{call}\(\) .* 'max_token'; did you mean 'max_tokens'\?"),
    ):
        getattr(running, call)("abc", max_token=5)


def test_a_field_of_the_engine_s_config_that_there_is_not_is_refused_with_the_nearest():
    with pytest.raises(TypeError, match=r"Engine\(\) .* 'maxlen'; did you mean 'max_len'\?"):
        Engine("demo", maxlen=5)
    with pytest.raises(TypeError, match=r"argument 'colour'$"):
        check_keywords({"colour": 1}, EngineConfig, "Engine")


def test_a_value_out_of_range_is_refused_as_ever():
    with engine() as running, pytest.raises(InvalidSampling, match="temperature is 7"):
        running.generate("abc", temperature=7)
    with engine() as running, pytest.raises(InvalidSampling, match="one for a single prompt"):
        running.generate("abc", [SEEDED], max_tokens=1)


@pytest.mark.parametrize("stop", ["end", ["end"], ("end",)])
def test_stop_is_a_string_or_several(stop):
    assert SamplingParams(stop=stop) == SamplingParams(stop=("end",))
    assert SamplingParams(bad_words=stop).bad_words == ("end",)


@pytest.mark.parametrize("ids", [5, [5], (5,)])
def test_stop_ids_are_a_number_or_several(ids):
    assert SamplingParams(stop_ids=ids).stop_ids == (5,)


def test_lists_are_copied():
    words = ["end"]
    sampling = SamplingParams(stop=words)

    words.append("more")

    assert sampling.stop == ("end",)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("stop", 5),
        ("stop", [5]),
        ("stop", {"a"}),
        ("stop_ids", {5}),
        ("keep_special", "x"),
        ("stop", [""]),
    ],
)
def test_what_is_neither_is_refused_by_name(name, value):
    with pytest.raises(InvalidSampling, match=name):
        SamplingParams(**{name: value})


def test_reprs_say_what_things_are():
    with engine() as running:
        handle, queue = running.start_request("abc", max_tokens=4, ignore_eos=True)
        list(queue)
        answer = running.generate("abc", max_tokens=4, seed=1, ignore_eos=True)

        assert repr(running).startswith("<Engine ")
        assert running.resolved.name in repr(running)
        assert repr(running).endswith(": running>")
        assert repr(handle) == f"<RequestHandle {handle.id}: finished, prompt of 3 tokens, n=1>"
        assert repr(answer) == f"<Completion {answer.text!r}: length, 3 + 4 tokens>"
    assert repr(running).endswith(": closed>")


HELLO = [{"role": "user", "content": "abc"}]


def test_a_conversation_is_answered_as_its_prompt_is():
    with engine() as running:
        prompt = running.encode_chat(HELLO)
        asked = running.chat(HELLO, max_tokens=9, seed=3)
        several = running.chat([HELLO, [*HELLO, *HELLO]], SEEDED, n=2)

        assert asked == replace(running.generate(prompt, SEEDED), usage=asked.usage)
    assert asked.prompt_ids == tuple(prompt)
    assert [item.index for item in several] == [0, 1, 0, 1]
    assert several[0].token_ids == asked.token_ids
    assert len(several[2].prompt_ids) > len(prompt)


@pytest.mark.parametrize("messages", ["Hello!", 5, None, HELLO[0], ["Hello!"], [HELLO, "x"]])
def test_what_is_no_conversation_is_refused_with_one_that_is(messages):
    with engine() as running, pytest.raises(InvalidPrompt, match=r'\[{"role": "user", "content"'):
        running.chat(messages)


def test_tasks_ask_with_keywords_and_conversations_too():
    async def main():
        async with AsyncEngine(engine()) as running:
            text = [output async for output in running.generate("abc", max_tokens=9, seed=3)]
            chat = [output async for output in running.chat(HELLO, max_tokens=9, seed=3)]
            return text, chat, running.engine.encode_chat(HELLO)

    text, chat, prompt = asyncio.run(main())

    for outputs, ids in ((text, [0, 1, 2]), (chat, prompt)):
        assert [token for output in outputs for token in output.token_ids] == answer(ids, 3, 9)


@pytest.mark.parametrize("prompts", ["abc", ["abc"], ["abc", "d"]])
def test_a_dict_in_place_of_sampling_is_refused_with_the_way_out(prompts):
    with (
        engine() as running,
        pytest.raises(InvalidSampling, match=r"sampling is \{'max_tokens': 3\}; .* keyword arg"),
    ):
        running.generate(prompts, {"max_tokens": 3})


def test_a_dict_in_place_of_a_placement_is_refused():
    with (
        engine() as running,
        pytest.raises(RequestError, match=r"placement is \{'priority': 1\}; allowed is a Placem"),
    ):
        running.start_request("abc", SEEDED, {"priority": 1})
