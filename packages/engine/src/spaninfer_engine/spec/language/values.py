"""The evaluator of parsed spec values, over names and config keys.

Arithmetic is for numbers, order is for numbers, membership is for lists. Results are bounded, so
that a spec can neither fill memory nor take time.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from typing import Protocol

from spaninfer_engine.spec.language.syntax import (
    Alternative,
    BadValue,
    Binary,
    Chain,
    Condition,
    Constant,
    Expr,
    Guarded,
    Items,
    Key,
    Name,
    Subscript,
    Unary,
)

MAX_BITS = 128  # of any integer on the way; parameter counts need fewer than 64


class Lookup(Protocol):
    """The names that a value may refer to."""

    def name(self, path: str) -> object:
        """Return what an expression's name stands for; BadValue if nothing is called so."""

    def key(self, path: str) -> object:
        """Return the value of a config key, None if it is absent."""


def evaluate(tree: Chain | Expr, lookup: Lookup) -> object:
    """Return the value of a tree: None, bool, int, float, str, a tuple of them, or a table."""
    match tree:
        case Chain():
            return _first_present(tree, lookup)
        case Constant(value):
            return value
        case Name(path):
            return lookup.name(path)
        case Items(items):
            return tuple(evaluate(item, lookup) for item in items)
        case Subscript(items, index):
            return _item(evaluate(items, lookup), evaluate(index, lookup))
        case Unary("not", operand):
            return not evaluate(operand, lookup)
        case Unary("-", operand):
            return -_number("-", evaluate(operand, lookup))
        case Binary("and", left, right):
            return bool(evaluate(left, lookup)) and bool(evaluate(right, lookup))
        case Binary("or", left, right):
            return bool(evaluate(left, lookup)) or bool(evaluate(right, lookup))
        case Binary(sign, left, right):
            return _binary(sign, evaluate(left, lookup), evaluate(right, lookup))
        case Condition(test, value, other):
            return evaluate(value if evaluate(test, lookup) else other, lookup)
        case _:
            raise AssertionError(tree)


def mentions(tree: Chain | Alternative) -> Iterator[Key | Name]:
    """Yield every config key and name in a tree, also those that its value does not need."""
    match tree:
        case Key() | Name():
            yield tree
        case Guarded(flag, value):
            yield Key(flag)
            yield from mentions(value)
        case Chain(alternatives):
            for each in alternatives:
                yield from mentions(each)
        case Items(items):
            for item in items:
                yield from mentions(item)
        case Subscript(first, second) | Binary(_, first, second):
            yield from mentions(first)
            yield from mentions(second)
        case Unary(_, operand):
            yield from mentions(operand)
        case Condition(test, value, other):
            yield from mentions(test)
            yield from mentions(value)
            yield from mentions(other)


def _first_present(chain: Chain, lookup: Lookup) -> object:
    for alternative in chain.alternatives:
        while isinstance(alternative, Guarded) and lookup.key(alternative.flag):
            alternative = alternative.value
        match alternative:
            case Guarded():
                continue
            case Key(path):
                if (value := lookup.key(path)) is not None:
                    return value
            case _:
                return evaluate(alternative, lookup)
    wanted = " and no ".join(key.path for key in mentions(chain))
    raise BadValue(f"config.json has no {wanted}")


_ARITHMETIC: dict[str, Callable[[float, float], float]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
    "//": operator.floordiv,
    "%": operator.mod,
}
_ORDER: dict[str, Callable[[float, float], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


def _binary(sign: str, left: object, right: object) -> object:
    match sign:
        case "==":
            return left == right
        case "!=":
            return left != right
        case "in":
            if not isinstance(right, tuple):
                raise BadValue(f"`in` wants a list, got {right!r}")
            return left in right
    first, second = _number(sign, left), _number(sign, right)
    if sign in _ORDER:
        return _ORDER[sign](first, second)
    try:
        return _bounded(_power(first, second) if sign == "**" else _ARITHMETIC[sign](first, second))
    except ArithmeticError as error:
        raise BadValue(f"{left!r} {sign} {right!r}: {error}") from error


def _power(base: float, exponent: float) -> float:
    if isinstance(base, int) and isinstance(exponent, int):
        bits = base.bit_length() * abs(exponent)
        if bits > MAX_BITS:
            raise OverflowError(f"more than {MAX_BITS} bits")
    result: object = base**exponent
    if isinstance(result, complex):
        raise ArithmeticError("not a real number")
    assert isinstance(result, int | float)
    return result


def _bounded(result: float) -> float:
    if isinstance(result, int) and result.bit_length() > MAX_BITS:
        raise OverflowError(f"more than {MAX_BITS} bits")
    return result


def _number(sign: str, value: object) -> int | float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise BadValue(f"`{sign}` wants numbers, got {value!r}")
    return value


def _item(items: object, index: object) -> object:
    if not isinstance(items, tuple) or isinstance(index, bool) or not isinstance(index, int):
        raise BadValue(f"cannot take item {index!r} of {items!r}")
    if not 0 <= index < len(items):
        raise BadValue(f"there is no item {index}: the list has {len(items)}")
    return items[index]
