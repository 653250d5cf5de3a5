"""Streams: equal text for any number of tokens per output."""

import asyncio
import json
from itertools import pairwise

import pytest
from spaninfer_engine import Output
from spaninfer_engine.output.handle import merge
from spaninfer_engine.request.logprobs import LogprobAt, SampledLogprobs, TokenLogprobs
from spaninfer_engine.request.request import FinishReason, TokenLogprob, Usage
from spaninfer_serving.answers.chunks import chat_chunks, completion_chunks
from spaninfer_serving.answers.responses import AnswerSpec, Prompt, ResponseMeta
from spaninfer_serving.http.typed_events import TypedEvents
from spaninfer_serving.messages_api.answer import message_events
from spaninfer_serving.responses_api.answer import finished, items_of, response_events
from spaninfer_serving.wire.messages import MessageObject, MessageUsage
from spaninfer_serving.wire.responses import ResponseObject

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


PROMPT = Prompt((0, 1), "PROMPT")


class Words:
    special_ids = frozenset()
    strips_leading_space = False

    def token_bytes(self, token_id):
        return TEXTS[token_id].encode()


def outputs_of(*, logprobs):
    """An output for each token; the last is the end."""
    count = len(TEXTS)
    arrays = TokenLogprobs.empty(count, 1)
    arrays.token_ids[:], arrays.logprobs[:] = range(count), [-float(i) for i in range(count)]
    arrays.ranks[:], arrays.top_ids[:, 0], arrays.top[:] = 1, range(count), -0.5
    entries = [SampledLogprobs((LogprobAt(arrays, i, 1),)) for i in range(count)]
    singles = [
        Output(
            index=0,
            token_ids=(i,),
            text=text,
            logprobs=entries[i] if logprobs else (),
            prompt_logprobs=(TokenLogprob(1, -0.25, 1, ()),) if logprobs and i == 0 else (),
        )
        for i, text in enumerate(TEXTS[:-1])
    ]
    end = Output(
        index=0,
        token_ids=(len(TEXTS) - 1,),
        text=TEXTS[-1],
        logprobs=entries[-1] if logprobs else (),
        finish_reason=FinishReason.STOP,
        matched="x",
        usage=USAGE,
    )
    return [*singles, end]


def events(kind, outputs, *, logprobs, token_ids, echo):
    """Return the events of a stream, as its client reads them, without the id."""
    meta = ResponseMeta.new("x", "m", include_usage=True, token_ids=token_ids)

    async def arrive():
        for output in outputs:
            yield 0, output

    async def read():
        spec = AnswerSpec(
            meta=meta, words=Words(), prompts=(PROMPT,), choices=1, logprobs=logprobs, echo=echo
        )
        chunks = (chat_chunks if kind == "chat" else completion_chunks)(arrive(), spec)
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


def typed_parts(kind, outputs):
    """Return the parts that a stream with named events travels in, each as its events."""

    async def arrive():
        for output in outputs:
            yield 0, output

    async def finish(answer, last, _items):
        return finished(begun, answer, last, items_of(begun.id, answer), 0)

    begun = ResponseObject.model_construct(id="resp_1", output=[])
    usage = MessageUsage(input_tokens=2, cache_read_input_tokens=0, output_tokens=0)
    message = MessageObject(id="msg_1", model="m", usage=usage)
    chunks = (
        response_events(arrive(), begun, None, finish)
        if kind == "response"
        else message_events(arrive(), message, None)
    )
    framing = TypedEvents(lambda problem: problem.body())

    async def read():
        return [framing.events(chunk).decode() async for chunk in chunks]

    return [
        [json.loads(event.partition("data: ")[2]) for event in part.split("\n\n") if event]
        for part in asyncio.run(read())
    ]


@pytest.mark.parametrize("kind", ["response", "message"])
@pytest.mark.parametrize("cuts", [(), (1,), (5,), (2, 4)])
def test_a_stream_with_named_events_has_one_per_token_and_writes_once_per_output(kind, cuts):
    singles = outputs_of(logprobs=False)
    bounds = [0, *cuts, len(singles)]
    together = [merge(singles[a:b]) for a, b in pairwise(bounds)]

    parts, alone = typed_parts(kind, together), typed_parts(kind, singles)

    found = [event for part in parts for event in part]
    assert [{**event, "response": None} for event in found] == [
        {**event, "response": None} for part in alone for event in part
    ]
    deltas = [event["delta"] for event in found if event["type"].endswith("delta")]
    said = [
        delta["text"] if isinstance(delta, dict) and "text" in delta else delta for delta in deltas
    ]
    assert [text for text in said if isinstance(text, str)] == [text for text in TEXTS if text]
    assert len(parts) <= len(together) + 3  # with what begins a stream and ends it
