"""The filters that chat templates may use, each within the limits."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from typing import Any

from jinja2 import Environment, Undefined, pass_environment
from jinja2.exceptions import FilterArgumentError, SecurityError, TemplateError
from jinja2.filters import FILTERS, make_attrgetter
from markupsafe import Markup

from spaninfer_engine.text.formatting import percent
from spaninfer_engine.text.limits import (
    MAX_WIDTH,
    check_operation,
    replaced_len,
    spend,
    spend_on,
)
from spaninfer_engine.text.methods import call_method, indented, replace, same_length
from spaninfer_engine.text.provenance import as_markup, escaped, join, spelled, text_of

FILTER_NAMES = """abs count d default dictsort first float groupby int items last length list map
max min reject rejectattr reverse round select selectattr sort unique""".split()
"""Filters of Jinja's that make no new text."""


def _paced(function: Callable[..., Any]) -> Callable[..., Any]:
    """A filter that looks at the clock first."""

    @functools.wraps(function)
    def paced(*args: Any, **kwargs: Any) -> Any:
        spend()
        return function(*args, **kwargs)

    return paced


def _cased(name: str) -> Callable[[Any], str]:
    """A filter that changes characters one for one."""

    def cased(value: Any) -> str:
        spend_on(value)
        text = value if isinstance(value, Markup) else text_of(value)
        result: str = FILTERS[name](text)
        return result if isinstance(text, Markup) else same_length(text, result)

    return cased


def _trim(value: Any, chars: str | None = None) -> str:
    """A text without spaces, or other characters, at its ends."""
    spend_on(value)
    return call_method(value if isinstance(value, str) else text_of(value), "strip", chars)  # type: ignore[no-any-return]


@pass_environment
def _join(environment: Environment, value: Any, d: str = "", attribute: Any = None) -> str:
    """The items of a list as one text, with `d` between them."""
    if attribute is not None:
        value = map(make_attrgetter(environment, attribute), value)
    items = list(value)
    spend_on(items)
    spend(len(str(d)) * len(items))
    return join(text_of(d), map(text_of, items))


def _format(value: Any, *args: Any, **kwargs: Any) -> str:
    """`value % args`."""
    if args and kwargs:
        raise FilterArgumentError("can't handle positional and keyword arguments at the same time")
    check_operation("%", value, args)
    spend_on((value, args, kwargs))
    return percent(text_of(value), kwargs or args)


def _escape(value: Any) -> Markup:
    """A text with `&`, `<`, `>` and quotes as HTML writes them."""
    spend_on(value)
    return escaped(value)


def _safe(value: Any) -> Markup:
    """A text that is not escaped any more."""
    spend_on(value)
    return value if isinstance(value, Markup) else as_markup(text_of(value))


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as training data has it: without the HTML escapes of Jinja's own filter."""
    if isinstance(value, Undefined):
        raise TemplateError(f"tojson of {value._undefined_name}, which is undefined")
    _check_width(indent or 0)
    spend_on(value)
    text = json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )
    spell = functools.partial(json.dumps, ensure_ascii=ensure_ascii)
    return spelled(text, value, spell, is_sorted=sort_keys)


def _indent(text: Any, width: int | str = 4, first: bool = False, blank: bool = False) -> str:
    """A text with its lines moved to the right."""
    _check_width(width)
    spend(len(text) + (text.count("\n") + 1) * MAX_WIDTH)
    if isinstance(text, Markup):
        return FILTERS["indent"](text, width, first, blank)  # type: ignore[no-any-return]
    indention = width if isinstance(width, str) else " " * width
    return indented(text, indention, first=first, blank=blank)


def _replace(text: Any, old: Any, new: Any, count: int | None = None) -> str:
    """A text with `old` replaced by `new`."""
    text, old, new = text_of(text), text_of(old), text_of(new)
    spend(replaced_len(text, old, new))
    return replace(text, old, new, -1 if count is None else count)


def _string(value: Any) -> str:
    """A value as text."""
    spend_on(value)
    return value if isinstance(value, str) else text_of(value)


def _check_width(indention: int | str) -> None:
    width = len(indention) if isinstance(indention, str) else indention
    if width > MAX_WIDTH:
        raise SecurityError(f"it indents by {width}; at most {MAX_WIDTH}")


TEMPLATE_FILTERS: dict[str, Callable[..., Any]] = {
    **{name: _paced(FILTERS[name]) for name in FILTER_NAMES},
    **{name: _cased(name) for name in ("capitalize", "lower", "title", "upper")},
    "e": _escape,
    "escape": _escape,
    "format": _format,
    "indent": _indent,
    "join": _join,
    "replace": _replace,
    "safe": _safe,
    "string": _string,
    "tojson": _tojson,
    "trim": _trim,
}
