"""Size of a JSON body in names and values, counted before it is parsed.

What makes Python objects of JSON holds the interpreter until it has made all of them: 24 MB of
"[1]," took 23 s, in which no stream of anybody moved. It is the values that cost, hardly the bytes.
So they are counted first, piece by piece, by numpy, which lets other threads run meanwhile.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from spaninfer_serving.wire.errors import Problem

# What parses within 0.1 s: a name or a value takes about 1 µs, an id in a list 0.1 µs.
MAX_MARKS = 1 << 16
MAX_NUMBERS = 1 << 20

PIECE = 1 << 18  # bytes looked at together

MARKS = b"[{:,"

_KIND = np.zeros(256, np.uint8)
_KIND[list(MARKS)] = _MARK = 1
_KIND[list(b"-0123456789")] = _NUMBER = 2
_COMMA, _QUOTE, _BACKSLASH, _SPACE = b',"\\ '


@dataclass(frozen=True, slots=True)
class Contents:
    """The properties of a body that make it expensive to parse."""

    marks: int  # [ { : and , outside of strings: names and values, or one less
    numbers: int  # commas between two numbers, which `marks` leaves out


def check_contents(body: bytes) -> None:
    """Raise Problem for a body that would take long to parse; it need not be valid JSON."""
    if len(body) <= MAX_MARKS or _num_marks(body) <= MAX_MARKS:
        return  # also with those inside of strings: 3 ms for 2 MB of text, looking closer 15
    contents = count(body)
    if contents.marks > MAX_MARKS or contents.numbers > MAX_NUMBERS:
        raise Problem(
            400,
            f"the body holds too many values; allowed are {MAX_MARKS}, and {MAX_NUMBERS} numbers "
            "in lists",
            code="too_many_values",
        )


def _num_marks(body: bytes) -> int:
    """Return how many marks a body holds, those inside of strings included.

    By numpy, which lets other threads run: `bytes.count` takes 14 ms for 2 MB of text with commas,
    and holds the interpreter in a thread that may lose its CPU meanwhile.
    """
    data = np.frombuffer(body, np.uint8)
    return sum(int(np.count_nonzero(data == mark)) for mark in MARKS)


def count(body: bytes) -> Contents:
    """Return what a body holds; stops early where that is more than is allowed."""
    data = np.frombuffer(body, np.uint8)
    marks = numbers = 0
    in_string = is_escaped = False
    last = np.zeros(2, np.uint8)  # outside of strings, and no space
    for start in range(0, len(data), PIECE):
        piece = data[start : start + PIECE]
        escaped, is_escaped = _escaped(piece, is_escaped)
        strings = (np.cumsum((piece == _QUOTE) & ~escaped) + in_string) & 1
        in_string = bool(strings[-1])
        kept = np.concatenate((last, piece[(strings == 0) & (piece > _SPACE)]))
        kind = _KIND[kept]
        listed = (kind[2:] == _NUMBER) & (kept[1:-1] == _COMMA) & (kind[:-2] == _NUMBER)
        numbers += int(np.count_nonzero(listed))
        marks += int(np.count_nonzero(kind[2:] == _MARK)) - int(np.count_nonzero(listed))
        last = kept[-2:]
        if marks > MAX_MARKS or numbers > MAX_NUMBERS:
            break
    return Contents(marks, numbers)


def _escaped(piece: npt.NDArray[np.uint8], first_is: bool) -> tuple[npt.NDArray[np.bool_], bool]:
    """Return which bytes stand behind an odd number of backslashes; and whether the next does."""
    is_backslash = piece == _BACKSLASH
    if not first_is and not is_backslash.any():
        return is_backslash, False
    places = np.arange(len(piece))
    before = np.maximum.accumulate(np.where(is_backslash, -1, places))  # the last that is none
    odd = ((places - before + (first_is & (before < 0))) & 1).astype(np.bool_)
    return np.concatenate(([first_is], odd[:-1])), bool(odd[-1])
