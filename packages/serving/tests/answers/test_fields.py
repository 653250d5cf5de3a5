from spaninfer_engine.request.request import FinishReason, TokenLogprob
from spaninfer_engine.request.request import Usage as EngineUsage
from spaninfer_serving.answers.fields import (
    chat_logprobs,
    completion_logprobs,
    finish_reason,
    usage_of,
)
from spaninfer_serving.wire.chat import ChatLogprobs
from spaninfer_serving.wire.completions import CompletionLogprobs


class Letters:
    """Token 97 is "a", and so on."""

    def token_bytes(self, token_id):
        return bytes([token_id])


def counted(prompt_len, output_len, cached_len):
    times = dict(arrived_s=0.0, scheduled_s=None, first_token_s=None, finished_s=None)
    return EngineUsage(prompt_len=prompt_len, output_len=output_len, cached_len=cached_len, **times)


def test_a_prompt_counts_once_and_what_its_own_choices_share_is_not_what_was_cached():
    ended = {  # in the order in which choices ended
        1: counted(100, 5, 96),
        0: counted(100, 7, 32),
        3: counted(40, 1, 32),
        2: counted(40, 2, 0),
    }

    usage = usage_of([100, 40], ended)

    assert (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens) == (140, 15, 155)
    assert usage.prompt_tokens_details == {"cached_tokens": 32}


def test_finish_reasons_are_openais_words_and_vllms_for_what_an_operator_ended():
    ended = [reason for reason in FinishReason if reason is not FinishReason.ERROR]

    assert [finish_reason(reason) for reason in ended] == ["stop", "length", "abort", "length"]


def test_a_token_that_is_half_a_character_shows_its_bytes():
    wire = chat_logprobs([TokenLogprob(0xC3, -0.5, 1, top=((97, float("-inf")),))], Letters())

    assert wire[0]["bytes"] == [0xC3]
    assert wire[0]["token"] == "\ufffd"
    assert wire[0]["top_logprobs"][0]["logprob"] == -9999.0
    assert ChatLogprobs(content=wire).model_dump() == {"content": wire}


def test_columns_are_those_of_a_text_completion_and_the_chosen_token_is_among_the_top():
    entries = [97, TokenLogprob(98, -1.0, 1, ((98, -1.0),)), TokenLogprob(99, -2.0, 2)]

    wire = completion_logprobs(entries, Letters(), lambda token_id: token_id)

    assert wire["tokens"] == ["a", "b", "c"]
    assert wire["token_logprobs"] == [None, -1.0, -2.0]
    assert wire["top_logprobs"] == [None, {"b": -1.0}, {"c": -2.0}]
    assert wire["text_offset"] == [97, 98, 99]
    assert CompletionLogprobs(**wire).model_dump() == wire


def test_parts_of_characters_are_told_apart_in_openais_form():
    top = ((0xF0, -0.5), (0x9F, -1.0), (0xC3, -1.5), (97, -2.0))

    wire = completion_logprobs([TokenLogprob(0xE2, -7.0, 9, top)], Letters(), lambda _: 0)

    assert wire["tokens"] == [r"bytes:\xe2"]
    assert wire["top_logprobs"] == [
        {r"bytes:\xf0": -0.5, r"bytes:\x9f": -1.0, r"bytes:\xc3": -1.5, "a": -2.0,
         r"bytes:\xe2": -7.0}
    ]  # fmt: skip


class OneText(Letters):
    """Tokens are written alike, or a letter and a part of a character."""

    def token_bytes(self, token_id):
        return b"a\xf0" if token_id == 0 else b"a"


def test_of_tokens_of_one_text_the_likelier_is_shown():
    entry = TokenLogprob(7, -3.0, 3, ((8, -1.0), (9, -2.0), (0, float("-inf"))))

    wire = completion_logprobs([entry], OneText(), lambda _: 0)

    assert wire["top_logprobs"] == [{"a": -1.0, r"bytes:a\xf0": -9999.0}]
