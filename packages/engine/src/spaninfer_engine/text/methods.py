"""Methods of texts, as templates call them: with the provenance of what they return.

Each gives the text that Python's own gives. A method that is not here returns text without
an author, unless all that went into it is the template's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import accumulate
from typing import Any

from markupsafe import Markup

from spaninfer_engine.text.limits import MAX_ITEMS
from spaninfer_engine.text.provenance import (
    TrustedText,
    as_markup,
    concat,
    is_all_trusted,
    is_traced,
    join,
    mask_of,
    traced,
)

CASES = ("capitalize", "casefold", "lower", "swapcase", "title", "upper")


def call_method(owner: str, name: str, /, *args: Any, **kwargs: Any) -> Any:
    """`owner.name(*args, **kwargs)`."""
    given = (owner, *args, *kwargs.values())
    if name != "join" and not any(map(is_traced, given)):
        return getattr(owner, name)(*args, **kwargs)
    if name in METHODS and not isinstance(owner, Markup):
        return METHODS[name](owner, *args, **kwargs)
    result = getattr(owner, name)(*args, **kwargs)
    if not isinstance(result, str) or not all(map(is_all_trusted, given)):
        return result
    trusted = TrustedText(str.__str__(result))
    return as_markup(trusted) if isinstance(result, Markup) else trusted


def replace(text: str, old: str, new: str, count: int = -1) -> str:
    """`text.replace(old, new, count)`."""
    is_plain = not is_traced(text) and not is_traced(new)
    if is_plain or not old or text.count(old) > MAX_ITEMS:
        return str.replace(text, old, new, count)
    return join(new, _split(text, old, count))


def strip(text: str, chars: str | None = None) -> str:
    """`text.strip(chars)`."""
    return _rstrip(_lstrip(text, chars), chars)


def indented(text: str, indention: str, *, first: bool, blank: bool) -> str:
    """Jinja's `indent`: each line but the first with something in front; empty ones if `blank`."""
    lines = _splitlines(concat([text, "\n"]))
    moved = [concat([indention, line]) if line or blank else line for line in lines]
    if not first:
        moved[0] = lines[0]
    elif not moved[0]:
        moved[0] = indention
    return join(TrustedText("\n") if is_all_trusted(text) else "\n", moved)


def same_length(text: str, result: str) -> str:
    """A result whose characters stand for those of the text, one for one."""
    if is_all_trusted(text):
        return TrustedText(result)
    return traced(result, mask_of(text))


def _lstrip(text: str, chars: str | None = None) -> str:
    return text[len(text) - len(str.lstrip(text, chars)) :]


def _rstrip(text: str, chars: str | None = None) -> str:
    return text[: len(str.rstrip(text, chars))]


def _removeprefix(text: str, prefix: str) -> str:
    return text[len(text) - len(str.removeprefix(text, prefix)) :]


def _removesuffix(text: str, suffix: str) -> str:
    return text[: len(str.removesuffix(text, suffix))]


def _split(text: str, sep: str | None = None, maxsplit: int = -1) -> list[str]:
    return _located(text, str.split(text, sep, maxsplit), sep)


def _rsplit(text: str, sep: str | None = None, maxsplit: int = -1) -> list[str]:
    return _located(text, str.rsplit(text, sep, maxsplit), sep)


def _located(text: str, pieces: list[str], sep: str | None) -> list[str]:
    """Pieces between separators as parts of the text; without a separator, between spaces."""
    if not is_traced(text):
        return pieces
    at, parts = 0, []
    for piece in pieces:
        at = text.find(piece, at) if sep is None else at
        parts.append(text[at : at + len(piece)])
        at += len(piece) + len(sep or "")
    return parts


def _splitlines(text: str, keepends: bool = False) -> list[str]:
    starts = accumulate(map(len, str.splitlines(text, True)), initial=0)
    lines = str.splitlines(text, keepends)
    return [text[start : start + len(line)] for start, line in zip(starts, lines, strict=False)]


def _partition(text: str, sep: str) -> tuple[str, str, str]:
    return _tiles(text, str.partition(text, sep))


def _rpartition(text: str, sep: str) -> tuple[str, str, str]:
    return _tiles(text, str.rpartition(text, sep))


def _tiles(text: str, parts: tuple[str, str, str]) -> tuple[str, str, str]:
    """Three parts of a text; Python's own middle one is the separator that was looked for."""
    start, stop = len(parts[0]), len(parts[0]) + len(parts[1])
    return text[:start], text[start:stop], text[stop:]


def _cased(name: str) -> Callable[[str], str]:
    def cased(text: str) -> str:
        return same_length(text, getattr(str, name)(text))

    return cased


def _ljust(text: str, width: int, fillchar: str = " ") -> str:
    return _padded(text, str.ljust(text, width, fillchar), 0, fillchar)


def _rjust(text: str, width: int, fillchar: str = " ") -> str:
    result = str.rjust(text, width, fillchar)
    return _padded(text, result, len(result) - len(text), fillchar)


def _center(text: str, width: int, fillchar: str = " ") -> str:
    result = str.center(text, width, fillchar)
    missing = len(result) - len(text)
    return _padded(text, result, missing // 2 + (missing & width & 1), fillchar)


def _padded(text: str, result: str, left: int, fillchar: str) -> str:
    fill = mask_of(fillchar)
    right = len(result) - len(text) - left
    return traced(result, fill * left + mask_of(text) + fill * right)


def _join(separator: str, items: Iterable[str]) -> str:
    return join(separator, items)


METHODS: dict[str, Callable[..., Any]] = {
    "center": _center,
    "join": _join,
    "ljust": _ljust,
    "lstrip": _lstrip,
    "partition": _partition,
    "removeprefix": _removeprefix,
    "removesuffix": _removesuffix,
    "replace": replace,
    "rjust": _rjust,
    "rpartition": _rpartition,
    "rsplit": _rsplit,
    "rstrip": _rstrip,
    "split": _split,
    "splitlines": _splitlines,
    "strip": strip,
    **{name: _cased(name) for name in CASES},
}
