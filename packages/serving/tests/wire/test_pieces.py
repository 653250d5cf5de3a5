import json

import pytest
from spaninfer_serving.wire.chat import ChatLogprob, ChatLogprobs
from spaninfer_serving.wire.completions import (
    CompletionChoice,
    CompletionLogprobs,
    CompletionResponse,
)
from spaninfer_serving.wire.pieces import (
    PIECE,
    TextEvents,
    answer_in_pieces,
    chat_pieces,
    completion_pieces,
    event_with,
    in_pieces,
)

MARKS = '"choices":[] "logprobs":null "prompt_logprobs":null ü '


def part(*tokens):
    return CompletionLogprobs(
        tokens=list(tokens),
        token_logprobs=[None if token == "first" else -0.5 for token in tokens],
        top_logprobs=[None if token == "first" else {token: -0.5} for token in tokens],
        text_offset=list(range(len(tokens))),
    )


def answer(choices):
    return CompletionResponse(
        id=MARKS, created=1, model=MARKS, choices=choices, system_fingerprint=""
    )


@pytest.mark.parametrize("count", [0, 1, PIECE, PIECE + 1, 3 * PIECE])
def test_pieces_hold_everything_in_order_and_are_short(count):
    pieces = list(in_pieces(range(count)))

    assert [entry for piece in pieces for entry in piece] == list(range(count))
    assert max(map(len, pieces)) <= PIECE
    assert len(pieces) >= 1


def test_an_answer_in_pieces_is_the_answer():
    choices = [
        CompletionChoice(index=index, text=MARKS, finish_reason="stop") for index in range(3)
    ]
    parts = [[part("first", MARKS), part("b")], [part()], [part(), part("c"), part()]]
    parts = [[vars(each) for each in of_choice] for of_choice in parts]
    wholes = [part("first", MARKS, "b"), part(), part("c")]
    wholes[0].text_offset[2] = 0

    said = [{"logprobs": completion_pieces(each)} for each in parts]
    said[1]["prompt_logprobs"] = ["[null", ",null", "]"]
    text = "".join(answer_in_pieces(answer([]), zip(choices, said, strict=True), {}))

    for choice, logprobs in zip(choices, wholes, strict=True):
        choice.logprobs = logprobs
    choices[1].prompt_logprobs = [None, None]
    assert json.loads(text) == answer(choices).model_dump()


def test_what_stands_beside_the_choices_may_come_in_pieces_too():
    choice = CompletionChoice(index=0, text=MARKS, finish_reason="stop")

    text = "".join(answer_in_pieces(answer([]), [(choice, {})], {"usage": ["{", "}"]}))

    assert json.loads(text) == {**answer([choice]).model_dump(), "usage": {}}


def test_log_probabilities_of_a_chat_in_parts_are_one_list():
    entries = [
        ChatLogprob(token=str(i), logprob=-1.0, bytes=[48 + i], top_logprobs=[]) for i in range(5)
    ]
    parts = (entries[:2], [], entries[2:])

    assert json.loads("".join(chat_pieces(parts))) == ChatLogprobs(content=entries).model_dump()


@pytest.mark.parametrize(
    "text", ["a", "", '"\\', "\n\x00\x7f", "ü€😀", "\ue000", MARKS, "</script>\u2028"]
)
@pytest.mark.parametrize("name", ["plain", "\ue000", 'a "name"'])
def test_an_event_of_text_is_what_its_model_writes(text, name):
    def event(text):
        choice = CompletionChoice(index=3, text=text, finish_reason=None)
        return CompletionResponse(
            id="x", created=1, model=name, choices=[choice], system_fingerprint="f"
        )

    [found] = TextEvents(event).json([text])

    assert found == event(text).model_dump_json(exclude_unset=True).encode()


SCORES = {
    "tokens": [MARKS],
    "token_logprobs": [-1.25e-7],
    "top_logprobs": [{MARKS: -0.1, "\ue000": -9999.0}],
    "text_offset": [3],
}


@pytest.mark.parametrize("name", ["plain", "\ue000", MARKS])
def test_an_event_with_log_probabilities_is_what_its_model_writes(name):
    def event(text, scores=None):
        choice = CompletionChoice(index=3, text=text, finish_reason=None, logprobs=scores)
        return CompletionResponse(
            id="x", created=1, model=name, choices=[choice], system_fingerprint=MARKS
        )

    expected = event(MARKS, CompletionLogprobs(**SCORES)).model_dump_json(exclude_unset=True)
    assert TextEvents(event).json_with(MARKS, SCORES) == expected.encode()
    assert event_with(event(MARKS), SCORES) == expected.encode()
