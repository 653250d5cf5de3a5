"""The form of an answer as it travels: OpenAI's response_format, and vLLM's structured_outputs."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StrictBool, model_validator
from pydantic_core import PydanticCustomError

# Names that other servers have, or had, for a part of structured_outputs.
ELSEWHERE = {
    "guided_json": "json",
    "guided_regex": "regex",
    "guided_choice": "choice",
    "guided_grammar": "grammar",
    "json_schema": "json",
    "regex": "regex",
    "ebnf": "grammar",
    "grammar": "grammar",
    "structural_tag": "structural_tag",
}


def refused(name: str | None, code: str, why: str) -> PydanticCustomError:
    """Return the error by which a validator refuses a parameter, with a code for programs.

    `name` is one of the object that is validated; None: what is validated is the parameter.
    """
    inside = () if name is None else (name,)
    return PydanticCustomError("refused", "{why}", {"inside": inside, "code": code, "why": why})


class JsonSchema(BaseModel):
    """A schema with its name; every answer follows it, with `strict` or without."""

    model_config = ConfigDict(extra="forbid", strict=True)

    name: Annotated[str, Field(max_length=64)]
    description: str | None = None
    schema_: Annotated[dict[str, Any], Field(alias="schema")]
    strict: bool | None = None


class ResponseFormat(BaseModel):
    """OpenAI's way to ask for a form."""

    model_config = ConfigDict(extra="forbid", strict=True)

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None

    @model_validator(mode="after")
    def _has_a_schema_or_needs_none(self) -> ResponseFormat:
        if self.type == "json_schema" and self.json_schema is None:
            why = "is missing; give it a name and a schema"
            raise refused("json_schema", "invalid_response_format", why)
        if self.type != "json_schema" and self.json_schema is not None:
            why = 'belongs to the type "json_schema", and to no other'
            raise refused("json_schema", "invalid_response_format", why)
        return self


class StructuredOutputs(BaseModel):
    """vLLM's way to ask for a form: exactly one of these."""

    model_config = ConfigDict(extra="forbid", strict=True)

    json_: Annotated[dict[str, Any] | str | None, Field(alias="json")] = None
    regex: str | None = None
    choice: Annotated[list[str], Field(fail_fast=True)] | None = None
    grammar: str | None = None
    json_object: StrictBool | None = None
    structural_tag: dict[str, Any] | str | None = None
