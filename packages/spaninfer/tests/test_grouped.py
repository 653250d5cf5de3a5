from dataclasses import dataclass
from typing import Annotated

import pytest
import typer
from spaninfer.grouped import spread
from typer.testing import CliRunner


@dataclass(frozen=True)
class Paper:
    size: Annotated[str, typer.Option(help="Its format.")] = "A4"
    copies: Annotated[int | None, typer.Option("--copies", "-n", help="How many.")] = None


@pytest.fixture
def called():
    """What the command was called with."""
    return []


@pytest.fixture
def app(called):
    app = typer.Typer()

    @app.command()
    @spread
    def print_(
        text: Annotated[str, typer.Argument()],
        *,
        paper: Paper,
        quiet: Annotated[bool, typer.Option("--quiet")] = False,
    ) -> None:
        """Print a text."""
        called.append((text, paper, quiet))

    return app


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        ("hello", ("hello", Paper(), False)),
        ("hello --size A5 -n 3 --quiet", ("hello", Paper("A5", 3), True)),
        ("--copies 2 hello", ("hello", Paper(copies=2), False)),
    ],
)
def test_a_group_is_given_option_by_option_and_arrives_as_one(app, called, typed, expected):
    result = CliRunner().invoke(app, typed.split())

    assert result.exit_code == 0, result.output
    assert called == [expected]


def test_help_names_the_options_of_a_group_in_its_place(app):
    said = CliRunner().invoke(app, ["--help"]).stdout

    assert "Print a text." in said
    places = [said.index(name) for name in ("--size", "--copies", "--quiet")]
    assert places == sorted(places)
    assert "--paper" not in said


def test_a_value_of_the_wrong_type_is_refused_as_that_of_any_option(app, called):
    result = CliRunner().invoke(app, ["hello", "--copies", "many"])

    assert result.exit_code == 2
    assert called == []
