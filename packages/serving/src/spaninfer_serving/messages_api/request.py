"""A request of the Messages API as the chat request that asks for the same; pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from pydantic_core import to_json

from spaninfer_serving.wire.chat import ChatRequest, Effort, Message
from spaninfer_serving.wire.messages import (
    ClientTool,
    CountRequest,
    MessagesRequest,
    PromptFields,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
    TurnMessage,
)
from spaninfer_serving.wire.sampling import draws_of
from spaninfer_serving.wire.structured import JsonSchema, ResponseFormat
from spaninfer_serving.wire.tools import (
    FunctionCall,
    FunctionDefinition,
    FunctionName,
    NamedTool,
    Tool,
    ToolCall,
    ToolChoice,
)

NAMES = {
    "stop": "stop_sequences",
    "response_format.json_schema.schema": "output_config.format.schema",
    "response_format": "output_config.format",
    "reasoning_effort": "output_config.effort",
}
"""What parameters of a chat request are called in the Messages API."""


def chat_of(body: MessagesRequest | CountRequest) -> ChatRequest:
    """Return the chat request that asks for the same."""
    given: dict[str, Any] = draws_of(body)
    if isinstance(body, MessagesRequest):
        given |= {"max_tokens": body.max_tokens, "stop": body.stop_sequences}
    return ChatRequest(
        **given,
        messages=list(_messages(body)),
        tools=[_tool(tool) for tool in body.tools],
        tool_choice=_choice(body),
        parallel_tool_calls=not (body.tool_choice and body.tool_choice.disable_parallel_tool_use),
        response_format=_format(body),
        reasoning_effort=_effort(body),
    )


def _messages(body: PromptFields) -> Iterator[Message]:
    system = _text(body.system)
    if system:
        yield Message(role="system", content=system)
    for turn in body.messages:
        if isinstance(turn.content, str):
            yield Message(role=turn.role, content=turn.content)
        elif turn.role == "assistant":
            yield _answer(turn)
        else:
            yield from _results_and_text(turn)


def _answer(turn: TurnMessage) -> Message:
    """Return a turn of the assistant."""
    calls = [
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


def _results_and_text(turn: TurnMessage) -> Iterator[Message]:
    """Yield the results of tools in a turn of the user, and its text, in order."""
    texts: list[TextBlock] = []
    for block in turn.content:
        match block:
            case TextBlock():
                texts.append(block)
            case ToolResultBlock():
                if texts:
                    yield Message(role=turn.role, content=_text(texts))
                    texts = []
                failed = "Error: " if block.is_error else ""  # templates have no other word for it
                content = failed + _text(block.content)
                yield Message(role="tool", tool_call_id=block.tool_use_id, content=content)
    if texts or not turn.content:
        yield Message(role=turn.role, content=_text(texts))


def _text(content: str | Sequence[TextBlock]) -> str:
    return content if isinstance(content, str) else "".join(block.text for block in content)


def _tool(tool: ClientTool) -> Tool:
    function = FunctionDefinition(
        name=tool.name,
        description=tool.description,
        parameters=tool.input_schema,
        strict=tool.strict,
    )
    return Tool(type="function", function=function)


def _choice(body: PromptFields) -> ToolChoice:
    asked = body.tool_choice
    match None if asked is None else asked.type:
        case "any":
            return "required"
        case "none":
            return "none"
        case "tool":
            assert asked is not None
            return NamedTool(type="function", function=FunctionName(name=asked.name or ""))
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
