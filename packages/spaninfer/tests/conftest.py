"""The command line, called in this process as a shell would call it."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

# Read when consoles are made: tables are as wide and bars as lively, wherever the tests run.
os.environ |= {"COLUMNS": "200", "TERM": "xterm"}

from spaninfer.cli import app
from typer.testing import CliRunner, Result

Call = Callable[..., Result]


@pytest.fixture
def call() -> Call:
    """What runs `spaninfer` with arguments, and `typed` on its standard input."""

    def run(*arguments: str, typed: str | None = None) -> Result:
        return CliRunner().invoke(app, arguments, input=typed)

    return run


@pytest.fixture
def refusal(call: Call) -> Callable[..., str]:
    """What runs a command that must fail, and returns what it says in one line."""

    def run(*arguments: str) -> str:
        result = call(*arguments)
        assert result.exit_code == 2, result.output
        assert result.stdout == ""
        return " ".join(result.stderr.split())

    return run
