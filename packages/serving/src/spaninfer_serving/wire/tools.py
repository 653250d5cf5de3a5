"""Tools and tool calls as they travel."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias, get_args

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


class FunctionTool(ObjectFields):
    """A tool that is a function."""

    type: Literal["function"]
    function: FunctionDefinition

    @property
    def name(self) -> str:
        """The name of the function."""
        return self.function.name


class TextInput(ObjectFields):
    """Any text."""

    type: Literal["text"]


class InputGrammar(ObjectFields):
    """The grammar of a text: Lark's syntax as llguidance takes it, or a regex of Rust's crate."""

    syntax: Literal["lark", "regex"]
    definition: Annotated[str, Field(min_length=1)]


class GrammarInput(ObjectFields):
    """A text that a grammar allows."""

    type: Literal["grammar"]
    grammar: InputGrammar


class CustomDefinition(ObjectFields):
    """A tool whose input is a text."""

    name: Annotated[str, Field(pattern=NAME)]
    description: str | None = None
    format: (
        Annotated[
            Annotated[TextInput, Tag("Kind:text")] | Annotated[GrammarInput, Tag("Kind:grammar")],
            type_discriminator("a format of inputs", "text", "grammar"),
        ]
        | None
    ) = None


class CustomTool(ObjectFields):
    """A tool whose input is a text instead of arguments."""

    type: Literal["custom"]
    custom: CustomDefinition

    @property
    def name(self) -> str:
        """The name of the tool."""
        return self.custom.name

    @property
    def grammar(self) -> InputGrammar | None:
        """The grammar of its input, where that is not any text."""
        form = self.custom.format
        return form.grammar if isinstance(form, GrammarInput) else None


Tool = Annotated[
    Annotated[FunctionTool, Tag("Kind:function")] | Annotated[CustomTool, Tag("Kind:custom")],
    type_discriminator("a tool", "function", "custom"),
]


class ToolName(ObjectFields):
    """A tool by its name."""

    name: str


class NamedFunction(ObjectFields):
    """A function, as a choice names it."""

    type: Literal["function"]
    function: ToolName

    @property
    def name(self) -> str:
        """The name of the function."""
        return self.function.name


class NamedCustom(ObjectFields):
    """A custom tool, as a choice names it."""

    type: Literal["custom"]
    custom: ToolName

    @property
    def name(self) -> str:
        """The name of the tool."""
        return self.custom.name


NamedTool: TypeAlias = NamedFunction | NamedCustom


class AllowedNames(ObjectFields):
    """Some of the tools, and whether one of them has to be called."""

    mode: Literal["auto", "required"]
    tools: Annotated[
        list[
            Annotated[
                Annotated[NamedFunction, Tag("Kind:function")]
                | Annotated[NamedCustom, Tag("Kind:custom")],
                type_discriminator("a tool", "function", "custom"),
            ]
        ],
        Field(min_length=1, max_length=MAX_TOOLS, fail_fast=True),
    ]


class AllowedTools(ObjectFields):
    """The tools that may be called; the model sees the others as well."""

    type: Literal["allowed_tools"]
    allowed_tools: AllowedNames


ChoiceWord = Literal["none", "auto", "required"]

ToolChoice = Annotated[
    Annotated[ChoiceWord, Tag("Word")]
    | Annotated[NamedFunction, Tag("Kind:function")]
    | Annotated[NamedCustom, Tag("Kind:custom")]
    | Annotated[AllowedTools, Tag("Kind:allowed_tools")],
    type_discriminator(
        "a tool choice", "function", "custom", "allowed_tools", words=get_args(ChoiceWord)
    ),
]


class FunctionCall(ObjectFields):
    """A function's name, and its arguments as the text of a JSON object."""

    name: str
    arguments: str = "{}"


class _Call(ObjectFields):
    id: str
    index: int | None = Field(
        default=None, exclude=True
    )  # clients that joined a stream send it back


class ToolCall(_Call):
    """A call of a function in a message."""

    type: Literal["function"] = "function"
    function: FunctionCall

    @property
    def name(self) -> str:
        """The name of the function."""
        return self.function.name


class CustomInput(ObjectFields):
    """A custom tool's name, and its input."""

    name: str
    input: str


class CustomToolCall(_Call):
    """A call of a custom tool in a message."""

    type: Literal["custom"] = "custom"
    custom: CustomInput

    @property
    def name(self) -> str:
        """The name of the tool."""
        return self.custom.name


AnyToolCall = Annotated[
    Annotated[ToolCall, Tag("Kind:function")] | Annotated[CustomToolCall, Tag("Kind:custom")],
    type_discriminator("a call", "function", "custom", absent="function"),
]


class CustomDelta(BaseModel):
    """The part of a custom tool's call that a chunk adds: the name first, then pieces of input."""

    name: str | None = None
    input: str


class FunctionDelta(BaseModel):
    """The part of a call that a chunk adds: the name first, then pieces of the arguments."""

    name: str | None = None
    arguments: str


class ToolCallDelta(BaseModel):
    """The part that a chunk adds to the call of this index."""

    index: int
    id: str | None = None
    type: Literal["function", "custom"] | None = None
    function: FunctionDelta | None = None
    custom: CustomDelta | None = None
