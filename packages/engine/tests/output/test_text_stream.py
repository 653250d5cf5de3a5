"""Text of single choices; whole requests are in test_engine.py."""

from dataclasses import replace

import pytest
from assembled import Letters
from driving import Bench, request
from spaninfer_engine.output.text_stream import TextStream
from spaninfer_engine.request.request import FinishReason, SamplingParams
from spaninfer_engine.schedule.sequence import Ended
from spaninfer_engine.text.special import SpecialToken
from spaninfer_engine.text.tokenizer import Tokenizer


class Bytes(Letters):
    """A vocabulary of one byte per token."""

    vocab_size = 256

    def token_bytes(self, token_id):
        return bytes([token_id])


def stream(**sampling):
    (seq,) = Bench(num_spans=(50,)).add(request(1, [1], sampling=SamplingParams(**sampling)))
    return seq, TextStream(seq, Tokenizer(Bytes(), []))


def ended(seq, token=None, **options):
    item = None if token is None else (seq, token, None)
    return Ended(seq, FinishReason.LENGTH, seq.usage(9.0), item, **options)


def test_a_character_of_several_tokens_appears_with_its_last():
    _, text = stream()

    outputs = [text.push([(token, None)], 1.0) for token in "aé€".encode()]

    assert [output.text for output in outputs] == ["a", "", "é", "", "", "€"]
    assert [output.token_ids for output in outputs] == [(t,) for t in "aé€".encode()]


@pytest.mark.parametrize("sampling", [{}, {"stop": ("xy",)}])
def test_tokens_that_come_together_say_what_each_of_them_brought(sampling):
    _, together = stream(**sampling)
    _, alone = stream(**sampling)
    tokens = [(token, None) for token in "aé€xzb".encode()]

    output = together.push(tokens, 1.0)

    assert output.texts == tuple(alone.push([token], 1.0).text for token in tokens)
    assert output.text == "".join(output.texts) == "aé€xzb"
    assert together.push([(0x61, None)], 2.0).texts == ()


@pytest.mark.parametrize(
    ("sampling", "text"),
    [
        ({}, "ab"),
        ({"keep_special": (200,)}, "a<call>b"),
        ({"skip_special": False, "keep_special": (200,)}, "a<call>b<pad>"),
    ],
)
def test_special_tokens_that_are_kept_are_in_the_text(sampling, text):
    (seq,) = Bench(num_spans=(50,)).add(request(1, [1], sampling=SamplingParams(**sampling)))
    special = [SpecialToken(200, "<call>"), SpecialToken(201, "<pad>")]
    stream = TextStream(seq, Tokenizer(Bytes(), special))

    outputs = [stream.push([(token, None)], 1.0) for token in (97, 200, 98, 201)]

    assert "".join(output.text for output in outputs) == text


def test_half_a_character_at_the_end_is_shown_as_one_that_is_missing():
    seq, text = stream()
    text.push([(ord("a"), None)], 1.0)

    last = text.end(ended(seq, "é".encode()[0]))

    assert last.text == "\ufffd"
    assert last.finish_reason is FinishReason.LENGTH


def test_a_stop_string_over_several_tokens_is_cut_out_and_what_comes_later_is_not_counted():
    _, text = stream(stop=("bc",))

    outputs = [text.push([(token, None)], 5.0) for token in b"abc"]

    assert "".join(output.text for output in outputs) == "a"
    assert (outputs[-1].finish_reason, outputs[-1].matched) == (FinishReason.STOP, "bc")
    assert outputs[-1].usage.output_len == 3
    assert outputs[-1].usage.finished_s == 5.0


def test_tokens_of_one_push_are_one_output_up_to_the_stop_string():
    _, text = stream(stop=("bc",))

    first = text.push([(token, None) for token in b"aab"], 4.0)
    last = text.push([(token, None) for token in b"cde"], 5.0)

    assert (first.text, first.token_ids) == ("aa", tuple(b"aab"))
    assert (last.text, last.token_ids, last.matched) == ("", tuple(b"c"), "bc")
    assert last.usage.output_len == 4


def test_a_stop_string_stays_in_the_text_where_that_is_asked_for():
    _, text = stream(stop=("bc",), include_stop=True)

    assert "".join(text.push([(token, None)], 5.0).text for token in b"abc") == "abc"


def test_a_stop_string_counts_from_the_token_on_that_makes_min_tokens():
    _, text = stream(stop=("b", "c"), min_tokens=3)

    outputs = [text.push([(token, None)], 5.0) for token in b"abc"]

    assert "".join(output.text for output in outputs) == "ab"
    assert outputs[-1].matched == "c"


def test_a_stop_string_that_the_last_token_completes_is_the_reason():
    seq, text = stream(stop=("b",))

    last = text.end(ended(seq, ord("b")))

    assert (last.finish_reason, last.matched, last.text) == (FinishReason.STOP, "b", "")


def test_an_error_stays_an_error_and_the_text_held_back_is_shown():
    seq, text = stream(stop=("bc",))
    text.push([(ord("b"), None)], 1.0)
    end = replace(ended(seq), reason=FinishReason.ERROR, error=ValueError("x"))

    last = text.end(end)

    assert (last.finish_reason, last.text, str(last.error)) == (FinishReason.ERROR, "b", "x")
