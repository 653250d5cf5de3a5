"""Arguments that commands below `spaninfer bench` share, and the models and engines they name."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any

import typer
from spaninfer_engine import ConfigError, Engine, EngineConfig
from spaninfer_engine.tools import build

from spaninfer.bench.shapes import SHAPES, folder_of, write_processor, write_tokenizer
from spaninfer.loading import loading
from spaninfer.threads import keep_to

Model = Annotated[
    str,
    typer.Argument(
        help=f"A published shape with random weights ({', '.join(SHAPES)}), or a model."
    ),
]
Only = Annotated[str | None, typer.Option(help="Comma-separated names; default: all.")]
Bars = Annotated[Path | None, typer.Option(help="A TOML file of targets, and of peers' results.")]
Runs = Annotated[int, typer.Option(min=1, help="Repetitions of each measurement.")]


def engine_on(threads: int | None, **asked: Any) -> Engine:
    """Return an engine with these fields of EngineConfig, its progress shown while it loads."""
    if threads is not None:
        keep_to(threads)
    with loading() as bar:
        parts = build(EngineConfig(**asked), bar)
    return Engine(parts)


def asked_of(model: str, stack: ExitStack, *, text: bool = False) -> dict[str, Any]:
    """Return the fields of EngineConfig for a shape, whose folder `stack` removes, or a model.

    For requests of `text`, and of pictures, a shape gets a tokenizer and what says how pictures
    are prepared.
    """
    if model not in SHAPES:
        return {"model": model}
    folder = stack.enter_context(folder_of(model))
    if text:
        write_tokenizer(folder, SHAPES[model]["vocab_size"])
        if "vision_config" in SHAPES[model]:
            write_processor(folder)
    return {"model": str(folder), "weights": "dummy"}


def chosen(only: str | None, known: tuple[str, ...]) -> set[str]:
    """Return the names in a list with commas; all that are known where there is no list."""
    if only is None:
        return set(known)
    names = {name.strip() for name in only.split(",")}
    if unknown := sorted(names - set(known)):
        raise ConfigError(f"unknown name {unknown[0]!r}; there are {', '.join(known)}")
    return names
