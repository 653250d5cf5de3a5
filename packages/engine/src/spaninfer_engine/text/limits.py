"""Limits of chat templates: a budget of time and characters, and checks of single steps.

A template comes with a model's files, so it may be hostile. The sandbox of Jinja keeps it away
from Python; what remains is to keep it from filling memory or running for ever. Whatever repeats
(loops, macros, calls, filters) spends from the budget, and steps that could take long in one go
(repetition, padding, formatting, nested values) are looked at before they are done.
"""

from __future__ import annotations

import re
import time
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from jinja2.exceptions import SecurityError

MAX_SECONDS = 2.0
MAX_CHARS = 1 << 25  # of all text made on the way; a prompt of a million tokens needs a sixth
MAX_ITEMS = 1 << 20  # of one list
MAX_WIDTH = 1000  # of padding and indentation
MAX_BITS = 4096  # of a whole number

SPACES = "".join(filter(str.isspace, map(chr, range(0x3001))))  # with all that end a line
WIDE_FORMAT = re.compile(r"%[^a-zA-Z%]*(\d{4}|\*)")


@dataclass
class Budget:
    """The remaining budget of one rendering."""

    chars: int = MAX_CHARS
    deadline_s: float = field(default_factory=lambda: time.monotonic() + MAX_SECONDS)

    def spend(self, chars: int = 0) -> None:
        """Take characters off; SecurityError when they or the time are used up."""
        self.chars -= chars
        if self.chars < 0:
            raise SecurityError(f"it makes more than {MAX_CHARS} characters")
        if time.monotonic() > self.deadline_s:
            raise SecurityError(f"it takes longer than {MAX_SECONDS:g} seconds")

    def spend_on(self, value: object) -> None:
        """Take off what a value is long as text, without making that text.

        A list that holds itself twice, thirty times over, is small in memory and endless in text;
        so it counts each time the traversal passes.
        """
        pending = [value]
        while pending:
            item = pending.pop()
            if isinstance(item, str):
                self.spend(len(item))
                continue
            self.spend(16)  # a number, brackets, a comma; and the time of this step
            if isinstance(item, dict):
                pending += [*item.keys(), *item.values()]
            elif isinstance(item, (list, tuple, set, frozenset)):
                pending += item


current: ContextVar[Budget | None] = ContextVar("template_budget", default=None)
"""The budget of the rendering that runs; None while a template is compiled."""


def spend(chars: int = 0) -> str:
    """Spend from the budget of the rendering that runs; "" so that it can stand in an output."""
    if (budget := current.get()) is not None:
        budget.spend(chars)
    return ""


def spend_on(value: object) -> None:
    """Spend from the budget of the rendering that runs what a value is long as text."""
    if (budget := current.get()) is not None:
        budget.spend_on(value)


def check_operation(operator: str, left: Any, right: Any) -> None:
    """SecurityError for an operation whose result would be far larger than any template needs."""
    match operator:
        case "*":
            _check_repeat(left, right)
            _check_repeat(right, left)
        case "**":
            if isinstance(right, int) and abs(right) > 64:
                raise SecurityError(f"it raises to the power of {right}; at most 64")
        case "%":
            if isinstance(left, str) and WIDE_FORMAT.search(left):
                raise SecurityError(f"it formats with the width in {left[:40]!r}")
        case "+":
            if isinstance(left, (list, tuple)) and isinstance(right, (list, tuple)):
                _check_items(len(left) + len(right))
    if isinstance(left, int) and isinstance(right, int):
        factor = right if operator == "**" else 1
        if left.bit_length() * max(factor, 1) + right.bit_length() > MAX_BITS:
            raise SecurityError("it computes with a number of more than a thousand digits")


def _check_repeat(value: object, times: object) -> None:
    if not isinstance(times, int):
        return
    if isinstance(value, str) and len(value) * times > MAX_CHARS:
        raise SecurityError(f"it repeats a text {times} times")
    if isinstance(value, (list, tuple)):
        _check_items(len(value) * times)


def _check_items(count: int) -> None:
    if count > MAX_ITEMS:
        raise SecurityError(f"it makes a list of {count} items; at most {MAX_ITEMS}")


def check_text_method(text: str, name: str, arguments: tuple[Any, ...], budget: Budget) -> None:
    """SecurityError for a method call on a text that would pad, cut or replace without end."""
    match name:
        case "ljust" | "rjust" | "center" | "zfill" | "expandtabs":
            if any(isinstance(each, int) and each > MAX_WIDTH for each in arguments):
                raise SecurityError(f"it pads a text with {name}{arguments}; at most {MAX_WIDTH}")
        case "replace":
            budget.spend(replaced_len(text, *arguments[:2]))
        case "join":
            items = list(arguments[0]) if arguments else []
            budget.spend_on(items)
            budget.spend(len(text) * len(items))
        case "split" | "rsplit" | "splitlines":
            mark = arguments[0] if arguments and isinstance(arguments[0], str) else SPACES
            _check_items(text.count(mark) if mark is not SPACES else sum(map(text.count, SPACES)))


def replaced_len(text: str, old: Any = "", new: Any = "", *_: Any) -> int:
    """Return an upper bound on the length of a text after replacing."""
    old, new = str(old), str(new)
    found = text.count(old) if old else len(text) + 1
    return len(text) + found * len(new)
