"""The blocks of an answer as the content of a message: whole, or event by event."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Iterator

from pydantic_core import from_json
from spaninfer_engine import Output

from spaninfer_serving.answers.blocks import (
    Block,
    BlockAnswer,
    BlockDelta,
    BlockEnd,
    BlockStart,
    Change,
    read_whole,
)
from spaninfer_serving.answers.responses import token_by_token
from spaninfer_serving.dialects.parser import AnswerFormat
from spaninfer_serving.wire.messages import (
    BlockPiece,
    ContentBlockDelta,
    ContentBlockStart,
    ContentBlockStop,
    MessageDelta,
    MessageEnd,
    MessageEvent,
    MessageObject,
    MessageStart,
    MessageStop,
    MessageUsage,
    SaidBlock,
    SaidText,
    SaidThinking,
    SaidToolUse,
    StopReason,
)


async def message_of(
    outputs: AsyncIterator[tuple[int, Output]], message: MessageObject, form: AnswerFormat | None
) -> MessageObject:
    """Return the whole of a message; of a call that broke off, only its text."""
    answer, last = await read_whole(outputs, form)
    content = [_whole(block) for block in answer.blocks if not block.is_broken]
    return message.model_copy(
        update={"content": content, "usage": _usage(last), **dict(_end(answer, last))}
    )


async def message_events(
    outputs: AsyncIterator[tuple[int, Output]], message: MessageObject, form: AnswerFormat | None
) -> AsyncGenerator[list[MessageEvent], None]:
    """Yield a message as it grows: the events of each output, token by token."""
    answer = BlockAnswer(form)
    yield [MessageStart(message=message)]
    async for _, output in outputs:
        events: list[MessageEvent] = []
        async for token in token_by_token(output):
            for change in answer.push(token):
                events += _events(change)
        if output.finish_reason is not None:
            events += [
                MessageDelta(delta=_end(answer, output), usage=_usage(output)),
                MessageStop(),
            ]
        if events:
            yield events


def _events(change: Change) -> Iterator[MessageEvent]:
    block = change.block
    match change:
        case BlockStart():
            yield ContentBlockStart(index=block.index, content_block=_begun(block))
        case BlockDelta(text=text):
            yield ContentBlockDelta(index=block.index, delta=_piece(block, text))
        case BlockEnd():
            if block.kind == "reasoning":  # clients wait for it, though there is none
                signature = BlockPiece(type="signature_delta", signature="")
                yield ContentBlockDelta(index=block.index, delta=signature)
            yield ContentBlockStop(index=block.index)


def _begun(block: Block) -> SaidBlock:
    match block.kind:
        case "text":
            return SaidText(text="")
        case "reasoning":
            return SaidThinking(thinking="")
        case "call":
            return SaidToolUse(id=block.call_id, name=block.name, input={})


def _piece(block: Block, text: str) -> BlockPiece:
    match block.kind:
        case "text":
            return BlockPiece(type="text_delta", text=text)
        case "reasoning":
            return BlockPiece(type="thinking_delta", thinking=text)
        case "call":
            return BlockPiece(type="input_json_delta", partial_json=text)


def _whole(block: Block) -> SaidBlock:
    match block.kind:
        case "text":
            return SaidText(text=block.text)
        case "reasoning":
            return SaidThinking(thinking=block.text)
        case "call":  # a limit may have cut it: the members that are whole remain
            said = from_json(block.text or "{}", allow_partial=True)
            return SaidToolUse(id=block.call_id, name=block.name, input=said)


def _end(answer: BlockAnswer, last: Output) -> MessageEnd:
    reasons: dict[str | None, StopReason] = {"length": "max_tokens", "tool_calls": "tool_use"}
    if isinstance(last.matched, str):
        return MessageEnd(stop_reason="stop_sequence", stop_sequence=last.matched)
    return MessageEnd(stop_reason=reasons.get(answer.finish_reason, "end_turn"))


def _usage(last: Output) -> MessageUsage:
    assert last.usage is not None, "a finished output carries its usage"
    return MessageUsage(
        input_tokens=last.usage.prompt_len - last.usage.cached_len,
        cache_read_input_tokens=last.usage.cached_len,
        output_tokens=last.usage.output_len,
    )
