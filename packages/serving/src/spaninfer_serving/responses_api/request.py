"""A request of the Responses API as the chat request that asks for the same; pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

from spaninfer_serving.answers.blocks import BlockAnswer
from spaninfer_serving.answers.chat import call_of
from spaninfer_serving.jobs.translated import OriginalMessage, TranslatedChat
from spaninfer_serving.wire.chat import ChatRequest, Message
from spaninfer_serving.wire.input_parts import (
    InputClip,
    InputFile,
    InputImage,
    InputPart,
    InputParts,
    InputText,
    kind_at,
)
from spaninfer_serving.wire.media import (
    AudioPart,
    File,
    FilePart,
    ImagePart,
    ImageUrl,
    MediaUrl,
    Part,
    TextPart,
    VideoPart,
    kind_of_data,
)
from spaninfer_serving.wire.response_items import (
    InputCall,
    InputCallOutput,
    InputCustomCall,
    InputItem,
    InputMessage,
    InputReasoning,
)
from spaninfer_serving.wire.responses import (
    ResponseAllowedTools,
    ResponseCustomTool,
    ResponseGrammar,
    ResponseNamedTool,
    ResponsesRequest,
    ResponseTool,
    TextFormat,
)
from spaninfer_serving.wire.responses import ToolChoice as ResponseChoice
from spaninfer_serving.wire.sampling import draws_of
from spaninfer_serving.wire.structured import JsonSchema, ResponseFormat
from spaninfer_serving.wire.tools import (
    AllowedNames,
    AllowedTools,
    CustomDefinition,
    CustomTool,
    CustomToolCall,
    FunctionDefinition,
    FunctionTool,
    GrammarInput,
    InputGrammar,
    NamedCustom,
    NamedFunction,
    Tool,
    ToolCall,
    ToolChoice,
    ToolName,
)

NAMES = {
    "messages": "input",
    "max_completion_tokens": "max_output_tokens",
    "response_format.json_schema.schema": "text.format.schema",
    "response_format": "text.format",
    "reasoning_effort": "reasoning.effort",
    "tool_choice.allowed_tools.tools": "tool_choice.tools",
}
"""What parameters of a chat request are called in the Responses API."""


def chat_of(body: ResponsesRequest, history: Sequence[Message]) -> TranslatedChat:
    """Return the chat request that asks for the same, behind the turns of `history`."""
    originals = [OriginalMessage(message, "previous_response_id") for message in history]
    if body.instructions is not None:
        system = Message(role="system", content=body.instructions)
        originals.insert(0, OriginalMessage(system, "instructions"))
    if isinstance(body.input, str):
        originals.append(OriginalMessage(Message(role="user", content=body.input), "input"))
    else:
        originals += _turns(body.input)
    chat = _chat(body, [each.message for each in originals])
    return TranslatedChat(chat, _tool_names(body) | NAMES, originals)


def conversation_of(body: ResponsesRequest, chat: ChatRequest) -> tuple[Message, ...]:
    """Return the turns of a chat request that was made of `body`, without the instructions."""
    return tuple(chat.messages[body.instructions is not None :])


def _chat(body: ResponsesRequest, messages: Sequence[Message]) -> ChatRequest:
    return ChatRequest(
        **draws_of(body),
        messages=list(messages),
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
        call_of(call.call_id, call.name, call.text, is_custom=call.is_custom)
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

    place: str  # of its first item
    reasoning: list[str] = field(default_factory=list)
    content: str | None = None
    calls: list[ToolCall | CustomToolCall] = field(default_factory=list)

    @property
    def has_spoken(self) -> bool:
        return self.content is not None or bool(self.calls)

    def messages(self) -> Iterator[OriginalMessage]:
        """Yield the turn, if there is one."""
        if self.reasoning or self.has_spoken:
            message = Message(
                role="assistant",
                content=self.content or "",
                tool_calls=self.calls,
                reasoning_content="".join(self.reasoning) or None,
            )
            yield OriginalMessage(message, self.place)


def _turns(items: Iterable[InputItem]) -> Iterator[OriginalMessage]:
    """Yield the messages of items; reasoning, text and calls in a row are one turn."""
    turn = _Turn("")
    for number, item in enumerate(items):
        place = f"input[{number}]"
        match item:
            case InputCall() | InputCustomCall():
                turn.place = turn.place or place
                is_custom = isinstance(item, InputCustomCall)
                text = item.input if isinstance(item, InputCustomCall) else item.arguments or "{}"
                turn.calls.append(call_of(item.call_id, item.name, text, is_custom=is_custom))
                continue
            case InputReasoning() if not turn.has_spoken:
                turn.place = turn.place or place
                turn.reasoning += [part.text for part in item.content or ()]
                continue
            case InputMessage(role="assistant") if not turn.has_spoken:
                turn.place = turn.place or place
                turn.content = _text(item.content)
                continue
        yield from turn.messages()
        turn = _Turn("")
        match item:
            case InputReasoning():
                turn = _Turn(place, [part.text for part in item.content or ()])
            case InputMessage(role="assistant"):
                turn = _Turn(place, content=_text(item.content))
            case InputMessage():
                said_by = partial(Message, role=item.role)
                yield _said(item.content, said_by, place, f"{place}.content")
            case InputCallOutput():
                result = partial(Message, role="tool", tool_call_id=item.call_id)
                yield _said(item.output, result, place, f"{place}.output")
    yield from turn.messages()


def _said(
    content: InputParts, message: Callable[..., Message], place: str, inside: str
) -> OriginalMessage:
    """Return what `message` makes of a content: of parts where there are media.

    `inside` is the place of the content.
    """
    if isinstance(content, str) or all(isinstance(each, InputText) for each in content):
        return OriginalMessage(message(content=_text(content)), place)
    parts = [_part(each) for each in content]
    places = [f"{inside}[{at}]" for at in range(len(parts))]
    return OriginalMessage(message(content=parts), place, places)


def _part(part: InputPart) -> Part:
    match part:
        case InputText():
            return TextPart(type="text", text=part.text)
        case InputClip():
            return AudioPart(type="input_audio", input_audio=part.input_audio)
        case InputImage():
            return _image(part.image_url, part)
        case InputFile():
            return _file(part)


def _file(part: InputFile) -> Part:
    """Return a file as the part that its kind has."""
    if part.file_data is None:
        url = part.file_url or ""
        kind = kind_at(url)
    else:
        url = part.file_data
        kind = kind_of_data(url)
    match kind:
        case "image":
            return _image(url, part)
        case "video":
            return VideoPart(type="video_url", video_url=MediaUrl(url=url))
        case _:
            return FilePart(type="file", file=File(file_data=url, filename=part.filename))


def _image(url: str, part: InputImage | InputFile) -> ImagePart:
    return ImagePart(type="image_url", image_url=ImageUrl(url=url, detail=part.detail))


def _text(content: InputParts) -> str:
    """Return the text of a content."""
    if isinstance(content, str):
        return content
    return "".join(part.text for part in content if isinstance(part, InputText))


def _tool(tool: ResponseTool) -> Tool:
    if isinstance(tool, ResponseCustomTool):
        return _custom_tool(tool)
    function = FunctionDefinition(
        name=tool.name, description=tool.description, parameters=tool.parameters, strict=tool.strict
    )
    return FunctionTool(type="function", function=function)


def _custom_tool(tool: ResponseCustomTool) -> CustomTool:
    asked, form = tool.format, None
    if isinstance(asked, ResponseGrammar):
        grammar = InputGrammar(syntax=asked.syntax, definition=asked.definition)
        form = GrammarInput(type="grammar", grammar=grammar)
    custom = CustomDefinition(name=tool.name, description=tool.description, format=form)
    return CustomTool(type="custom", custom=custom)


def _tool_names(body: ResponsesRequest) -> dict[str, str]:
    """Return what the parameters of tools are called, the longest first."""
    names: dict[str, str] = {}
    for at, tool in enumerate(body.tools):
        place = f"tools[{at}]"
        names[f"{place}.function.parameters"] = f"{place}.parameters"
        if isinstance(tool, ResponseCustomTool):
            names[f"{place}.custom.format.grammar"] = f"{place}.format"
            names[f"{place}.custom"] = place
    return names


def _choice(choice: ResponseChoice) -> ToolChoice:
    match choice:
        case ResponseNamedTool():
            return _named(choice)
        case ResponseAllowedTools():
            tools = [_named(each) for each in choice.tools]
            allowed = AllowedNames(mode=choice.mode, tools=tools)
            return AllowedTools(type="allowed_tools", allowed_tools=allowed)
    return choice


def _named(tool: ResponseNamedTool) -> NamedFunction | NamedCustom:
    name = ToolName(name=tool.name)
    if tool.type == "custom":
        return NamedCustom(type="custom", custom=name)
    return NamedFunction(type="function", function=name)


def _format(asked: TextFormat) -> ResponseFormat:
    if asked.schema_ is None or asked.name is None:
        return ResponseFormat(type=asked.type)
    return ResponseFormat(
        type="json_schema",
        json_schema=JsonSchema.model_validate({"name": asked.name, "schema": asked.schema_}),
    )
