"""Provenance of text: which characters the chat template wrote.

Only these may become control tokens. Everything else is a plain `str`: what users wrote, and what
came out of an operation that loses track; so whatever is forgotten here errs on the safe side. A
`TrustedText` compares, hashes, measures and prints as the text that it is: a template cannot tell.

    template writes  '<|im_start|>' + message.role + '\\n' + message.content
    text             <|im_start|>user\\na <|im_end|> b
    mask             11111111111111111 0000000000000000
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from typing import Any, SupportsIndex

from jinja2.exceptions import SecurityError
from markupsafe import Markup, escape

from spaninfer_engine.text.limits import MAX_ITEMS, spend

Ranges = tuple[tuple[int, int], ...]
"""Half-open ranges of characters, in order, apart from each other."""

PIECE = 4096  # characters between two looks at the clock
RUNS = re.compile(b"\x00+|\x01+", re.DOTALL)
QUOTE = re.compile("[\"']")


class TrustedText(str):
    """A text some of whose characters the template wrote."""

    __slots__ = ("_mask",)
    _mask: bytes

    def __new__(cls, text: str, mask: bytes | None = None) -> TrustedText:
        """`mask` has a byte for each character, 1 where the template wrote it; None: all of it."""
        self = super().__new__(cls, text)
        self._mask = b"\1" * len(text) if mask is None else mask
        return self

    def __str__(self) -> str:
        return self

    def __getitem__(self, key: SupportsIndex | slice) -> str:
        part = self._mask[key]
        return traced(super().__getitem__(key), bytes((part,)) if isinstance(part, int) else part)

    def __iter__(self) -> Iterator[str]:
        for start in range(0, len(self), PIECE):
            spend()
            piece = slice(start, start + PIECE)
            for char, flag in zip(super().__getitem__(piece), self._mask[piece], strict=True):
                yield _letter(char) if flag else char


@lru_cache(maxsize=4096)
def _letter(char: str) -> TrustedText:
    """A character of the template's, once for all its places: lists of them stay small."""
    return TrustedText(char)


class TrustedMarkup(Markup):
    """Text that Jinja does not escape any more, some of whose characters the template wrote.

    What its methods return is a Markup without an author.
    """

    __slots__ = ("_mask",)
    _mask: bytes

    def __new__(cls, text: Any, mask: bytes | None = None) -> Markup:  # type: ignore[misc]
        """A Markup with a mask, or one without."""
        if mask is None:
            return Markup(text)
        self = super().__new__(cls, text)
        self._mask = mask
        return self

    def __str__(self) -> str:
        return TrustedText(super().__str__(), self._mask)

    def __repr__(self) -> str:
        return f"Markup({str.__repr__(self)})"


def traced(text: str, mask: bytes) -> str:
    """A text with its mask; a plain one where nothing is trusted or the mask does not fit."""
    return TrustedText(text, mask) if 1 in mask and len(mask) == len(text) else str.__str__(text)


def mask_of(text: str) -> bytes:
    """A byte for each character: 1 where the template wrote it."""
    return text._mask if isinstance(text, TrustedText | TrustedMarkup) else bytes(len(text))


def is_traced(value: object) -> bool:
    """True if the template wrote some of this text."""
    return isinstance(value, TrustedText | TrustedMarkup)


def is_all_trusted(value: object) -> bool:
    """True if the text consists of the template's own text and numbers only."""
    if isinstance(value, str):
        return not value or (is_traced(value) and 0 not in mask_of(value))
    return value is None or isinstance(value, bool | int | float)


def trusted_ranges(text: str) -> Ranges:
    """The ranges that the template wrote."""
    mask, ranges, stop = mask_of(text), [], 0
    while (start := mask.find(b"\1", stop)) >= 0:  # fifty times as fast as a regular expression
        stop = mask.find(b"\0", start)
        stop = len(mask) if stop < 0 else stop
        ranges.append((start, stop))
        if len(ranges) > MAX_ITEMS:
            raise SecurityError(f"it puts more than {MAX_ITEMS} texts of its own between others")
    return tuple(ranges)


def join(separator: str, items: Iterable[str]) -> str:
    """`separator.join(items)`."""
    items = list(items)
    text = str.join(separator, items)
    if not any(map(is_traced, (separator, *items))):
        return text
    return traced(text, mask_of(separator).join(map(mask_of, items)))


def concat(pieces: Iterable[str]) -> str:
    """The pieces as one text."""
    return join("", pieces)


def add(left: str, right: str) -> str:
    """`left + right`."""
    if isinstance(left, Markup) or isinstance(right, Markup):
        return as_markup(concat([str(escaped(left)), str(escaped(right))]))
    return concat([left, right])


def repeat(text: str, times: int) -> str:
    """`text * times`."""
    return traced(text * times, mask_of(text) * times)


def as_markup(text: str) -> Markup:
    """The text as one that Jinja does not escape."""
    if not is_traced(text):
        return Markup(text)
    return TrustedMarkup(str.__str__(text), mask_of(text))


def escaped(value: Any) -> Markup:
    """`markupsafe.escape(value)`; the entities in a text that is not all the template's are not."""
    if hasattr(value, "__html__"):
        return value if isinstance(value, Markup) else escape(value)
    text = text_of(value)
    if is_all_trusted(text):
        return as_markup(TrustedText(str.__str__(escape(text))))
    if not is_traced(text):
        return escape(text)
    parts = [(part, TrustedText if is_traced(part) else str) for part in _runs(text)]
    return as_markup(concat(kind(str.__str__(escape(str.__str__(part)))) for part, kind in parts))


def text_of(value: Any) -> str:
    """`str(value)`. Numbers are no text of users', who cannot write a control token with them."""
    if isinstance(value, str):
        return str(value)
    if value is None or isinstance(value, bool | int | float):
        return TrustedText(str(value))
    return spelled(str(value), value, repr)


def spelled(text: str, value: Any, spell: Callable[[str], str], *, is_sorted: bool = False) -> str:
    """A text that was made of nested values, of which `spell` made the strings' parts.

    Quotes, brackets and commas stay untrusted: their number and order is the users', too.
    """
    leaves = _leaves(value, is_sorted)
    if leaves is None or not any(map(is_traced, leaves)):
        return text
    masks, at = [], 0
    for leaf in leaves:
        quoted, quote = spell(leaf), QUOTE.search(text, at)
        if quote is None or not text.startswith(quoted, quote.start()):
            return text
        masks += [bytes(quote.start() - at), _quoted_mask(leaf, quoted, spell)]
        at = quote.start() + len(quoted)
    return traced(text, b"".join([*masks, bytes(len(text) - at)]))


def _leaves(value: Any, is_sorted: bool) -> list[str] | None:
    """All strings of nested values as they are printed; None where something else is printed."""
    if isinstance(value, str):
        return None if isinstance(value, Markup) else [value]
    if value is None or isinstance(value, bool | int | float):
        return []
    if isinstance(value, dict):
        value = [
            each
            for pair in (sorted(value.items()) if is_sorted else value.items())
            for each in pair
        ]
    if not isinstance(value, list | tuple | set | frozenset):
        return None
    inner = [_leaves(each, is_sorted) for each in value]
    return None if None in inner else [leaf for each in inner if each for leaf in each]


def _quoted_mask(leaf: str, quoted: str, spell: Callable[[str], str]) -> bytes:
    """The mask of a string in quotes."""
    runs = [(len(spell(str.__str__(run))) - 2, is_traced(run)) for run in _runs(leaf)]
    mask = b"".join((b"\1" if trusted else b"\0") * length for length, trusted in runs)
    return b"\0" + mask + b"\0" if len(mask) + 2 == len(quoted) else bytes(len(quoted))


def _runs(text: str) -> Iterator[str]:
    """The text, cut where trusted and other characters meet."""
    for run in RUNS.finditer(mask_of(text)):
        spend()
        yield text[run.start() : run.end()]
