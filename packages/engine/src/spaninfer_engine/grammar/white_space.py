"""JSON in grammars, wherever they hold a schema: bounded white space, and escapes of names.

Without a bound, models that would rather write something else write spaces until the end of the
context.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

from spaninfer_engine.grammar.exact import has_other_names

WHITESPACE = r" |\n[ \t]{0,32}"
"""None, a space, or a new line that is indented: llguidance's `whitespace_pattern`."""

PLAIN_ESCAPES = 'nrbtf\\"'
"""Letters of escapes without `u`: each name has one spelling, and control characters have none."""

_OPTIONS = "x-guidance"  # of llguidance, in a schema

# What may hold the word without meaning it, and the word: strings, comments, regexes of Lark.
_PARTS = re.compile(r'"(?:\\.|[^"\\\n])*"|//[^\n]*|/(?:\\.|[^/\\\n])+/|(?P<json>%json\s*)')


def options(schema: Any) -> Any:
    """Return llguidance's options of a schema."""
    plain = {"json_allowed_escapes": PLAIN_ESCAPES} if has_other_names(schema) else {}
    return {"whitespace_pattern": WHITESPACE, **plain}


def bounded(schema: Any) -> Any:
    """Return a schema with the bound, unless it says itself what stands between parts.

    >>> bounded({"type": "object"})["x-guidance"]["whitespace_pattern"] == WHITESPACE
    True
    """
    if schema is True:
        schema = {}
    if not isinstance(schema, dict) or _OPTIONS in schema:
        return schema
    return {**schema, _OPTIONS: options(schema)}


def bounded_in_lark(grammar: str, prepared: Callable[[Any], Any]) -> str:
    """Return a grammar in Lark's syntax with the bound in every `%json SCHEMA`, once prepared.

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
        made.append(json.dumps(bounded(prepared(schema))))
        at = end
    return "".join([*made, grammar[at:]])
