"""A request of the Messages API as the chat request that asks for the same; pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from pydantic_core import to_json

from spaninfer_serving.jobs.translated import OriginalMessage, TranslatedChat
from spaninfer_serving.wire.chat import ChatRequest, Effort, Message
from spaninfer_serving.wire.errors import Problem
from spaninfer_serving.wire.media import ImagePart, ImageUrl, Part, TextPart
from spaninfer_serving.wire.message_blocks import (
    Base64Source,
    ContentSource,
    DocumentBlock,
    ImageBlock,
    TextBlock,
    TextSource,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
    UrlSource,
)
from spaninfer_serving.wire.messages import (
    ClientTool,
    CountRequest,
    MessagesRequest,
    PromptFields,
    TurnMessage,
)
from spaninfer_serving.wire.sampling import draws_of
from spaninfer_serving.wire.structured import JsonSchema, ResponseFormat
from spaninfer_serving.wire.tools import (
    CustomToolCall,
    FunctionCall,
    FunctionDefinition,
    FunctionTool,
    NamedFunction,
    ToolCall,
    ToolChoice,
    ToolName,
)

NAMES = {
    "stop": "stop_sequences",
    "response_format.json_schema.schema": "output_config.format.schema",
    "response_format": "output_config.format",
    "reasoning_effort": "output_config.effort",
}
"""What parameters of a chat request are called in the Messages API."""


def chat_of(body: MessagesRequest | CountRequest) -> TranslatedChat:
    """Return the chat request that asks for the same; Problem where there is none."""
    given: dict[str, Any] = draws_of(body)
    if isinstance(body, MessagesRequest):
        _check_last(body)
        given |= {"max_tokens": body.max_tokens, "stop": body.stop_sequences}
    originals = list(_messages(body))
    chat = ChatRequest(
        **given,
        messages=[each.message for each in originals],
        tools=[_tool(tool) for tool in body.tools],
        tool_choice=_choice(body),
        parallel_tool_calls=not (body.tool_choice and body.tool_choice.disable_parallel_tool_use),
        response_format=_format(body),
        reasoning_effort=_effort(body),
    )
    schemas = {
        f"tools[{at}].function.parameters": f"tools[{at}].input_schema"
        for at in range(len(body.tools))
    }
    return TranslatedChat(chat, schemas | NAMES, originals)


def _check_last(body: MessagesRequest) -> None:
    """Raise Problem for an answer that would have to go on from a turn of the assistant.

    Chat templates end every turn: the model would see a whole answer, and begin another.
    """
    if body.messages[-1].role != "assistant":
        return
    place = f"messages[{len(body.messages) - 1}]"
    raise Problem(
        400,
        f"{place} is the last turn, and the assistant's: this server does not continue a turn of "
        "the assistant (prefill); end with a turn of the user, which says how the answer shall "
        "begin or has the tool_result blocks, or ask for a form by output_config.format",
        param=place,
        code="unsupported_value",
    )


def _messages(body: PromptFields) -> Iterator[OriginalMessage]:
    system = _text(body.system)
    if system:
        yield OriginalMessage(Message(role="system", content=system), "system")
    for number, turn in enumerate(body.messages):
        place = f"messages[{number}]"
        if isinstance(turn.content, str):
            yield OriginalMessage(Message(role=turn.role, content=turn.content), place)
        elif turn.role == "assistant":
            yield OriginalMessage(_answer(turn), place)
        else:
            yield from _results_and_parts(turn, place)


def _answer(turn: TurnMessage) -> Message:
    """Return a turn of the assistant."""
    calls: list[ToolCall | CustomToolCall] = [
        ToolCall(
            id=block.id,
            function=FunctionCall(name=block.name, arguments=to_json(block.input).decode()),
        )
        for block in turn.content
        if isinstance(block, ToolUseBlock)
    ]
    thought = [block.thinking for block in turn.content if isinstance(block, ThinkingBlock)]
    return Message(
        role="assistant",
        content=_text([block for block in turn.content if isinstance(block, TextBlock)]),
        tool_calls=calls,
        reasoning_content="".join(thought) or None,
    )


def _results_and_parts(turn: TurnMessage, place: str) -> Iterator[OriginalMessage]:
    """Yield the results of tools in a turn of the user, and its other blocks, in order."""
    waiting: list[tuple[str, Part]] = []
    for at, block in enumerate(turn.content):
        here = f"{place}.content[{at}]"
        if not isinstance(block, ToolResultBlock):
            waiting += _parts(block, here)
            continue
        if waiting:
            yield _said(turn, place, waiting)
            waiting = []
        yield _result(block, here)
    if waiting or not turn.content:
        yield _said(turn, place, waiting)


def _result(block: ToolResultBlock, place: str) -> OriginalMessage:
    """Return the result of a tool as a message."""
    parts: list[tuple[str, Part]] = []
    if block.is_error:  # templates have no other word for it
        parts.append((place, TextPart(type="text", text="Error: ")))
    if isinstance(block.content, str):
        parts.append((place, TextPart(type="text", text=block.content)))
    else:
        for at, each in enumerate(block.content):
            parts += _parts(each, f"{place}.content[{at}]")
    return _joined(partial(Message, role="tool", tool_call_id=block.tool_use_id), place, parts)


def _said(turn: TurnMessage, place: str, parts: Sequence[tuple[str, Part]]) -> OriginalMessage:
    """Return parts of a turn and their places as one message."""
    return _joined(partial(Message, role=turn.role), place, parts)


def _joined(
    message: Callable[..., Message], place: str, parts: Sequence[tuple[str, Part]]
) -> OriginalMessage:
    """Return what `message` makes of parts: of one text where there are no media."""
    texts = [part.text for _, part in parts if isinstance(part, TextPart)]
    if len(texts) == len(parts):
        return OriginalMessage(message(content="".join(texts)), place)
    return OriginalMessage(
        message(content=[part for _, part in parts]), place, [at for at, _ in parts]
    )


def _parts(block: object, place: str) -> Iterator[tuple[str, Part]]:
    """Yield the parts that a block of the user becomes, behind their places."""
    match block:
        case TextBlock():
            yield place, TextPart(type="text", text=block.text)
        case ImageBlock(source=UrlSource(url=url)):
            yield place, ImagePart(type="image_url", image_url=ImageUrl(url=url))
        case ImageBlock(source=Base64Source() as source):
            url = f"data:{source.media_type};base64,{source.data}"
            yield place, ImagePart(type="image_url", image_url=ImageUrl(url=url))
        case DocumentBlock():
            yield from _document(block, place)


def _document(block: DocumentBlock, place: str) -> Iterator[tuple[str, Part]]:
    """Yield the title and the context of a document as lines of their own, and its content."""
    for line in (block.title, block.context):
        if line:
            yield place, TextPart(type="text", text=f"{line}\n")
    match block.source:
        case TextSource(data=text) | ContentSource(content=str() as text):
            yield place, TextPart(type="text", text=text)
        case ContentSource(content=pages):
            for at, page in enumerate(pages):
                yield from _parts(page, f"{place}.source.content[{at}]")


def _text(content: str | Sequence[TextBlock]) -> str:
    return content if isinstance(content, str) else "".join(block.text for block in content)


def _tool(tool: ClientTool) -> FunctionTool:
    function = FunctionDefinition(
        name=tool.name,
        description=tool.description,
        parameters=tool.input_schema,
        strict=tool.strict,
    )
    return FunctionTool(type="function", function=function)


def _choice(body: PromptFields) -> ToolChoice:
    asked = body.tool_choice
    match None if asked is None else asked.type:
        case "any":
            return "required"
        case "none":
            return "none"
        case "tool":
            assert asked is not None
            return NamedFunction(type="function", function=ToolName(name=asked.name or ""))
    return "auto"


def _format(body: PromptFields) -> ResponseFormat | None:
    asked = body.output_config.format
    if asked is None:
        return None
    schema = JsonSchema.model_validate({"name": "answer", "schema": asked.schema_})
    return ResponseFormat(type="json_schema", json_schema=schema)


def _effort(body: PromptFields) -> Effort | None:
    if body.thinking is not None and body.thinking.type == "disabled":
        return "none"
    return body.output_config.effort
