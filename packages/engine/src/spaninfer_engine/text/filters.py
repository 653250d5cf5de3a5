"""The filters that chat templates may use, each within the limits."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from typing import Any

from jinja2 import Undefined
from jinja2.exceptions import SecurityError, TemplateError
from jinja2.filters import FILTERS

from spaninfer_engine.text.limits import MAX_WIDTH, replaced_len, spend, spend_on

FILTER_NAMES = """abs capitalize count d default dictsort e escape first float groupby indent int
items join last length list lower map max min reject rejectattr replace reverse round safe select
selectattr sort string title trim unique upper""".split()


def _paced(function: Callable[..., Any]) -> Callable[..., Any]:
    """A filter that looks at the clock first."""

    @functools.wraps(function)
    def paced(*args: Any, **kwargs: Any) -> Any:
        spend()
        return function(*args, **kwargs)

    return paced


def _join(value: Any, d: str = "", attribute: str | None = None) -> str:
    """The items of a list as one text, with `d` between them."""
    items = [item[attribute] for item in value] if attribute else list(value)
    spend_on(items)
    spend(len(d) * len(items))
    return d.join(map(str, items))


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as training data has it: without the HTML escapes of Jinja's own filter."""
    if isinstance(value, Undefined):
        raise TemplateError(f"tojson of {value._undefined_name}, which is undefined")
    _check_width(indent or 0)
    spend_on(value)
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _indent(text: str, width: int | str = 4, first: bool = False, blank: bool = False) -> str:
    """A text with its lines moved to the right."""
    _check_width(width if isinstance(width, int) else len(width))
    spend(len(text) + (text.count("\n") + 1) * MAX_WIDTH)
    return FILTERS["indent"](text, width, first, blank)  # type: ignore[no-any-return]


def _replace(text: Any, old: str, new: str, count: int = -1) -> str:
    """A text with `old` replaced by `new`."""
    spend(replaced_len(str(text), old, new))
    return str(text).replace(old, new, count)


def _string(value: Any) -> str:
    """A value as text."""
    spend_on(value)
    return str(value)


def _check_width(width: int) -> None:
    if width > MAX_WIDTH:
        raise SecurityError(f"it indents by {width}; at most {MAX_WIDTH}")


TEMPLATE_FILTERS: dict[str, Callable[..., Any]] = {
    **{name: _paced(FILTERS[name]) for name in FILTER_NAMES},
    "tojson": _tojson,
    "indent": _indent,
    "replace": _replace,
    "string": _string,
    "join": _paced(_join),
}
