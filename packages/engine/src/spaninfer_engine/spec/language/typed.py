"""Types of spec values: one small object per type of the vocabulary."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import cast

from spaninfer_engine.errors import shown
from spaninfer_engine.spec.language.syntax import BadValue


@dataclass(frozen=True, slots=True)
class Type:
    """A name for people, and a function that returns the value or raises BadValue."""

    name: str
    accept: Callable[[object], object]


MAX_INDEX = 2**31 - 1  # of a token, or a position: kernels hold both in 32 bits
MAX_NUMBER = 1e30  # far from what float32 ends at, so that a few factors may meet


def size(least: int = 1, most: int = 2**40) -> Type:
    """Return the type of integers within bounds: no product of a few overflows a kernel's 64 bits.

    Whether there is memory for them is asked when all sizes are known.
    """

    def accept(value: object) -> int:
        number = _integer(value)
        if not least <= number <= most:
            raise BadValue(f"expected an integer from {least} to {most}, got {shown(number)}")
        return number

    return Type("integer" if least == 1 else f"integer from {least}", accept)


def side(most: int) -> Type:
    """Return the type of a square's side, which may be said twice: [14, 14]."""
    one = size(most=most)

    def accept(value: object) -> int:
        if isinstance(value, tuple) and len(value) == 2 and value[0] == value[1]:
            value = value[0]
        if isinstance(value, tuple):
            raise BadValue(f"expected a square's side, got {shown(value)}")
        return cast(int, one.accept(value))

    return Type("integer, or two that are equal", accept)


def number(least: float, most: float = MAX_NUMBER) -> Type:
    """Return the type of numbers within bounds."""

    def accept(value: object) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise BadValue(f"expected a number, got {shown(value)}")
        if not least <= value <= most:  # NaN is neither
            raise BadValue(f"expected a number from {least:g} to {most:g}, got {shown(value)}")
        return float(value)

    bounds = "" if least == -MAX_NUMBER else f" from {least:g} to {most:g}"
    return Type(f"number{bounds}", accept)


def _integer(value: object) -> int:
    whole = isinstance(value, int) or (isinstance(value, float) and value.is_integer())
    if isinstance(value, bool) or not whole:
        raise BadValue(f"expected an integer, got {shown(value)}")
    return int(value)  # type: ignore[call-overload, no-any-return]  # whole, as just seen


def _flag(value: object) -> bool:
    if not isinstance(value, bool):
        raise BadValue(f"expected true or false, got {shown(value)}")
    return value


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise BadValue(f"expected a text, got {shown(value)}")
    return value


def _table(value: object) -> Mapping[str, object]:
    if not isinstance(value, Mapping):
        raise BadValue(f"expected a table, got {shown(value)}")
    return value


def _names(value: object) -> tuple[object, ...]:
    return (value,) if isinstance(value, str) else _tuple_of(_text, value)


def _tuple_of(item: Callable[[object], object], value: object) -> tuple[object, ...]:
    if not isinstance(value, tuple):
        raise BadValue(f"expected a list, got {shown(value)}")
    return tuple(item(each) for each in value)


SIZE = size()
COUNT = size(0)
INDEX = size(most=MAX_INDEX)
NUMBER = number(-MAX_NUMBER)
EPSILON = number(1e-30, 1.0)
POSITIVE = number(1e-6, 1e6)
BASE = number(1.0)
FRACTION = number(1e-6, 1.0)
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
            raise BadValue(f"expected one of {', '.join(words)}, got {shown(value)}")
        return str(word)

    return Type(" | ".join(f"`{word}`" for word in words), accept)
