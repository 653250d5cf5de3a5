"""Structured output: the form that an answer must have, as callers state it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from spaninfer_engine.errors import InvalidSampling

# Of a schema, regex or grammar, or of all choices; 10,000 of 20 bytes fit.
MAX_GRAMMAR_BYTES = 1 << 18

Kind = Literal["json_object", "json_schema", "regex", "choice", "grammar", "structural_tag"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StructuredOutput:
    """The form of an answer: exactly one of the fields. Refuses what is no such form by name.

    Schemas and tags are kept as JSON text, so that what the caller does to them later has no
    effect. A class with `model_json_schema`, as pydantic's models, stands for its schema.
    """

    json_object: bool | None = None  # any JSON object
    json_schema: Mapping[str, Any] | str | type | None = None  # a str is JSON text
    regex: str | None = None  # that the whole answer matches, in the syntax of Rust's regex crate
    choice: Sequence[str] | None = None  # the whole answer is one of these
    grammar: str | None = None  # in Lark's syntax, or llama.cpp's GBNF
    structural_tag: Mapping[str, Any] | str | None = None  # parts of the answer between tags

    def __post_init__(self) -> None:
        given = [name for name in KINDS if getattr(self, name) is not None]
        if len(given) != 1:
            got = " and ".join(given) or "nothing"
            raise InvalidSampling("structured output", got, f"exactly one of {', '.join(KINDS)}")
        (name,) = given
        object.__setattr__(self, name, _CHECKS[name](name, getattr(self, name)))
        num_bytes = len(self.source.encode(errors="surrogatepass"))
        if num_bytes > MAX_GRAMMAR_BYTES:
            raise InvalidSampling(name, f"{num_bytes} bytes", f"at most {MAX_GRAMMAR_BYTES}")

    @property
    def kind(self) -> Kind:
        """The name of the field that is set."""
        return next(each for each in KINDS if getattr(self, each) is not None)

    @property
    def source(self) -> str:
        """The form as text; JSON for schemas, tags and choices."""
        value = getattr(self, self.kind)
        return value if isinstance(value, str) else json.dumps(value)


def _true(name: str, value: object) -> bool:
    if value is not True:
        raise InvalidSampling(name, value, "True, for any JSON object; or leave it out")
    return value


def _text(name: str, value: object) -> str:
    if not isinstance(value, str) or not value:
        raise InvalidSampling(name, value, "a text that is not empty")
    return value


def _choices(name: str, values: object) -> tuple[str, ...]:
    if (
        not isinstance(values, Sequence)
        or isinstance(values, str)
        or not values
        or not all(isinstance(each, str) and each for each in values)
    ):
        raise InvalidSampling(name, values, "a list of texts, none of them empty")
    return tuple(values)


def _json_text(name: str, value: object) -> str:
    made = getattr(value, "model_json_schema", None)
    try:
        text = value if isinstance(value, str) else json.dumps(made() if made else _plain(value))
        is_object = isinstance(json.loads(text), dict)
    except (TypeError, ValueError, RecursionError) as wrong:
        raise InvalidSampling(name, value, f"a JSON object ({wrong})") from wrong
    if not is_object:
        raise InvalidSampling(name, value, "a JSON object")
    return text


def _plain(value: object) -> object:
    return dict(value) if isinstance(value, Mapping) else value


_CHECKS: dict[Kind, Any] = {
    "json_object": _true,
    "json_schema": _json_text,
    "regex": _text,
    "choice": _choices,
    "grammar": _text,
    "structural_tag": _json_text,
}

KINDS: tuple[Kind, ...] = tuple(_CHECKS)
"""The names of the forms."""
