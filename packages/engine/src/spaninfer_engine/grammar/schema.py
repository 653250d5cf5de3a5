"""JSON schemas: limits before they are compiled, and the place of what is refused in them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

MAX_DEPTH = 100  # of brackets in a schema's JSON; llguidance reads 128 of them
# Of one object: 512 optional ones compile in 0.2 s (151,646 tokens), 5,000 in 32 s; a row of
# llguidance's parser has four items for each, and 499 are too many for it.
MAX_PROPERTIES = 480

Place = tuple[str | int, ...]
"""Keys and indices from the root of a schema."""

# Where schemas hold schemas.
_ONE = frozenset(
    "additionalItems additionalProperties contains contentSchema else if items not propertyNames "
    "then unevaluatedItems unevaluatedProperties".split()
)
_LISTS = frozenset("allOf anyOf items oneOf prefixItems".split())
_MAPS = frozenset(
    "$defs definitions dependencies dependentSchemas patternProperties properties".split()
)

# What llguidance says of a schema, and the keyword that it is about: named, or the value of it.
_UNSUPPORTED = re.compile(r"Unimplemented keys: \[(.*?)\]")
_NAMED = re.compile(r"(?:for|of) '(\w+)'")
_BY_VALUE = (
    (re.compile(r"Unknown format: (.*)"), "format"),
    (re.compile(r"Invalid type: (.*)"), "type"),
    (re.compile(r"Pointer '(.*?)' does not exist"), "$ref"),
    (re.compile(r"Resource '(.*?)' is not present"), "$ref"),
    (re.compile(r"Anchor '(.*?)' does not exist"), "$ref"),
    (re.compile(r"regex parse error:\s*(.*)"), "pattern"),
)
_BY_KEYWORD = (("oneOf constraints", "oneOf"), ("patternProperty", "patternProperties"))


def refuse_large(schema: object) -> str | None:
    """Return why a schema is too much to compile, None for one that may be tried."""
    pending: list[tuple[Place, object]] = [((), schema)]
    while pending:
        place, value = pending.pop()
        if len(place) > MAX_DEPTH:
            return f"it is nested more than {MAX_DEPTH} deep; use $ref for a schema that repeats"
        if isinstance(value, dict):
            properties = value.get("properties")
            if isinstance(properties, dict) and len(properties) > MAX_PROPERTIES:
                where = written((*place, "properties"))
                return f"{where} has {len(properties)} properties; at most {MAX_PROPERTIES}"
            pending += [((*place, key), item) for key, item in value.items()]
        elif isinstance(value, list):
            pending += [((*place, index), item) for index, item in enumerate(value)]
    return None


def explain(schema: object, error: str) -> str:
    """Return what is wrong, as llguidance says it; of a schema with the place in it.

    `schema` is None for other grammars.
    """
    said = _sentence(error)
    if (found := _UNSUPPORTED.search(said)) is not None:
        keys = json.loads(f"[{found[1]}]")
        place = next((p for key in keys if (p := _find(schema, key, None)) is not None), None)
        key = place[-1] if place else keys[0]
        where = f" at {written(place)}" if place else ""
        return (
            f"the keyword {key!r}{where} is not supported; leave it out or express it differently"
        )
    place = _culprit(schema, said)
    return f"{written(place)}: {said}" if place else said


def written(place: Place) -> str:
    """Return a place as a path in JSON: $.properties.name."""
    steps = (
        f".{step}"
        if isinstance(step, str) and re.fullmatch(r"[\w$-]+", step)
        else f"[{json.dumps(step)}]"
        for step in place
    )
    return "$" + "".join(steps)


def _sentence(error: str) -> str:
    """Return llguidance's error without the lines of the grammar that it made of a regex."""
    said = re.sub(r'(?s)^at \d+\(\d+\): invalid regex ".*?" \(in regex\): ', "", error)
    return re.split(r"\n +1 \| start: /|\n<non-verbose/>", said)[0].strip()


def _culprit(schema: object, said: str) -> Place | None:
    for pattern, keyword in _BY_VALUE:
        if (found := pattern.search(said)) is not None:
            return _find(schema, keyword, found[1].strip())
    for beginning, keyword in _BY_KEYWORD:
        if beginning in said:
            return _find(schema, keyword, None)
    named = _NAMED.search(said)
    return _find(schema, named[1], None) if named else None


def _find(schema: object, keyword: str, value: str | None) -> Place | None:
    """Return the place of the first such keyword, whose value holds a text if one is given."""
    for place, part in _parts(schema):
        if keyword in part and (value is None or value in str(part[keyword])):
            return (*place, keyword)
    return None


def _parts(schema: object) -> Iterator[tuple[Place, Mapping[str, Any]]]:
    """Yield every schema inside a schema, outer ones first."""
    pending: list[tuple[Place, object]] = [((), schema)]
    while pending:
        place, part = pending.pop()
        if not isinstance(part, dict):
            continue
        yield place, part
        inner: list[tuple[Place, object]] = []
        for key, value in part.items():
            if key in _MAPS and isinstance(value, dict):
                inner += [((*place, key, name), each) for name, each in value.items()]
            elif key in _LISTS and isinstance(value, list):
                inner += [((*place, key, index), each) for index, each in enumerate(value)]
            elif key in _ONE:
                inner.append(((*place, key), value))
        pending += reversed(inner)
