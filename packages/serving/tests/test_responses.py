"""Streams say the same, however many tokens an output holds."""

import asyncio
import json
from itertools import pairwise

import pytest
from spaninfer_engine import Output
from spaninfer_engine.handle import merge
from spaninfer_engine.request import FinishReason, TokenLogprob, Usage
from spaninfer_serving.responses import Prompt, ResponseMeta, chat_chunks, completion_chunks

USAGE = Usage(
    prompt_len=2,
    cached_len=0,
    output_len=6,
    arrived_s=0.0,
    scheduled_s=0.1,
    first_token_s=0.2,
    finished_s=1.0,
)
TEXTS = ("a", "", "é", '"b"', "\n", "c")


class Words:
    def token_bytes(self, token_id):
        return TEXTS[token_id].encode()


def outputs_of(*, logprobs):
    """An output for each token; the last is the end."""
    entries = [TokenLogprob(i, -float(i), 1, ((i, -0.5),)) for i in range(len(TEXTS))]
    singles = [
        Output(
            index=0,
            token_ids=(i,),
            text=text,
            logprobs=(entries[i],) if logprobs else (),
            prompt_logprobs=(TokenLogprob(1, -0.25, 1, ()),) if logprobs and i == 0 else (),
        )
        for i, text in enumerate(TEXTS[:-1])
    ]
    end = Output(
        index=0,
        token_ids=(len(TEXTS) - 1,),
        text=TEXTS[-1],
        logprobs=(entries[-1],) if logprobs else (),
        finish_reason=FinishReason.STOP,
        matched="x",
        usage=USAGE,
    )
    return [*singles, end]


def events(kind, outputs, *, logprobs, token_ids, echo):
    """Return the events of a stream, as its client reads them, without the id."""
    meta = ResponseMeta.new("x", "m", "f", include_usage=True, token_ids=token_ids)

    async def arrive():
        for output in outputs:
            yield 0, output

    async def read():
        if kind == "chat":
            shape = {"choices": 1, "prompt_len": 2, "logprobs": logprobs, "form": None}
            chunks = chat_chunks(arrive(), meta, Words(), **shape)
        else:
            shape = {"prompts": (Prompt((0, 1), "PROMPT"),), "choices": 1}
            shape |= {"echo": echo, "logprobs": logprobs}
            chunks = completion_chunks(arrive(), meta, Words(), **shape)
        found = []
        async for chunk in chunks:
            if isinstance(chunk, list):
                found += chunk
            else:
                found.append(chunk.model_dump_json(exclude_unset=True).encode())
        return found

    drop = ("id", "created")
    return [
        {name: value for name, value in json.loads(event).items() if name not in drop}
        for event in asyncio.run(read())
    ]


@pytest.mark.parametrize("kind", ["chat", "completion"])
@pytest.mark.parametrize(
    "shape",
    [
        {"logprobs": False, "token_ids": False, "echo": False},
        {"logprobs": False, "token_ids": False, "echo": True},
        {"logprobs": True, "token_ids": False, "echo": True},
        {"logprobs": False, "token_ids": True, "echo": False},
    ],
)
@pytest.mark.parametrize("cuts", [(), (1,), (5,), (2, 4)])
def test_a_stream_has_an_event_per_token_however_many_come_together(kind, shape, cuts):
    singles = outputs_of(logprobs=shape["logprobs"])
    bounds = [0, *cuts, len(singles)]
    together = [merge(singles[a:b]) for a, b in pairwise(bounds)]

    found = events(kind, together, **shape)

    assert found == events(kind, singles, **shape)
    tokens = [choice for event in found for choice in event["choices"] if "delta" not in choice]
    if kind == "completion":
        assert len(tokens) == len(TEXTS)
        assert "".join(each["text"] for each in tokens) == "PROMPT" * shape["echo"] + "".join(TEXTS)
        assert [each["finish_reason"] for each in tokens] == [None] * 5 + ["stop"]
    else:
        said = [event["choices"][0]["delta"].get("content") for event in found if event["choices"]]
        assert "".join(text or "" for text in said) == "".join(TEXTS)
