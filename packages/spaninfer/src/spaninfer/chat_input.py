"""Input of a chat: lines, and messages of several lines."""

from __future__ import annotations

from contextlib import suppress

with suppress(ImportError):  # where there is none, as on Windows, the console edits lines
    import readline  # noqa: F401  # gives `input` arrow keys and the questions asked before

FENCE = '"""'


def read_message() -> str:
    """Return the next message; raises EOFError at the end of the input.

    A line that ends with a backslash goes on in the next one; three quotation marks begin a
    message of any lines, and end it.
    """
    line = input("> ")
    if line.lstrip().startswith(FENCE):
        return _fenced(line.lstrip().removeprefix(FENCE))
    lines = [line]
    while lines[-1].endswith("\\"):
        lines[-1] = lines[-1][:-1]
        lines.append(input("… "))
    return "\n".join(lines)


def _fenced(line: str) -> str:
    lines = [line]
    while not lines[-1].rstrip().endswith(FENCE):
        lines.append(input("… "))
    lines[-1] = lines[-1].rstrip().removesuffix(FENCE)
    return "\n".join(lines).strip("\n")
