"""JSON schemas: limits before they are compiled, and the place of what is refused in them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import unquote

MAX_DEPTH = 100  # of brackets in a schema's JSON; llguidance reads 128 of them
# Of one object: 512 optional ones compile in 0.2 s (151,646 tokens), 5,000 in 32 s; a row of
# llguidance's parser has four items for each, and 499 are too many for it.
MAX_PROPERTIES = 480
# Of brackets through which references may lead, one inside the other; llguidance follows them by
# recursion, and takes some 6 kB of its stack for each.
MAX_REFERENCED_DEPTH = 3000
MAX_RESOURCES = 50  # schemas with an $id, each of which a reference may begin at

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

ANNOTATIONS = frozenset(
    "$anchor $comment $defs $id $schema contentEncoding contentMediaType default definitions "
    "description examples id readOnly title writeOnly".split()
)
"""Keywords that say nothing of which answers are valid."""

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
    return _refuse_references(schema)


def every_part(schema: object) -> Iterator[tuple[Place, dict[str, Any]]]:
    """Yield every schema inside a schema, and whatever else references make one."""
    known = list(_parts(schema))
    yield from known
    seen = {place for place, _ in known}
    pending = list(_targets(schema, known))
    while pending:
        target = pending.pop()
        if target in seen:
            continue
        made = [each for each in _parts(_at(schema, target), target) if each[0] not in seen]
        seen |= {place for place, _ in made}
        yield from made
        known += made
        pending += _targets(schema, made)


def _refuse_references(schema: object) -> str | None:
    """Return why references of a schema cannot be followed, None if they can."""
    parts = list(every_part(schema))
    resources = [place for place, part in parts if _names(part)]
    if len(resources) > MAX_RESOURCES:
        return (
            f"{written(resources[-1])} is one of {len(resources)} schemas with an $id or "
            f"$anchor; at most {MAX_RESOURCES}: refer to places, such as #/$defs/name"
        )
    data = {(*place, key) for place, part in parts for key in ("const", "enum") if key in part}
    targets = set(_targets(schema, parts))
    for target in targets:
        if any(target[:size] in data for size in range(len(target) + 1)):
            return f"{written(target)} is a value and no schema; a $ref leads to it"
    depth = sum(_depth(_at(schema, target)) for target in {*targets, *resources})
    if depth > MAX_REFERENCED_DEPTH:
        return f"references lead through {depth} brackets; at most {MAX_REFERENCED_DEPTH}"
    return None


def _names(part: dict[str, Any]) -> bool:
    return any(isinstance(part.get(key), str) for key in ("$id", "id", "$anchor"))


def _targets(schema: object, parts: list[tuple[Place, dict[str, Any]]]) -> Iterator[Place]:
    """Yield the places to which the references of parts may lead, from any schema with an $id."""
    ids = [place for place, part in _parts(schema) if _names(part)][:MAX_RESOURCES]
    fragments = {
        ref.partition("#")[2] for _, part in parts if isinstance(ref := part.get("$ref"), str)
    }
    for base in {(), *ids}:
        for fragment in fragments:
            place = _pointed(schema, base, unquote(fragment))
            if place is not None:
                yield place


def _pointed(schema: object, base: Place, pointer: str) -> Place | None:
    """Return the place of a JSON pointer from another place, None if there is nothing."""
    value, place = _at(schema, base), base
    if pointer and not pointer.startswith("/"):
        return None
    for token in pointer.split("/")[1:]:
        name = token.replace("~1", "/").replace("~0", "~")
        if isinstance(value, dict) and name in value:
            value, place = value[name], (*place, name)
        elif isinstance(value, list) and name.isdecimal() and int(name) < len(value):
            value, place = value[int(name)], (*place, int(name))
        else:
            return None
    return place


def _at(schema: Any, place: Place) -> Any:
    for step in place:
        schema = schema[step]
    return schema


def _depth(value: object) -> int:
    """Return how deep brackets are nested in a value."""
    depth, level = 0, [value]
    while level := [each for each in level if isinstance(each, dict | list)]:
        depth += 1
        level = [
            inner for each in level for inner in (each.values() if isinstance(each, dict) else each)
        ]
    return depth


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


def _parts(schema: object, at: Place = ()) -> Iterator[tuple[Place, dict[str, Any]]]:
    """Yield every schema inside a schema that is at a place, outer ones first."""
    pending: list[tuple[Place, object]] = [(at, schema)]
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
