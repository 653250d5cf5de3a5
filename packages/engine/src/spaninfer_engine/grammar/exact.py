"""Exact schemas: those in which llguidance keeps numbers and counts as they are written.

llguidance reads bounds as float64 and makes 64-bit integers of them, and recurses without end at
the lowest of these. Before it sees a schema, bounds are written so that what it makes of them is
right, and what cannot be written so is refused by its place.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from decimal import Decimal
from fractions import Fraction
from itertools import product
from typing import Any, TypeGuard

from spaninfer_engine.grammar.schema import ANNOTATIONS, Place, every_part, written

INT64_MAX = 2**63 - 1
LARGEST = 2**63 - 1024  # the largest float64 that is a 64-bit integer
MAX_COUNT = 2**31 - 1  # of characters, items and properties; no answer has as many
MAX_STEP = 2**32 - 1  # of the digits of a multipleOf
SMALLEST = 1e-100  # of bounds that are not 0: llguidance nests brackets for each digit
CLOSEST = -20  # a power of ten: how close to an exclusive 0 numbers are written

Number = int | float
_Multiple = tuple[Fraction, Place]
_LEAST = ("minLength", "minItems", "minProperties")
_MOST = ("maxLength", "maxItems", "maxProperties")
_APPLICATORS = frozenset(("allOf", "anyOf", "oneOf", "$ref"))


class InexactSchema(ValueError):
    """A schema that llguidance would follow to answers that do not conform, or not at all."""


def exact(schema: Any) -> Any:
    """Return a schema, changed in place, whose answers conform to what it was; or refuse it."""
    parts = list(every_part(schema))
    multiples: list[_Multiple] = []
    for place, part in parts:
        _count(place, part)
        _check_literals(place, part)
        if _may_be(part, "object"):
            _check_names(place, part)
        if _may_be(part, "number", "integer"):
            multiples += _bound(place, part)
    _check_products(parts, multiples)
    return schema


def has_other_names(schema: Any) -> bool:
    """May an object of a schema have names beside those that are listed?

    There llguidance takes a listed one, too, where it is written with escapes (\\u0061 for a).
    """
    return any(
        part.get("additionalProperties") is not False
        and any(part.get(key) for key in ("properties", "required", "patternProperties"))
        for _, part in every_part(schema)
    )


def _may_be(part: dict[str, Any], *names: str) -> bool:
    types = part.get("type", list(names))
    return any(name in (types if isinstance(types, list) else [types]) for name in names)


def _is_number(value: object) -> TypeGuard[Number]:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _refuse(place: Place, value: object, allowed: str) -> InexactSchema:
    return InexactSchema(f"{written(place)} is {value}; {allowed}")


# Counts, names and literals


def _count(place: Place, part: dict[str, Any]) -> None:
    """Cut counts down to what answers can reach."""
    for key in (key for key in _LEAST if _is_number(part.get(key)) and part[key] > MAX_COUNT):
        raise _refuse((*place, key), part[key], f"at most {MAX_COUNT}: no answer is as long")
    for key in (key for key in _MOST if _is_number(part.get(key)) and part[key] > MAX_COUNT):
        part[key] = MAX_COUNT


def _check_names(place: Place, part: dict[str, Any]) -> None:
    """Refuse a minProperties that a name that comes twice could meet.

    The first name that is not listed differs from those that are required; others may repeat it.
    """
    least, required = part.get("minProperties"), part.get("required", [])
    if not _is_number(least) or not isinstance(required, list):
        return
    most = len({name for name in required if isinstance(name, str)}) + 1
    if least > most:
        raise _refuse(
            (*place, "minProperties"),
            least,
            f"at most {most}, the number of required names and one: a grammar cannot tell whether "
            "other names repeat; list more in properties and required",
        )


def _check_literals(place: Place, part: dict[str, Any]) -> None:
    """Refuse numbers of const and enum that are not float64, or beyond 64-bit integers."""
    pending = [((*place, key), part[key]) for key in ("const", "enum") if key in part]
    while pending:
        at, value = pending.pop()
        if isinstance(value, dict):
            pending += [((*at, name), each) for name, each in value.items()]
        elif isinstance(value, list):
            pending += [((*at, index), each) for index, each in enumerate(value)]
        elif _is_number(value) and not (isinstance(value, int) and value == INT64_MAX):
            _check_number(at, value)
            if isinstance(value, float) and not _is_read(value):
                raise _refuse(at, value, "digits are kept to the 15th; write no more of them")


def _check_number(place: Place, value: Number) -> None:
    if not -LARGEST <= value <= LARGEST:  # nor NaN
        raise _refuse(place, value, f"numbers are kept from {-LARGEST} to {LARGEST}")
    if int(value) != int(float(value)):
        near = int(float(value))
        other = int(math.nextafter(near, math.inf if near < value else -math.inf))
        low, high = sorted((near, other))
        raise _refuse(place, value, f"beyond 2**53 only float64 is kept, such as {low} and {high}")


# Bounds


def _bound(place: Place, part: dict[str, Any]) -> Iterator[_Multiple]:
    """Write the bounds of numbers as llguidance keeps them; yield the step, if there is one."""
    keys = ("minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum", "multipleOf")
    if any(key in part and not isinstance(part[key], int | float) for key in keys):
        return  # for llguidance to refuse
    is_integer = not _may_be(part, "number")
    step = _step(place, part)
    found = [_limit(part, side) for side in ("minimum", "maximum")]
    if step is not None and None not in found and _write_multiples(part, step, is_integer):
        found = [None, None]
    for side, limit, other in zip(("minimum", "maximum"), found, found[::-1], strict=True):
        if limit is not None:
            name, value, is_open = limit
            made = (
                _integer((*place, name), value, is_open, side)
                if is_integer
                else _real((*place, name), value, is_open, side, other[1] if other else None)
            )
            _write(part, side, *made)
    if is_integer:
        _close_far(part)
    if step is not None:
        yield step, (*place, "multipleOf")


def _exclusive(side: str) -> str:
    return f"exclusive{side.capitalize()}"


def _limit(part: dict[str, Any], side: str) -> tuple[str, Number, bool] | None:
    """Return the tightest bound of a side: its keyword, its value, and if it is exclusive."""
    closed, opened = part.get(side), part.get(_exclusive(side))
    if isinstance(opened, bool):  # of draft 4
        opened = closed if opened else None
    found: list[tuple[str, Number, bool]] = []
    if _is_number(closed):
        found.append((side, closed, False))
    if _is_number(opened):
        found.append((_exclusive(side), opened, True))
    sign = 1 if side == "minimum" else -1
    return max(found, key=lambda each: (sign * each[1], each[2]), default=None)


def _write(part: dict[str, Any], side: str, value: Number, is_open: bool) -> None:
    for key in (side, _exclusive(side)):
        part.pop(key, None)
    part[_exclusive(side) if is_open else side] = value


def _integer(place: Place, value: Number, is_open: bool, side: str) -> tuple[Number, bool]:
    """Return an inclusive bound of integers; where it is beyond 64 bits, the last one before."""
    if isinstance(value, float) and not math.isfinite(value):
        raise _refuse(place, value, "a bound is a finite number")
    if side == "minimum":
        bound = max(math.floor(value) + 1 if is_open else math.ceil(value), -LARGEST)
    else:
        bound = math.ceil(value) - 1 if is_open else math.floor(value)
        if bound >= INT64_MAX:
            return INT64_MAX, False  # as float64 it is 2**63, of which llguidance makes this
    _check_number(place, bound)
    return bound, False


def _close_far(part: dict[str, Any]) -> None:
    """Bound integers of 19 digits on both sides: llguidance has no larger ones."""
    if part.get("minimum", 0) >= 10**18:
        part.setdefault("maximum", INT64_MAX)
    if part.get("maximum", 0) <= -(10**18):
        part.setdefault("minimum", -LARGEST)


def _real(
    place: Place, value: Number, is_open: bool, side: str, other: Number | None
) -> tuple[Number, bool]:
    """Return a bound of numbers.

    llguidance takes a whole number itself for one above it, where the other bound is less than 1
    farther from 0, and adds 1 to bounds of integers as float64: there the next float64 is the
    inclusive bound, and beside 0 a power of ten.
    """
    _check_number(place, value)
    if 0 < abs(value) < SMALLEST:
        raise _refuse(place, value, f"bounds are kept down to {SMALLEST:g}, and 0")
    outward = value if side == "minimum" else -value
    towards = math.inf if side == "minimum" else -math.inf
    if not is_open or value % 1 or (outward < 0 and abs(value) < 2**53):
        return (value, is_open) if _is_read(value) else (_read_next(value, towards), False)
    if value:
        return _read_next(value, towards), False
    least = min(abs(other), 1.0) if other else 1.0
    closest = float(f"1e{math.floor(math.log10(max(least, SMALLEST))) + CLOSEST}")
    return math.copysign(closest, towards), False


def _read_next(value: Number, towards: float) -> Number:
    """Return the next float64 that llguidance reads as it is."""
    value = math.nextafter(value, towards)
    while not _is_read(value):
        value = math.nextafter(value, towards)
    return int(value) if abs(value) >= 2**53 else value


# Multiples


def _step(place: Place, part: dict[str, Any]) -> Fraction | None:
    """Return the exact multipleOf; refuse one of which llguidance makes another."""
    value = part.get("multipleOf")
    if not _is_number(value):
        return None
    place = (*place, "multipleOf")
    if not 0 < value <= MAX_STEP:
        raise _refuse(place, value, f"a step is above 0, and at most {MAX_STEP}")
    step = Fraction(Decimal(repr(value)))
    read, digits = float(value), 0
    while read % 1:
        read, digits = read * 10, digits + 1
    if read > MAX_STEP or Fraction(int(read), 10**digits) != step or not _is_read(value):
        raise _refuse(place, value, "steps of so many digits are not kept; write fewer")
    return step


def _is_read(value: Number) -> bool:
    """Does llguidance read a number of JSON as this float64? It divides digits by a power of 10."""
    _, digits, exponent = Decimal(repr(value)).as_tuple()
    assert isinstance(exponent, int)
    number = float(int("".join(map(str, digits))))
    if abs(exponent) > 300:
        return False
    power = float(f"1e{abs(exponent)}")
    return abs(value) == (number * power if exponent > 0 else number / power)


def _write_multiples(part: dict[str, Any], step: Fraction, is_integer: bool) -> bool:
    """Write inclusive bounds that are multiples; return False where there are none to write.

    llguidance looks for a multiple between bounds in float64, and does not find all. Where it would
    miss it, bounds are farther out.
    """
    low, high = _limit(part, "minimum"), _limit(part, "maximum")
    assert low is not None
    assert high is not None
    if not all(abs(each[1]) < 2**53 for each in (low, high)):
        return False
    each_step = Fraction(step.numerator) if is_integer else step
    least, most = (Fraction(Decimal(repr(each[1]))) / each_step for each in (low, high))
    first = math.floor(least) + 1 if low[2] else math.ceil(least)
    last = math.ceil(most) - 1 if high[2] else math.floor(most)
    if first > last or max(abs(first), abs(last)) > 10**14:
        return False
    lows = _lower(first, each_step)
    highs = [(-bound, is_open) for bound, is_open in _lower(-last, each_step)]
    if first == last and _is_read(float(first * each_step)):
        del part["multipleOf"]
        for side in ("minimum", "maximum"):
            _write(part, side, float(first * each_step), False)
        return True
    for (lower, is_low_open), (upper, is_high_open) in product(lows, highs):
        bounds = float(lower * each_step), float(upper * each_step)
        if all(map(_is_read, bounds)) and _is_found(
            *bounds, is_low_open, is_high_open, step, is_integer
        ):
            _write(part, "minimum", bounds[0], is_low_open)
            _write(part, "maximum", bounds[1], is_high_open)
            return True
    return False


def _lower(first: int, step: Fraction) -> list[tuple[Fraction, bool]]:
    """Return lower bounds of which a multiple is the first one, in steps, and if they are open.

    Towards 0 it is half a step, away from 0 a whole one, because no text is taken that is shorter
    than that of a bound. An open bound that is whole is no good: see `_real`.
    """
    bounds = [(Fraction(first), False)]
    if first > 0:
        bounds.append((first - Fraction(1, 2), False))
    if first < 1 or (first - 1) * step % 1:
        bounds.append((Fraction(first - 1), True))
    return bounds


def _is_found(
    low: float, high: float, is_low_open: bool, is_high_open: bool, step: Fraction, is_integer: bool
) -> bool:
    """Does llguidance find a multiple between bounds, as it calculates?"""
    by = float(step)
    first, last = math.ceil(low / by) * by, math.floor(high / by) * by
    first += by if is_low_open and first == low else 0
    last -= by if is_high_open and last == high else 0
    return math.ceil(first) <= math.floor(last) if is_integer else first <= last


def _check_products(parts: list[tuple[Place, dict[str, Any]]], multiples: list[_Multiple]) -> None:
    """Refuse steps that may come together and whose product llguidance cannot hold."""
    holders = {place for place, part in parts if _combines(part)}
    is_any = any("$ref" in part for place, part in parts if _is_inside(place, holders))
    met = [each for each in multiples if (is_any and holders) or _is_inside(each[1], holders)]
    if len({step for step, _ in met}) < 2:
        return
    scale = next(
        scale
        for scale in (10**digits for digits in range(400))
        if all((step * scale).denominator == 1 for step, _ in met)
    )
    whole = [int(step * scale) for step, _ in met]
    if math.lcm(*whole) * max(whole) > MAX_STEP:
        place = met[-1][1]
        raise InexactSchema(
            f"{written(place)} may come together with the multipleOf of another part, and their "
            "common multiple is too large; say it once, as one number"
        )


def _combines(part: dict[str, Any]) -> bool:
    said = [key for key in part if key not in ANNOTATIONS]
    return "allOf" in part or (len(said) > 1 and not _APPLICATORS.isdisjoint(said))


def _is_inside(place: Place, holders: set[Place]) -> bool:
    return any(place[:size] in holders for size in range(len(place) + 1))
