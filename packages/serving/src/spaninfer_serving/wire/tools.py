"""Tools and tool calls as they travel."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field

from spaninfer_serving.wire.fields import ObjectFields

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


ToolChoice = Literal["none", "auto", "required"] | NamedTool


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
