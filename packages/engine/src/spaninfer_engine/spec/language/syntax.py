"""The tree of a computed spec value; `parse` makes it, `values` computes it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

Scalar: TypeAlias = bool | int | float | str | None


@dataclass(frozen=True, slots=True)
class Constant:
    """A number, a text, true, false or null."""

    value: Scalar


@dataclass(frozen=True, slots=True)
class Name:
    """A name of [let] or [dims], a config key, or the layer index."""

    path: str


@dataclass(frozen=True, slots=True)
class Items:
    """A list."""

    items: tuple[Expr, ...]


@dataclass(frozen=True, slots=True)
class Subscript:
    """One item of a list."""

    items: Expr
    index: Expr


@dataclass(frozen=True, slots=True)
class Unary:
    """`not x` or `-x`."""

    operator: str
    operand: Expr


@dataclass(frozen=True, slots=True)
class Binary:
    """Two operands around an arithmetic, comparing or logical operator."""

    operator: str
    left: Expr
    right: Expr


@dataclass(frozen=True, slots=True)
class Condition:
    """`value if test else other`."""

    test: Expr
    value: Expr
    other: Expr


Expr: TypeAlias = Constant | Name | Items | Subscript | Unary | Binary | Condition


@dataclass(frozen=True, slots=True)
class Key:
    """A config key as an alternative: absent or null means the next one."""

    path: str


@dataclass(frozen=True, slots=True)
class Guarded:
    """An alternative that counts only where the config key `flag` is true."""

    flag: str
    value: Alternative


Alternative: TypeAlias = Key | Guarded | Constant | Items | Expr


@dataclass(frozen=True, slots=True)
class Chain:
    """Alternatives of which the first present one is taken."""

    alternatives: tuple[Alternative, ...]


class BadValue(Exception):
    """A value that cannot be read or computed; who knows its file, section and key adds them."""
