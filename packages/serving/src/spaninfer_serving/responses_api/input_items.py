"""The input of a kept response, as items; pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from spaninfer_serving.wire.chat import Message
from spaninfer_serving.wire.errors import Problem
from spaninfer_serving.wire.listed_items import (
    ItemList,
    ListedFile,
    ListedImage,
    ListedItem,
    ListedMessage,
    ListedPart,
    ListedResult,
    ListedText,
)
from spaninfer_serving.wire.media import FilePart, ImagePart, Part, TextPart, source_of
from spaninfer_serving.wire.response_items import (
    OutputCall,
    OutputCustomCall,
    OutputItem,
    OutputMessage,
    OutputReasoning,
    OutputText,
    ReasoningText,
)
from spaninfer_serving.wire.tools import CustomToolCall


def input_items(
    response_id: str, conversation: Sequence[Message], *, has_images: bool
) -> list[ListedItem]:
    """Return the items of a conversation, whose last message is the answer.

    Their ids are made of the response's: clients need not have given any. `has_images`: with the
    URLs of images.
    """
    *given, _ = conversation
    custom: set[str] = set()  # calls of custom tools, by id
    items: list[ListedItem] = []
    for message in given:
        custom |= {call.id for call in message.tool_calls if isinstance(call, CustomToolCall)}
        items += _items(message, custom, has_images)
    prefix = response_id.removeprefix("resp_")
    for number, item in enumerate(items):
        item.id = f"{_PREFIXES[item.type]}_{prefix}_in_{number}"
    return items


def page(items: Sequence[ListedItem], order: str, limit: int, after: str | None) -> ItemList:
    """Return the items behind one of them, in ascending or descending order; Problem where there is
    none of its id.
    """
    listed = list(items) if order == "asc" else list(reversed(items))
    if after is not None:
        ids = [item.id for item in listed]
        if after not in ids:
            raise Problem(400, f"after is {after!r}, which is no item of this list", param="after")
        listed = listed[ids.index(after) + 1 :]
    shown = listed[:limit]
    return ItemList(
        data=shown,
        first_id=shown[0].id if shown else "",
        last_id=shown[-1].id if shown else "",
        has_more=len(listed) > limit,
    )


_PREFIXES = {
    "message": "msg",
    "reasoning": "rs",
    "function_call": "fc",
    "function_call_output": "fco",
    "custom_tool_call": "ctc",
    "custom_tool_call_output": "ctco",
}


def _items(message: Message, custom: set[str], has_images: bool) -> Iterator[ListedItem]:
    """Yield the items of a message, not yet with ids."""
    match message.role:
        case "assistant":
            yield from _turn(message)
        case "tool":
            call_id = message.tool_call_id or ""
            yield ListedResult(
                type="custom_tool_call_output" if call_id in custom else "function_call_output",
                id="",
                call_id=call_id,
                output=_parts(message, has_images) if message.media() else message.text(),
            )
        case role:
            yield ListedMessage(id="", role=role, content=_parts(message, has_images))


def _turn(message: Message) -> Iterator[OutputItem]:
    """Yield the items of a turn of the assistant."""
    if message.reasoning_content:
        thought = ReasoningText(type="reasoning_text", text=message.reasoning_content)
        yield OutputReasoning(id="", status="completed", content=[thought])
    if message.text():
        said = OutputText(text=message.text())
        yield OutputMessage(id="", status="completed", content=[said])
    for call in message.tool_calls:
        if isinstance(call, CustomToolCall):
            yield OutputCustomCall(
                id="",
                status="completed",
                call_id=call.id,
                name=call.name,
                input=call.custom.input,
            )
        else:
            yield OutputCall(
                id="",
                status="completed",
                call_id=call.id,
                name=call.name,
                arguments=call.function.arguments,
            )


def _parts(message: Message, has_images: bool) -> list[ListedPart]:
    if isinstance(message.content, str):
        return [ListedText(text=message.content)]
    return [_part(part, has_images) for part in message.content]


def _part(part: Part, has_images: bool) -> ListedPart:
    match part:
        case TextPart():
            return ListedText(text=part.text)
        case ImagePart(image_url=image):
            url = image.url if has_images else None
            return ListedImage(detail=image.detail or "auto", image_url=url)
        case FilePart(file=file):
            return ListedFile(file_data=file.file_data, filename=file.filename)
    _, url = source_of(part)
    is_data = url[:5].lower() == "data:"
    return ListedFile(file_data=url) if is_data else ListedFile(file_url=url)
