"""While a long answer is written, other threads get the interpreter between its entries."""

import json
import sys

import pytest
from spaninfer_serving.wire.chat import ChatLogprob, ChatLogprobs, TopLogprob
from spaninfer_serving.wire.completions import CompletionLogprobs

NUM_TOKENS = 50

TOP = TopLogprob(token="a", logprob=-1.5, bytes=[97])
CHAT = ChatLogprobs(
    content=[
        ChatLogprob(token="b", logprob=-number / 4, bytes=None, top_logprobs=[TOP] * 20)
        for number in range(NUM_TOKENS)
    ]
)
COMPLETION = CompletionLogprobs(
    tokens=["b"] * NUM_TOKENS,
    token_logprobs=[None, *[-0.5] * (NUM_TOKENS - 1)],
    top_logprobs=[None, *[{"a": -1.5, "b": -0.5}] * (NUM_TOKENS - 1)],
    text_offset=list(range(NUM_TOKENS)),
)


@pytest.mark.parametrize("answer", [CHAT, COMPLETION], ids=["chat", "completion"])
def test_python_is_called_for_every_entry(answer):
    calls = []

    sys.setprofile(lambda _frame, event, _argument: calls.append(event == "call"))
    try:
        answer.model_dump_json()
    finally:
        sys.setprofile(None)

    assert sum(calls) >= NUM_TOKENS


@pytest.mark.parametrize("answer", [CHAT, COMPLETION], ids=["chat", "completion"])
def test_what_is_written_is_what_it_holds(answer):
    assert json.loads(answer.model_dump_json()) == answer.model_dump()
    assert type(answer).model_validate_json(answer.model_dump_json()) == answer
