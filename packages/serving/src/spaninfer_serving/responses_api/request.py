"""A request of the Responses API as the chat request that asks for the same; pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from spaninfer_serving.blocks import BlockAnswer
from spaninfer_serving.wire.chat import ChatRequest, Message
from spaninfer_serving.wire.responses import (
    FunctionTool,
    InputCall,
    InputCallOutput,
    InputItem,
    InputMessage,
    InputReasoning,
    InputTexts,
    NamedFunction,
    ResponsesRequest,
    TextFormat,
)
from spaninfer_serving.wire.responses import ToolChoice as FunctionChoice
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
    "messages": "input",
    "max_completion_tokens": "max_output_tokens",
    "response_format.json_schema.schema": "text.format.schema",
    "response_format": "text.format",
    "reasoning_effort": "reasoning.effort",
}
"""What parameters of a chat request are called in the Responses API."""


def conversation_of(body: ResponsesRequest, history: Sequence[Message]) -> list[Message]:
    """Return the turns behind `history` and with it; instructions are not among them."""
    if isinstance(body.input, str):
        return [*history, Message(role="user", content=body.input)]
    return [*history, *_turns(body.input)]


def chat_of(body: ResponsesRequest, conversation: Sequence[Message]) -> ChatRequest:
    """Return the chat request that asks for the same."""
    told = [] if body.instructions is None else [Message(role="system", content=body.instructions)]
    return ChatRequest(
        **draws_of(body),
        messages=[*told, *conversation],
        tools=[_tool(tool) for tool in body.tools],
        tool_choice=_choice(body.tool_choice),
        parallel_tool_calls=body.parallel_tool_calls,
        max_completion_tokens=body.max_output_tokens,
        response_format=None if body.text.format is None else _format(body.text.format),
        reasoning_effort=body.reasoning.effort,
    )


def turn_of(answer: BlockAnswer) -> Message:
    """Return an answer as the assistant's turn in a conversation."""
    calls = [
        ToolCall(id=call.call_id, function=FunctionCall(name=call.name, arguments=call.text))
        for call in answer.calls
    ]
    return Message(
        role="assistant",
        content=answer.texts("text"),
        tool_calls=calls,
        reasoning_content=answer.texts("reasoning") or None,
    )


@dataclass(slots=True)
class _Turn:
    """A turn of the assistant, while its items are collected."""

    reasoning: list[str] = field(default_factory=list)
    content: str | None = None
    calls: list[ToolCall] = field(default_factory=list)

    @property
    def has_spoken(self) -> bool:
        return self.content is not None or bool(self.calls)

    def messages(self) -> Iterator[Message]:
        """Yield the turn, if there is one."""
        if self.reasoning or self.has_spoken:
            yield Message(
                role="assistant",
                content=self.content or "",
                tool_calls=self.calls,
                reasoning_content="".join(self.reasoning) or None,
            )


def _turns(items: Iterable[InputItem]) -> Iterator[Message]:
    """Yield the messages of items; reasoning, text and calls in a row are one turn."""
    turn = _Turn()
    for item in items:
        match item:
            case InputCall():
                function = FunctionCall(name=item.name, arguments=item.arguments or "{}")
                turn.calls.append(ToolCall(id=item.call_id, function=function))
                continue
            case InputReasoning() if not turn.has_spoken:
                turn.reasoning += [part.text for part in item.content or ()]
                continue
            case InputMessage(role="assistant") if not turn.has_spoken:
                turn.content = _text(item.content)
                continue
        yield from turn.messages()
        turn = _Turn()
        match item:
            case InputReasoning():
                turn.reasoning = [part.text for part in item.content or ()]
            case InputMessage(role="assistant"):
                turn.content = _text(item.content)
            case InputMessage():
                yield Message(role=item.role, content=_text(item.content))
            case InputCallOutput():
                output = _text(item.output)
                yield Message(role="tool", tool_call_id=item.call_id, content=output)
    yield from turn.messages()


def _text(content: InputTexts) -> str:
    return content if isinstance(content, str) else "".join(part.text for part in content)


def _tool(tool: FunctionTool) -> Tool:
    function = FunctionDefinition(
        name=tool.name, description=tool.description, parameters=tool.parameters, strict=tool.strict
    )
    return Tool(type="function", function=function)


def _choice(choice: FunctionChoice) -> ToolChoice:
    if isinstance(choice, NamedFunction):
        return NamedTool(type="function", function=FunctionName(name=choice.name))
    return choice


def _format(asked: TextFormat) -> ResponseFormat:
    if asked.schema_ is None or asked.name is None:
        return ResponseFormat(type=asked.type)
    return ResponseFormat(
        type="json_schema",
        json_schema=JsonSchema.model_validate({"name": asked.name, "schema": asked.schema_}),
    )
