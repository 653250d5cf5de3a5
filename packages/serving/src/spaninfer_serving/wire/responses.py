"""OpenAI's Responses API as it travels: requests and responses."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal, TypeAlias, get_args

from pydantic import (
    BaseModel,
    Field,
    Tag,
    field_validator,
    model_validator,
)

from spaninfer_serving.wire.chat import MAX_MESSAGES, Effort
from spaninfer_serving.wire.fields import ObjectFields, type_discriminator
from spaninfer_serving.wire.listed_items import Includable
from spaninfer_serving.wire.response_items import InputItem, OutputItem
from spaninfer_serving.wire.sampling import DrawFields
from spaninfer_serving.wire.structured import refused
from spaninfer_serving.wire.tools import MAX_TOOLS, NAME, ChoiceWord, TextInput


class ResponseFunction(ObjectFields):
    """A function that the model may call; `strict` is accepted, see wire/tools.py."""

    not_supported: ClassVar = {
        "allowed_callers": (None, ["direct"]),
        "async": (None, False),
        "defer_loading": (None, False),
        "output_schema": (None,),
    }

    type: Literal["function"]
    name: Annotated[str, Field(pattern=NAME)]
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class ResponseGrammar(ObjectFields):
    """A text that a grammar allows."""

    type: Literal["grammar"]
    syntax: Literal["lark", "regex"]
    definition: Annotated[str, Field(min_length=1)]


class ResponseCustomTool(ObjectFields):
    """A tool whose input is a text."""

    not_supported: ClassVar = {
        "allowed_callers": (None, ["direct"]),
        "async": (None, False),
        "defer_loading": (None, False),
    }

    type: Literal["custom"]
    name: Annotated[str, Field(pattern=NAME)]
    description: str | None = None
    format: (
        Annotated[
            Annotated[TextInput, Tag("Kind:text")]
            | Annotated[ResponseGrammar, Tag("Kind:grammar")],
            type_discriminator("a format of inputs", "text", "grammar"),
        ]
        | None
    ) = None


ResponseTool: TypeAlias = Annotated[
    Annotated[ResponseFunction, Tag("Kind:function")]
    | Annotated[ResponseCustomTool, Tag("Kind:custom")],
    type_discriminator("a tool", "function", "custom"),
]


class ResponseNamedTool(ObjectFields):
    """A tool by its name."""

    type: Literal["function", "custom"]
    name: str


class ResponseAllowedTools(ObjectFields):
    """The tools that may be called, and whether one has to be; the model sees all."""

    type: Literal["allowed_tools"]
    mode: Literal["auto", "required"]
    tools: Annotated[
        list[ResponseNamedTool], Field(min_length=1, max_length=MAX_TOOLS, fail_fast=True)
    ]


ToolChoice: TypeAlias = Annotated[
    Annotated[ChoiceWord, Tag("Word")]
    | Annotated[ResponseNamedTool, Tag("Kind:function")]
    | Annotated[ResponseNamedTool, Tag("Kind:custom")]
    | Annotated[ResponseAllowedTools, Tag("Kind:allowed_tools")],
    type_discriminator(
        "a tool choice", "function", "custom", "allowed_tools", words=get_args(ChoiceWord)
    ),
]


class TextFormat(ObjectFields):
    """The form of the answer's text."""

    type: Literal["text", "json_object", "json_schema"]
    name: Annotated[str, Field(max_length=64)] | None = None
    description: str | None = None
    schema_: Annotated[dict[str, Any] | None, Field(alias="schema")] = None
    strict: bool | None = None

    @model_validator(mode="after")
    def _has_a_schema_or_needs_none(self) -> TextFormat:
        asked = {"name": self.name, "schema": self.schema_}
        for name, value in asked.items():
            if self.type == "json_schema" and value is None:
                why = 'is missing; the type "json_schema" needs a name and a schema'
                raise refused(name, "invalid_response_format", why)
            if self.type != "json_schema" and value is not None:
                why = 'belongs to the type "json_schema", and to no other'
                raise refused(name, "invalid_response_format", why)
        return self


class TextOptions(ObjectFields):
    """Options of the answer's text."""

    format: TextFormat | None = None
    verbosity: Literal["medium"] | None = None  # the default; others are refused


class ReasoningOptions(ObjectFields):
    """Reasoning options; a summary is the reasoning itself, in the item's content."""

    not_supported: ClassVar = {"context": (None, "auto"), "mode": (None, "standard")}

    effort: Effort | None = None
    summary: Literal["auto"] | None = None
    generate_summary: Literal["auto"] | None = None


class ResponseStreamOptions(ObjectFields):
    """Extra content of a stream beside the answer."""

    include_obfuscation: bool = False  # accepted: nothing is padded here either way


class ResponsesRequest(DrawFields):
    """The body of POST /v1/responses."""

    not_supported: ClassVar = {
        "access_programs": (None,),
        "background": (None, False),
        "context_management": (None, []),
        "conversation": (None,),
        "image": (None,),
        "max_tool_calls": (None,),
        "moderation": (None,),
        "personality": (None,),
        "prompt": (None,),
        "top_logprobs": (None, 0),
        "truncation": (None, "disabled"),
    }

    input: str | Annotated[list[InputItem], Field(max_length=MAX_MESSAGES, fail_fast=True)]
    instructions: str | None = None
    previous_response_id: str | None = None
    max_output_tokens: int | None = None
    tools: Annotated[list[ResponseTool], Field(max_length=MAX_TOOLS, fail_fast=True)] = Field(
        default_factory=list
    )
    tool_choice: ToolChoice = "auto"
    parallel_tool_calls: bool = True
    text: TextOptions = Field(default_factory=TextOptions)
    reasoning: ReasoningOptions = Field(default_factory=ReasoningOptions)
    include: list[Includable] = Field(default_factory=list)
    store: bool = True
    stream_options: ResponseStreamOptions | None = None
    metadata: Annotated[dict[str, str], Field(max_length=16)] = Field(default_factory=dict)

    # accepted because clients send them; they cannot change an answer here
    user: str | None = None
    service_tier: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_options: dict[str, Any] | None = None
    prompt_cache_retention: str | None = None

    @field_validator("input")
    @classmethod
    def _says_something(cls, value: str | list[InputItem]) -> str | list[InputItem]:
        if value == []:
            raise refused(None, "invalid_value", "has no items; give one at least, or a text")
        return value


class InputTokensDetails(BaseModel):
    """The prompt's tokens by origin."""

    cached_tokens: int
    cache_write_tokens: int = 0


class OutputTokensDetails(BaseModel):
    """The answer's tokens by use; those of reasoning as the tokenizer counts its text."""

    reasoning_tokens: int


class ResponseUsage(BaseModel):
    """Token counts of a whole request."""

    input_tokens: int
    input_tokens_details: InputTokensDetails
    output_tokens: int
    output_tokens_details: OutputTokensDetails
    total_tokens: int


class IncompleteDetails(BaseModel):
    """Why an answer is not whole."""

    reason: Literal["max_output_tokens"]


class ResponseObject(BaseModel):
    """A response: what was asked, and what has become of it so far."""

    id: str
    object: Literal["response"] = "response"
    created_at: int
    completed_at: int | None = None
    status: Literal["in_progress", "completed", "incomplete"]
    background: bool = False
    error: None = None
    incomplete_details: IncompleteDetails | None = None
    instructions: str | None
    max_output_tokens: int | None
    metadata: dict[str, str]
    model: str
    output: list[OutputItem] = Field(default_factory=list)
    parallel_tool_calls: bool
    previous_response_id: str | None
    reasoning: ReasoningOptions
    store: bool
    temperature: float
    text: dict[str, Any]
    tool_choice: ToolChoice
    tools: list[ResponseTool]
    top_p: float
    truncation: Literal["disabled"] = "disabled"
    usage: ResponseUsage | None = None


class InputTokens(BaseModel):
    """The answer to POST /v1/responses/input_tokens: the number of tokens of a prompt."""

    object: Literal["response.input_tokens"] = "response.input_tokens"
    input_tokens: int


class DeletedResponse(BaseModel):
    """The answer to DELETE /v1/responses/{id}."""

    id: str
    object: Literal["response"] = "response"
    deleted: bool = True
