"""White space between two parts of JSON, bounded wherever a grammar holds a schema.

Without a bound, models that would rather write something else write spaces until the end of the
context.
"""

from __future__ import annotations

import json
import re
from typing import Any

WHITESPACE = r" |\n[ \t]{0,32}"
"""None, a space, or a new line that is indented: llguidance's `whitespace_pattern`."""

_OPTIONS = "x-guidance"  # of llguidance, in a schema

# What may hold the word without meaning it, and the word: strings, comments, regexes of Lark.
_PARTS = re.compile(r'"(?:\\.|[^"\\\n])*"|//[^\n]*|/(?:\\.|[^/\\\n])+/|(?P<json>%json\s*)')


def bounded(schema: Any) -> Any:
    """Return a schema with the bound, unless it says itself what stands between parts.

    >>> bounded({"type": "object"})["x-guidance"]["whitespace_pattern"] == WHITESPACE
    True
    """
    if schema is True:
        schema = {}
    if not isinstance(schema, dict) or _OPTIONS in schema:
        return schema
    return {**schema, _OPTIONS: {"whitespace_pattern": WHITESPACE}}


def bounded_in_lark(grammar: str) -> str:
    """Return a grammar in Lark's syntax with the bound in every `%json SCHEMA`.

    What is no JSON behind it is left for llguidance to refuse.
    """
    decoder = json.JSONDecoder()
    made, at = [], 0
    while (found := _PARTS.search(grammar, at)) is not None:
        made.append(grammar[at : found.end()])
        at = found.end()
        if found["json"] is None:
            continue
        try:
            schema, end = decoder.raw_decode(grammar, at)
        except (ValueError, RecursionError):
            continue
        made.append(json.dumps(bounded(schema)))
        at = end
    return "".join([*made, grammar[at:]])
