"""JSON schemas of arguments, which are objects."""

from __future__ import annotations

from typing import Any

from spaninfer_serving.dialects.answer import Schema
from spaninfer_serving.dialects.tagged_calls import as_list, referenced

MAX_DEPTH = 64  # of what is followed into a schema; deeper, grammars are refused anyway

NO_ARGUMENTS: dict[str, Any] = {"type": "object", "properties": {}}
"""The schema of a function that has no parameters."""


def allows_objects(schema: Schema) -> bool:
    """Return whether a schema may allow an object; true where that is not seen at once."""
    return _allows(schema, schema, set(), 0)


def _allows(schema: object, root: Schema, seen: set[str], depth: int) -> bool:
    """Return that of a part of `root`; each reference is followed once, for they may be circles."""
    if not isinstance(schema, dict) or depth > MAX_DEPTH:
        return schema is not False

    def inner(part: object) -> bool:
        return _allows(part, root, seen, depth + 1)

    if not _is_named(schema):
        return False
    if not all(map(inner, as_list(schema.get("allOf")))):
        return False
    for key in ("anyOf", "oneOf"):
        options = as_list(schema.get(key))
        if options and not any(map(inner, options)):
            return False
    reference = schema.get("$ref")
    if not isinstance(reference, str) or reference in seen:
        return True
    seen.add(reference)
    return inner(referenced(reference, root))


def _is_named(schema: Schema) -> bool:
    """Return whether objects are among the types and the values that a schema lists."""
    kinds, values = as_list(schema.get("type")), as_list(schema.get("enum"))
    if kinds and "object" not in kinds:
        return False
    if values and not any(isinstance(value, dict) for value in values):
        return False
    return "const" not in schema or isinstance(schema["const"], dict)
