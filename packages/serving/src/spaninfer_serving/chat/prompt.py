"""A chat request as its template takes it, and how the answers to it are read; pure."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from spaninfer_engine.serving import RenderedPrompt as Prompt

from spaninfer_serving.chat.custom_tools import (
    check_custom,
    check_parameters,
    description_of,
    grammar_of,
    parameters_of,
)
from spaninfer_serving.chat.traits import EFFORT, CallStyle, ChatTraits, content_of
from spaninfer_serving.dialects.custom_inputs import INPUT
from spaninfer_serving.dialects.detect import is_opened
from spaninfer_serving.dialects.object_schemas import NO_ARGUMENTS
from spaninfer_serving.dialects.parser import AnswerFormat
from spaninfer_serving.wire.chat import ChatRequest, ConversationFields, Message
from spaninfer_serving.wire.errors import Problem
from spaninfer_serving.wire.media import TextPart, source_of
from spaninfer_serving.wire.tools import (
    AllowedTools,
    CustomTool,
    CustomToolCall,
    NamedCustom,
    NamedFunction,
    NamedTool,
    Tool,
    ToolCall,
    ToolChoice,
)

Media: TypeAlias = Mapping[tuple[int, int], Mapping[str, Any]]
"""Parts as the engine takes them, by the numbers of message and part."""


@dataclass(frozen=True, slots=True)
class ChatPrompt:
    """The input of the chat template: messages, tools and variables."""

    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] | None
    variables: dict[str, Any]


def chat_prompt(
    body: ConversationFields, traits: ChatTraits, media: Media | None = None
) -> ChatPrompt:
    """Return what is rendered for a request; Problem for what the template has no place for.

    `media` are parts as the engine takes them, by the numbers of message and part; without them
    only their kinds are known.
    """
    return ChatPrompt(
        list(_messages(body.messages, traits, media or {})),
        [_tool(tool) for tool in offered(body, traits)] or None,
        effort_variables(body.reasoning_effort, traits) | body.chat_template_kwargs,
    )


def answer_format(body: ChatRequest, traits: ChatTraits, prompt: Prompt) -> AnswerFormat | None:
    """Return how the answers to a prompt are read; None where they are nothing but content."""
    tools = _allowed(body, traits)
    return AnswerFormat.of(
        traits.dialect,
        traits.thinking,
        {tool.name: parameters_of(tool) for tool in tools},
        custom={tool.name: grammar_of(tool) for tool in tools if isinstance(tool, CustomTool)},
        is_thinking=is_opened(traits.thinking, _written_last(prompt)),
        is_single=not body.parallel_tool_calls,
    )


def offered(body: ConversationFields, traits: ChatTraits) -> Sequence[Tool]:
    """Return the tools that the model sees: none where none may be called.

    Problem where they cannot be: a request with tools is never answered as if it had none.
    """
    names = {tool.name: tool.type for tool in body.tools}
    for place, named in chosen(body.tool_choice).items():
        if names.get(named.name) != named.type:
            kinds = [f"{kind} {name!r}" for name, kind in sorted(names.items())]
            raise _refused(
                f"{place} names {named.type} {named.name!r}, and tools have {', '.join(kinds)}",
                place,
            )
    match body.tool_choice:
        case "none":
            return ()
        case "required" if not names:
            raise _refused("tool_choice is required, and there are no tools", "tool_choice")
    if names and not traits.takes_tools:
        raise _refused(
            "this model's chat template does not support tools; omit tools, or start the "
            "server with a template that does (--chat-template FILE)",
            "tools",
            "unsupported_parameter",
        )
    if names and traits.dialect is None:
        raise _refused(
            "the format of this model's tool calls is unknown; omit tools, or start the "
            "server with --tool-parser NAME",
            "tools",
            "unsupported_parameter",
        )
    check_parameters(body.tools)
    check_custom(body.tools, traits)
    return body.tools


def chosen(choice: ToolChoice) -> dict[str, NamedTool]:
    """Return the tools that a choice names, by the parameters that do; none: it names no tools."""
    match choice:
        case NamedFunction() | NamedCustom():
            return {"tool_choice": choice}
        case AllowedTools(allowed_tools=allowed):
            place = "tool_choice.allowed_tools.tools"
            return {f"{place}[{at}]": named for at, named in enumerate(allowed.tools)}
    return {}


def _allowed(body: ConversationFields, traits: ChatTraits) -> Sequence[Tool]:
    """Return the tools that may be called, of those that the model sees."""
    tools = offered(body, traits)
    names = {named.name for named in chosen(body.tool_choice).values()}
    return [tool for tool in tools if tool.name in names] if names else tools


def effort_variables(effort: str | None, traits: ChatTraits) -> dict[str, Any]:
    """Return the template's variables for a reasoning effort; Problem where it knows none."""
    if effort is None:
        return {}
    switched: dict[str, Any] = dict.fromkeys(traits.switches, effort != "none")
    if traits.has_effort and (effort != "none" or not switched):
        switched[EFFORT] = effort
    if not switched and (effort != "none" or traits.thinking is not None):
        raise _refused(
            f"reasoning_effort is {effort!r}, but this model's chat template has no "
            f"variable {EFFORT}, enable_thinking or thinking; omit it",
            EFFORT,
            "unsupported_parameter",
        )
    return switched


def _messages(
    messages: Sequence[Message], traits: ChatTraits, media: Media
) -> Iterator[dict[str, Any]]:
    """Yield messages as templates take them; results of tools get the names of their functions."""
    style = traits.call_style
    names: dict[str, str] = {}
    for number, message in enumerate(messages):
        names |= {call.id: call.name for call in message.tool_calls}
        given: dict[str, Any] = {"role": message.role}
        if message.tool_calls:
            given |= content_of(message.text(), style)
            given["tool_calls"] = [
                _call(call, style, f"messages[{number}].tool_calls[{at}]")
                for at, call in enumerate(message.tool_calls)
            ]
        else:
            if message.role == "tool":
                _check_result(number, message, traits)
            given["content"] = _content(number, message, media)
        if message.reasoning_content is not None:
            given["reasoning_content"] = message.reasoning_content
        if message.tool_call_id is not None:
            given["tool_call_id"] = message.tool_call_id
        if name := message.name or names.get(message.tool_call_id or ""):
            given["name"] = name
        yield given


def _content(number: int, message: Message, media: Media) -> str | list[Mapping[str, Any]]:
    """Return the content of a message: parts where media are among them."""
    parts = message.media()
    if isinstance(message.content, str) or not parts:
        return message.text()
    return [
        {"type": "text", "text": part.text}
        if isinstance(part, TextPart)
        else media.get((number, at)) or _unread(source_of(parts[at])[0])
        for at, part in enumerate(message.content)
    ]


def _check_result(number: int, message: Message, traits: ChatTraits) -> None:
    """Raise Problem for media in the result of a tool that the template would not show."""
    for at, part in message.media().items():
        kind, _ = source_of(part)
        if kind not in traits.result_media:
            place = f"messages[{number}].content[{at}]"
            raise _refused(
                f"{place} is of kind {kind} in the result of a tool, and this model's chat "
                "template does not show it there; send it in a message of the user behind the "
                "result",
                place,
                "unsupported_parameter",
            )


def _unread(kind: str) -> dict[str, Any]:
    """Return a part as templates take it, of media that were not read."""
    return {"type": kind, kind: ""}


def _call(call: ToolCall | CustomToolCall, style: CallStyle, place: str) -> dict[str, Any]:
    arguments: Any
    if isinstance(call, CustomToolCall):
        arguments = {INPUT: call.custom.input}
        if not style.are_objects:
            arguments = json.dumps(arguments, ensure_ascii=False)
    else:
        arguments = call.function.arguments or "{}"
        if style.are_objects:
            arguments = _parsed(arguments, f"{place}.function.arguments")
    function = {"name": call.name, "arguments": arguments}
    return {"id": call.id, "type": "function", "function": function}


def _parsed(arguments: str, place: str) -> Mapping[str, Any]:
    try:
        found = json.loads(arguments)
    except (ValueError, RecursionError) as broken:
        raise _refused(f"{place} is not JSON: {broken}", place) from broken
    if not isinstance(found, dict):
        raise _refused(f"{place} should be the text of a JSON object", place)
    return found


def _tool(tool: Tool) -> dict[str, Any]:
    """Return a tool with everything that templates look for: a function."""
    given = {
        "name": tool.name,
        "description": description_of(tool),
        "parameters": parameters_of(tool) or NO_ARGUMENTS,
    }
    return {"type": "function", "function": given}


def _written_last(prompt: Prompt) -> str:
    """Return the template's own text at the end of a prompt."""
    if not prompt.trusted or prompt.trusted[-1][1] != len(prompt.text):
        return ""
    return prompt.text[prompt.trusted[-1][0] :]


def _refused(message: str, param: str, code: str | None = None) -> Problem:
    return Problem(400, message, param=param, code=code)
