"""Values of options that are no values, said in a sentence of ours."""

from __future__ import annotations

from typing import Any, Final

import typer
from typer.core import TyperGroup

_NUMBERS: Final = {"int_parsing": "a whole number", "float_parsing": "a number"}


class Commands(TyperGroup):
    """Commands whose refused values are named, where Typer repeats what pydantic says of them."""

    def invoke(self, ctx: Any) -> Any:
        """Run a command."""
        try:
            return super().invoke(ctx)
        except typer.BadParameter as refused:
            refused.message = sentence(refused)
            raise


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
