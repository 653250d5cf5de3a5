"""The answer of one choice as a list of blocks: reasoning, text and calls in order."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from spaninfer_engine import Output
from spaninfer_engine.serving import merge

from spaninfer_serving.answers.chat import ChatAnswer
from spaninfer_serving.answers.responses import PARSED_IN_LOOP, checked
from spaninfer_serving.dialects.events import (
    Arguments,
    CallBroken,
    CallEnd,
    CallStart,
    Content,
    Event,
    Reasoning,
)
from spaninfer_serving.dialects.parser import AnswerFormat

BlockKind = Literal["reasoning", "text", "call"]


@dataclass(slots=True)
class Block:
    """A part of an answer; grows until it ends.

    `is_broken`: a call that proved malformed; what the model wrote is the text behind it.
    """

    kind: BlockKind
    index: int  # among the blocks of the answer
    call_id: str = ""
    name: str = ""  # of the function
    is_custom: bool = False  # a call of a custom tool, whose text is its input
    pieces: list[str] = field(default_factory=list)
    is_broken: bool = False

    @property
    def text(self) -> str:
        """The text so far; of a call, its arguments."""
        return "".join(self.pieces)


@dataclass(frozen=True, slots=True)
class BlockStart:
    """A block begins."""

    block: Block


@dataclass(frozen=True, slots=True)
class BlockDelta:
    """A block grows by a text."""

    block: Block
    text: str


@dataclass(frozen=True, slots=True)
class BlockEnd:
    """A block is complete."""

    block: Block


Change: TypeAlias = BlockStart | BlockDelta | BlockEnd


class BlockAnswer:
    """Reads one choice while it comes; without a format, all of it is text."""

    def __init__(self, form: AnswerFormat | None) -> None:
        self._answer = ChatAnswer(form)
        self._open: Block | None = None
        self.blocks: list[Block] = []
        self.finish_reason: str | None = None  # OpenAI's word, once the answer has ended

    def push(self, output: Output) -> Iterator[Change]:
        """Yield what an output changes."""
        for event in self._answer.push(output):
            yield from self._changes(event)
        if output.finish_reason is not None:
            self.finish_reason = self._answer.finish_reason(output.finish_reason)
            yield from self._end()

    def texts(self, kind: BlockKind) -> str:
        """Return the text of all blocks of a kind."""
        return "".join(block.text for block in self.blocks if block.kind == kind)

    @property
    def calls(self) -> list[Block]:
        """The calls that are whole."""
        return [block for block in self.blocks if block.kind == "call" and not block.is_broken]

    def _changes(self, event: Event) -> Iterable[Change]:
        match event:
            case Content(text):
                yield from self._grow("text", text)
            case Reasoning(text):
                yield from self._grow("reasoning", text)
            case CallStart(_, call_id, name, is_custom):
                yield from self._start(Block("call", len(self.blocks), call_id, name, is_custom))
            case Arguments(_, text):
                yield from self._grow("call", text)
            case CallEnd():
                yield from self._end()
            case CallBroken(_, text):
                assert self._open is not None, "only what has begun can break off"
                self._open.is_broken = True
                yield from self._grow("text", text)

    def _grow(self, kind: BlockKind, text: str) -> Iterator[Change]:
        if self._open is None or self._open.kind != kind:
            yield from self._start(Block(kind, len(self.blocks)))
        assert self._open is not None, "it was started"
        self._open.pieces.append(text)
        yield BlockDelta(self._open, text)

    def _start(self, block: Block) -> Iterator[Change]:
        yield from self._end()
        self.blocks.append(block)
        self._open = block
        yield BlockStart(block)

    def _end(self) -> Iterator[Change]:
        if self._open is not None:
            ended, self._open = self._open, None
            yield BlockEnd(ended)


async def read_whole(
    outputs: AsyncIterator[tuple[int, Output]], form: AnswerFormat | None
) -> tuple[BlockAnswer, Output]:
    """Return the answer of a request's only choice, and all its outputs as one."""
    whole = merge([checked(output) async for _, output in outputs])
    answer = BlockAnswer(form)

    def read() -> None:
        for _ in answer.push(whole):
            pass

    if form is not None and len(whole.token_ids) > PARSED_IN_LOOP:
        await asyncio.to_thread(read)
    else:
        read()
    return answer, whole
