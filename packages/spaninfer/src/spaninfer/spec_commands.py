"""The commands of `spaninfer spec`: architectures, as they are built in and as users write them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from spaninfer import show

app = typer.Typer(no_args_is_help=True, help="Look at architectures, check your own.")


@app.command("list")
def list_specs() -> None:
    """List the architectures that are built in."""
    show.specs()


@app.command("show")
def show_spec(name: Annotated[str, typer.Argument(help="A name printed by 'spec list'.")]) -> None:
    """Print one architecture with everything it inherits."""
    with show.errors_as_sentences():
        show.spec(name)


@app.command("check")
def check_spec(
    file: Annotated[Path, typer.Argument(help="A spec file.")],
    checkpoint: Annotated[
        Path | None, typer.Option(help="A checkpoint to check the spec against.")
    ] = None,
) -> None:
    """Say what is unknown, unread, missing or of the wrong shape."""
    with show.errors_as_sentences():
        raise typer.Exit(0 if show.check(file, checkpoint) else 1)
