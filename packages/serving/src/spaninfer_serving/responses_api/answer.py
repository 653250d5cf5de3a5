"""The blocks of an answer as items of a response: whole, or event by event."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator, Sequence
from itertools import count
from typing import Any, TypeAlias

from spaninfer_engine import Output

from spaninfer_serving.answers.blocks import (
    Block,
    BlockAnswer,
    BlockDelta,
    BlockEnd,
    BlockStart,
    Change,
)
from spaninfer_serving.answers.responses import token_by_token
from spaninfer_serving.dialects.parser import AnswerFormat
from spaninfer_serving.wire.response_events import (
    ArgumentsDelta,
    ArgumentsDone,
    ContentPartEvent,
    InputDelta,
    InputDone,
    ItemEvent,
    ReasoningDelta,
    ReasoningDone,
    ResponseEvent,
    StateName,
    StreamEvent,
    TextDelta,
    TextDone,
)
from spaninfer_serving.wire.response_items import (
    ItemStatus,
    OutputCall,
    OutputCustomCall,
    OutputItem,
    OutputMessage,
    OutputReasoning,
    OutputText,
    ReasoningText,
)
from spaninfer_serving.wire.responses import (
    IncompleteDetails,
    InputTokensDetails,
    OutputTokensDetails,
    ResponseObject,
    ResponseUsage,
)

Finish: TypeAlias = Callable[[BlockAnswer, Output, list[OutputItem]], Awaitable[ResponseObject]]
"""Makes the finished response of an answer, its last output, and its items."""


def finished(
    response: ResponseObject,
    answer: BlockAnswer,
    last: Output,
    items: list[OutputItem],
    num_reasoning: int,
) -> ResponseObject:
    """Return a response as it is in the end; `num_reasoning`: tokens of it."""
    is_cut = answer.finish_reason == "length"
    assert last.usage is not None, "a finished output carries its usage"
    usage = ResponseUsage(
        input_tokens=last.usage.prompt_len,
        input_tokens_details=InputTokensDetails(cached_tokens=last.usage.cached_len),
        output_tokens=last.usage.output_len,
        output_tokens_details=OutputTokensDetails(reasoning_tokens=num_reasoning),
        total_tokens=last.usage.prompt_len + last.usage.output_len,
    )
    return response.model_copy(
        update={
            "status": "incomplete" if is_cut else "completed",
            "incomplete_details": (
                IncompleteDetails(reason="max_output_tokens") if is_cut else None
            ),
            "completed_at": None if is_cut else int(time.time()),
            "output": items,
            "usage": usage,
        }
    )


def items_of(response_id: str, answer: BlockAnswer) -> list[OutputItem]:
    """Return the items of a whole answer; of a call that broke off, only its text."""
    return [
        _item(response_id, block, _status(answer, block))
        for block in answer.blocks
        if not block.is_broken
    ]


def _status(answer: BlockAnswer, block: Block) -> ItemStatus:
    """Return how whole an ended block is."""
    is_cut = answer.finish_reason == "length" and block is answer.blocks[-1]
    return "incomplete" if block.is_broken or is_cut else "completed"


def _item(response_id: str, block: Block, status: ItemStatus) -> OutputItem:
    name, text = _item_id(response_id, block), block.text
    match block.kind:
        case "text":
            return OutputMessage(id=name, status=status, content=[OutputText(text=text)])
        case "reasoning":
            said = ReasoningText(type="reasoning_text", text=text)
            return OutputReasoning(id=name, status=status, content=[said])
        case "call" if block.is_custom:
            return OutputCustomCall(
                id=name, status=status, call_id=block.call_id, name=block.name, input=text
            )
        case "call":
            return OutputCall(
                id=name, status=status, call_id=block.call_id, name=block.name, arguments=text
            )


def _item_id(response_id: str, block: Block) -> str:
    prefix = "ctc" if block.is_custom else _PREFIXES[block.kind]
    return f"{prefix}_{response_id.removeprefix('resp_')}_{block.index}"


async def response_events(
    outputs: AsyncIterator[tuple[int, Output]],
    response: ResponseObject,
    form: AnswerFormat | None,
    finish: Finish,
) -> AsyncGenerator[list[StreamEvent], None]:
    """Yield a response as it grows: the events of each output, token by token."""
    answer, items, numbers = BlockAnswer(form), list[OutputItem](), count()

    def state(kind: StateName, of: ResponseObject) -> ResponseEvent:
        return ResponseEvent(type=kind, response=of, sequence_number=next(numbers))

    yield [state("response.created", response)]
    yield [state("response.in_progress", response)]
    async for _, output in outputs:
        events: list[StreamEvent] = []
        async for token in token_by_token(output):
            for change in answer.push(token):
                events += _events(response.id, answer, change, items)
        for event in events:
            event.sequence_number = next(numbers)
        if events:
            yield events
        if output.finish_reason is not None:
            whole = await finish(answer, output, items)
            is_cut = whole.incomplete_details is not None
            yield [state("response.incomplete" if is_cut else "response.completed", whole)]


def _events(
    response_id: str, answer: BlockAnswer, change: Change, items: list[OutputItem]
) -> Iterator[StreamEvent]:
    """Yield the events of a change, not yet numbered; items that are complete are kept."""
    block = change.block
    at: dict[str, Any] = {"output_index": block.index, "sequence_number": 0}
    place = at | {"item_id": _item_id(response_id, block)}
    match change:
        case BlockStart():
            begun = _item(response_id, block, "in_progress")
            parts = _parts(begun)
            if parts:
                begun = begun.model_copy(update={"content": []})
            yield ItemEvent(type="response.output_item.added", item=begun, **at)
            for part in parts:
                yield ContentPartEvent(type="response.content_part.added", part=part, **place)
        case BlockDelta(text=text):
            kind = InputDelta if block.is_custom else _DELTAS[block.kind]
            yield kind(delta=text, **place)
        case BlockEnd():
            item = _item(response_id, block, _status(answer, block))
            items.append(item)
            yield _done(block, place)
            for part in _parts(item):
                yield ContentPartEvent(type="response.content_part.done", part=part, **place)
            yield ItemEvent(type="response.output_item.done", item=item, **at)


_PREFIXES = {"text": "msg", "reasoning": "rs", "call": "fc"}
_DELTAS = {"text": TextDelta, "reasoning": ReasoningDelta, "call": ArgumentsDelta}


def _parts(item: OutputItem) -> Sequence[OutputText | ReasoningText]:
    return () if isinstance(item, OutputCall | OutputCustomCall) else item.content


def _done(block: Block, place: dict[str, Any]) -> StreamEvent:
    match block.kind:
        case "text":
            return TextDone(text=block.text, **place)
        case "reasoning":
            return ReasoningDone(text=block.text, **place)
        case "call" if block.is_custom:
            return InputDone(input=block.text, **place)
        case "call":
            return ArgumentsDone(name=block.name, arguments=block.text, **place)
