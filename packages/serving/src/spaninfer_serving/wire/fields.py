"""The base of all bodies: strict fields, refusals by name, and null for the default."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from functools import cache
from typing import Annotated, Any, ClassVar

from pydantic import (
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    GetJsonSchemaHandler,
    model_validator,
)
from pydantic_core import CoreSchema

from spaninfer_serving.wire.structured import ELSEWHERE, refused

# A list of a million wrong items is wrong at its first: a million findings would fill the memory.
Strings = Annotated[list[str], Field(fail_fast=True)]
Integers = Annotated[list[int], Field(fail_fast=True)]


def unknown(name: str, known: Iterable[str]) -> str:
    """Return what is said of a parameter that there is not, with the nearest that there is."""
    if name in ELSEWHERE:
        return f"is not a parameter this server knows; send structured_outputs.{ELSEWHERE[name]}"
    if name in _ADDRESSES:
        return f"is not a parameter here; {_ADDRESSES[name]} takes it"
    return f"is not a parameter this server knows{did_you_mean(name, known)}"


_ADDRESSES: Mapping[str, str] = {
    "messages": "/v1/chat/completions",
    "prompt": "/v1/completions",
    "input": "/v1/responses",
}
"""What a body is about, by the address that takes it: sent elsewhere, the address was mistaken."""


def did_you_mean(name: str, known: Iterable[str], similarity: float = 0.6) -> str:
    """Return a question to append to a refusal, empty where no name is near."""
    near = get_close_matches(name[:64], list(known), n=1, cutoff=similarity)  # longer than any name
    return f"; did you mean {near[0]!r}?" if near else ""


def type_discriminator(
    what: str, *kinds: str, absent: str | None = None, words: tuple[str, ...] = ()
) -> Discriminator:
    """Return what chooses among objects by `type`; their tags are "Kind:" and the type.

    `absent` is the type of an object that says none; where some `words` are taken, the tag of
    strings is "Word". Tags have capitals: wire/parse.py leaves them out of the paths of parameters.
    """
    objects = f"{', '.join(words)} and objects of type " if words else ""

    def tag_of(given: object) -> str | None:
        if isinstance(given, str):
            return "Word" if words else None
        found = given.get("type", absent) if isinstance(given, dict) else _type_of(given)
        return f"Kind:{found}" if found in kinds else None

    return Discriminator(
        tag_of,
        custom_error_type="unknown_type",
        custom_error_message=f"is not {what} this server takes; allowed are "
        f"{objects}{', '.join(kinds)}",
    )


def _type_of(given: object) -> object:
    return getattr(given, "type", None)


_ABOUT = ("title", "description", "default")  # keys of a schema that say nothing of the value
_IDLE = "Not supported: no other value is taken, and these change nothing"


class ObjectFields(BaseModel):
    """An object in a body, or the body itself.

    `not_supported`: parameters that the server does not act on, with the values that ask for
    nothing. Those are accepted, because clients send them; any other value is refused by name. A
    subclass that has a field of the name acts on it.
    """

    model_config = ConfigDict(extra="forbid", strict=True)

    not_supported: ClassVar[Mapping[str, tuple[object, ...]]] = {}

    @model_validator(mode="before")
    @classmethod
    def _leave_what_asks_for_something(cls, body: object) -> object:
        """Refuse what is not supported, and drop null, which clients send for any parameter."""
        if not isinstance(body, dict):
            return body
        known, not_supported = _names_of(cls)
        for name in not_supported & body.keys():
            if not any(_is_same(body[name], idle) for idle in cls.not_supported[name]):
                raise refused(name, "unsupported_parameter", "is not supported by this server")
        return {
            name: value
            for name, value in body.items()
            if name not in not_supported and (value is not None or name not in known)
        }

    @classmethod
    def __get_pydantic_json_schema__(
        cls, core: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        """Describe what is read: null too for any parameter that need not be given, and what is
        not supported with the values that ask for nothing.
        """
        schema = handler(core)
        if handler.mode == "validation":
            described = handler.resolve_ref_schema(schema)
            allow_null(described)
            of_object = described.setdefault("properties", {})
            for name in sorted(_names_of(cls)[1]):
                of_object[name] = {"description": _IDLE, "enum": list(cls.not_supported[name])}
        return schema


def allow_null(described: dict[str, Any]) -> None:
    """Say of an object that any parameter that need not be given may be null as well."""
    for name, schema in described.get("properties", {}).items():
        takes_null = schema.get("type") == "null" or {"type": "null"} in schema.get("anyOf", ())
        if name not in described.get("required", ()) and not takes_null:
            of_value = {key: schema.pop(key) for key in tuple(schema) if key not in _ABOUT}
            schema["anyOf"] = [of_value, {"type": "null"}]


class RequestFields(ObjectFields):
    """The body of a request."""

    @model_validator(mode="before")
    @classmethod
    def _refuse_the_unknown(cls, body: object) -> object:
        """Refuse one parameter that there is not: each would take 6 µs to report."""
        if isinstance(body, dict):
            known, _ = _names_of(cls)
            for name in body.keys() - known:
                raise refused(name, "unknown_parameter", unknown(name, known))
        return body


@cache
def _names_of(kind: type[ObjectFields]) -> tuple[frozenset[str], frozenset[str]]:
    """Return the names of all parameters of a body, and of those that are not acted on."""
    not_supported = frozenset(kind.not_supported.keys() - kind.model_fields.keys())
    names = {field.alias or name for name, field in kind.model_fields.items()}
    return not_supported | names, not_supported


def _is_same(given: object, value: object) -> bool:
    """Compare as JSON does, where 1 is not true."""
    return given == value and isinstance(given, bool) == isinstance(value, bool)
