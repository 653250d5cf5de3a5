"""`%` and `str.format` as templates use them: with the provenance of the result, within limits."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from jinja2.exceptions import SecurityError
from jinja2.sandbox import SandboxedFormatter

from spaninfer_engine.text.limits import MAX_WIDTH, spend, spend_on
from spaninfer_engine.text.provenance import TrustedText, concat, is_all_trusted, text_of

CONVERSION = re.compile(r"%(?:%|[-+ #0]*\d*(?:\.\d+)?[a-zA-Z])")


def percent(pattern: str, values: Any) -> str:
    """`pattern % values`."""
    result = str.__mod__(pattern, values)
    arguments = list(values) if isinstance(values, tuple) else [values]
    pieces, at = [], 0
    for found in CONVERSION.finditer(pattern):
        pieces.append(pattern[at : found.start()])
        at = found.end()
        if found[0] == "%%":
            pieces.append(pattern[at - 1 : at])
        elif arguments:
            pieces.append(_converted(pattern[found.start() : at], arguments.pop(0)))
    made = concat([*pieces, pattern[at:]])
    return made if made == result and not arguments else str.__str__(result)


def _converted(conversion: str, value: Any) -> str:
    if conversion == "%s":
        return text_of(value)
    return _made(str.__mod__(conversion, (value,)), conversion, value)


def _made(text: str, *sources: Any) -> str:
    """A text that was made of these, the fill character of a user's pattern among them."""
    return TrustedText(text) if all(map(is_all_trusted, sources)) else str.__str__(text)


class Formatter(SandboxedFormatter):
    """`str.format` for templates: attributes only through the sandbox, and no wide fields."""

    def vformat(self, pattern: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
        """The pattern with its fields filled in."""
        return concat(self._pieces(pattern, args, kwargs))

    def _pieces(
        self, pattern: str, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Iterator[str]:
        kind = TrustedText if is_all_trusted(pattern) else str
        unnamed = 0
        for literal, field, spec, conversion in self.parse(str.__str__(pattern)):
            spend(len(literal))
            yield kind(literal)
            if field is None:
                continue
            if not field or field[0] in ".[":
                field, unnamed = f"{unnamed}{field}", unnamed + 1
            value, _ = self.get_field(field, args, kwargs)
            yield _filled(self.convert_field(value, conversion), kind(spec or ""))


def _filled(value: Any, spec: str) -> str:
    _check_spec(spec)
    spend_on(value)
    return _made(format(value, spec), value, spec) if spec else text_of(value)


def _check_spec(spec: str) -> None:
    """SecurityError for a width that no template needs, and for one that a field holds."""
    if "{" in spec or any(int(number) > MAX_WIDTH for number in re.findall(r"[0-9]+", spec)):
        raise SecurityError(f"it formats with the width in {spec[:40]!r}; at most {MAX_WIDTH}")
