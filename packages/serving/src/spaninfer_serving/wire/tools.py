"""Tools and tool calls as they travel."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, Tag

from spaninfer_serving.wire.fields import ObjectFields, type_discriminator

MAX_TOOLS = 512
NAME = r"^[\w.\-]{1,128}$"


class FunctionDefinition(ObjectFields):
    """A function that the model may call, its parameters as a JSON schema.

    `strict` is accepted because clients send it by habit; the model is not held to the schema.
    """

    name: Annotated[str, Field(pattern=NAME)]
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(ObjectFields):
    """A tool; all tools are functions."""

    type: Literal["function"]
    function: FunctionDefinition


class FunctionName(ObjectFields):
    """A function by its name."""

    name: str


class NamedTool(ObjectFields):
    """The one tool that has to be called."""

    type: Literal["function"]
    function: FunctionName


class AllowedNames(ObjectFields):
    """Some of the tools, and whether one of them has to be called."""

    mode: Literal["auto", "required"]
    tools: Annotated[list[NamedTool], Field(min_length=1, max_length=MAX_TOOLS, fail_fast=True)]


class AllowedTools(ObjectFields):
    """The tools that may be called; the model sees the others as well."""

    type: Literal["allowed_tools"]
    allowed_tools: AllowedNames


ToolChoice = Annotated[
    Annotated[Literal["none", "auto", "required"], Tag("Word")]
    | Annotated[NamedTool, Tag("Kind:function")]
    | Annotated[AllowedTools, Tag("Kind:allowed_tools")],
    type_discriminator("a tool choice", "function", "allowed_tools", word="Word"),
]


class FunctionCall(ObjectFields):
    """A function's name, and its arguments as the text of a JSON object."""

    name: str
    arguments: str = "{}"


class ToolCall(ObjectFields):
    """A call in a message."""

    id: str
    type: Literal["function"] = "function"
    function: FunctionCall
    index: int | None = Field(
        default=None, exclude=True
    )  # clients that joined a stream send it back


class FunctionDelta(BaseModel):
    """The part of a call that a chunk adds: the name first, then pieces of the arguments."""

    name: str | None = None
    arguments: str


class ToolCallDelta(BaseModel):
    """The part that a chunk adds to the call of this index."""

    index: int
    id: str | None = None
    type: Literal["function"] | None = None
    function: FunctionDelta
