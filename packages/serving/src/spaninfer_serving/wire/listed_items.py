"""Items of a kept response's input, as OpenAI's Responses API lists them."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias, get_args

from pydantic import BaseModel

from spaninfer_serving.wire.response_items import (
    OutputCall,
    OutputCustomCall,
    OutputMessage,
    OutputReasoning,
)

Includable: TypeAlias = Literal[
    "code_interpreter_call.outputs",
    "computer_call_output.output.image_url",
    "file_search_call.results",
    "message.input_image.image_url",
    "reasoning.encrypted_content",
    "web_search_call.action.sources",
    "web_search_call.results",
]
"""What may be asked for beside the fields that items have by themselves.

There is something of the kind only for images: calls of OpenAI's own tools are not made here, and
reasoning is never encrypted. Log-probabilities, which are not kept, are no member.
"""


class ListedText(BaseModel):
    """A text."""

    type: Literal["input_text"] = "input_text"
    text: str


class ListedImage(BaseModel):
    """An image; its URL is there where it was asked for."""

    type: Literal["input_image"] = "input_image"
    detail: str
    file_id: None = None
    image_url: str | None = None


class ListedFile(BaseModel):
    """A video or an audio clip: as data, or where it is."""

    type: Literal["input_file"] = "input_file"
    file_data: str | None = None
    file_url: str | None = None
    filename: str | None = None


ListedPart: TypeAlias = ListedText | ListedImage | ListedFile


class ListedMessage(BaseModel):
    """A turn of the user, the developer or the system."""

    type: Literal["message"] = "message"
    id: str
    status: Literal["completed"] = "completed"
    role: Literal["user", "system", "developer"]
    content: list[ListedPart]


class ListedResult(BaseModel):
    """The result of a call."""

    type: Literal["function_call_output", "custom_tool_call_output"]
    id: str
    status: Literal["completed"] = "completed"
    call_id: str
    output: str | list[ListedPart]


ListedItem: TypeAlias = (
    ListedMessage | ListedResult | OutputMessage | OutputReasoning | OutputCall | OutputCustomCall
)


class ItemList(BaseModel):
    """The answer to GET /v1/responses/{id}/input_items."""

    object: Literal["list"] = "list"
    data: list[ListedItem]
    first_id: str
    last_id: str
    has_more: bool


LIST_PARAMETERS: list[dict[str, Any]] = [
    {
        "name": "order",
        "in": "query",
        "schema": {"type": "string", "enum": ["desc", "asc"], "default": "desc"},
    },
    {
        "name": "limit",
        "in": "query",
        "schema": {"type": "integer", "minimum": 1, "maximum": 100, "default": 20},
    },
    {"name": "after", "in": "query", "schema": {"type": "string"}},
    {
        "name": "include",
        "in": "query",
        "schema": {
            "type": "array",
            "items": {"type": "string", "enum": list(get_args(Includable))},
        },
    },
]
"""The parameters of the list, as they are described."""
