"""Errors of the command line: what was typed, and what should have been."""

from __future__ import annotations

from typing import Any, Final

import typer
from typer.core import TyperGroup

from spaninfer.other_engines import SAID

_UsageError: Final[type[Any]] = typer.BadParameter.__mro__[1]
"""The base of what a command line can have wrong, in click or in the copy of it within Typer."""

_EXAMPLES: Final = {
    "generate": "The model comes first, then the prompt in quotes: spaninfer generate demo "
    '"Once upon a time"',
    "convert": "The model comes first, then the folder to write: spaninfer convert demo "
    "./demo-int8 --quantize int8",
}
"""By command: its arguments in their order."""

_NUMBERS: Final = {"int_parsing": "a whole number", "float_parsing": "a number"}


class Commands(TyperGroup):
    """Commands whose usage errors say what to type instead."""

    def invoke(self, ctx: Any) -> Any:
        """Run a command."""
        try:
            return super().invoke(ctx)
        except _UsageError as refused:
            known = SAID.get(getattr(refused, "option_name", ""))
            if known is not None:
                refused.message, refused.possibilities = f"{refused.message}. {known}", None
            elif isinstance(refused, typer.BadParameter) and refused.__cause__ is not None:
                refused.message = sentence(refused)
            elif refused.ctx is not None and _is_of_arguments(refused):
                example = _EXAMPLES.get(refused.ctx.info_name)
                refused.message = ". ".join(filter(None, (refused.message, example)))
            raise


def _is_of_arguments(refused: Any) -> bool:
    """Return whether an argument of a command is missing, or is one too many."""
    is_missing = getattr(getattr(refused, "param", None), "param_type_name", None) == "argument"
    return is_missing or "unexpected extra" in refused.message


def sentence(refused: typer.BadParameter) -> str:
    """Return what is wrong with a value."""
    findings = getattr(refused.__cause__, "errors", None)
    if findings is None:
        return refused.message
    found = findings()[0]
    if found["type"] == "value_error":
        return str(found["ctx"]["error"])
    value = found["input"]
    if found["type"] in _NUMBERS:
        return f"{value!r} is not {_NUMBERS[found['type']]}."
    if found["type"] == "greater_than_equal":
        return f"{value} is too small; allowed is {found['ctx']['ge']} and more."
    if found["type"] == "less_than_equal":
        return f"{value} is too large; allowed is {found['ctx']['le']} at most."
    return f"{refused.message} (it is {value!r})"
