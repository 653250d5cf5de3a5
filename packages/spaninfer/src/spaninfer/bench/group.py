"""`bench` among other commands: what is below it is imported when it is asked for.

That takes a tenth of the CPU time in which the command line is imported: 80 of 800 ms (EPYC Zen 4).
"""

from __future__ import annotations

from collections.abc import MutableMapping
from functools import cache
from typing import Any, Final

import typer
from typer.core import TyperGroup
from typer.main import get_group

HELP: Final = "Time engine and kernels, count right answers, compare and draw records."


class Bench(TyperGroup):
    """The commands of `bench.commands`."""

    @property
    def commands(self) -> MutableMapping[str, Any]:
        """The commands by name."""
        return _commands()

    @commands.setter
    def commands(self, none: object) -> None:
        """Take none: Typer makes a group with those that it knows."""


@cache
def _commands() -> MutableMapping[str, Any]:
    from spaninfer.bench.commands import app

    return get_group(app).commands


app = typer.Typer(cls=Bench, no_args_is_help=True, pretty_exceptions_enable=False, help=HELP)
