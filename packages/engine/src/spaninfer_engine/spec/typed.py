"""What a spec value must be once it is computed: one small object per type of the vocabulary."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import isfinite

from spaninfer_engine.spec.syntax import BadValue


@dataclass(frozen=True, slots=True)
class Type:
    """A name for people, and a function that returns the value or raises BadValue."""

    name: str
    accept: Callable[[object], object]


def size(least: int = 1, most: int = 2**40) -> Type:
    """Return the type of integers within bounds; they keep a config from filling memory."""

    def accept(value: object) -> int:
        number = _integer(value)
        if not least <= number <= most:
            raise BadValue(f"expected an integer from {least} to {most}, got {number}")
        return number

    return Type("integer" if least == 1 else f"integer from {least}", accept)


def _integer(value: object) -> int:
    whole = isinstance(value, int) or (isinstance(value, float) and value.is_integer())
    if isinstance(value, bool) or not whole:
        raise BadValue(f"expected an integer, got {value!r}")
    return int(value)  # type: ignore[call-overload, no-any-return]  # whole, as just seen


def _number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not isfinite(value):
        raise BadValue(f"expected a number, got {value!r}")
    return float(value)


def _flag(value: object) -> bool:
    if not isinstance(value, bool):
        raise BadValue(f"expected true or false, got {value!r}")
    return value


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise BadValue(f"expected a text, got {value!r}")
    return value


def _table(value: object) -> Mapping[str, object]:
    if not isinstance(value, Mapping):
        raise BadValue(f"expected a table, got {value!r}")
    return value


def _names(value: object) -> tuple[object, ...]:
    return (value,) if isinstance(value, str) else _tuple_of(_text, value)


def _tuple_of(item: Callable[[object], object], value: object) -> tuple[object, ...]:
    if not isinstance(value, tuple):
        raise BadValue(f"expected a list, got {value!r}")
    return tuple(item(each) for each in value)


INTEGER = Type("integer", _integer)
SIZE = size()
COUNT = size(0)
NUMBER = Type("number", _number)
FLAG = Type("true or false", _flag)
TEXT = Type("text", _text)
TABLE = Type("table", _table)
INTEGERS = Type("list of integers", lambda value: _tuple_of(_integer, value))
TEXTS = Type("list of texts", lambda value: _tuple_of(_text, value))
NAMES = Type("name, or list of names", _names)


def optional(type_: Type) -> Type:
    """Return the type that also takes null."""
    return Type(f"{type_.name}, or null", lambda v: None if v is None else type_.accept(v))


def choice(*words: str, aliases: Mapping[str, str] | None = None) -> Type:
    """Return the type of one of some words; an alias is another spelling of one."""
    others = dict(aliases or {})

    def accept(value: object) -> str:
        word = others.get(value, value) if isinstance(value, str) else value
        if word not in words:
            raise BadValue(f"expected one of {', '.join(words)}, got {value!r}")
        return str(word)

    return Type(" | ".join(f"`{word}`" for word in words), accept)
