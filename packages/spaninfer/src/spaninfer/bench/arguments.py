"""Arguments that commands below `spaninfer bench` share, and the models and engines they name."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from spaninfer_engine import ConfigError, Engine, EngineConfig
from spaninfer_engine.tools import build

from spaninfer.bench.shapes import SHAPES, folder_of, write_processor, write_tokenizer
from spaninfer.loading import loading
from spaninfer.option_groups import Deployment

Model = Annotated[
    str,
    typer.Argument(
        help=f"A published shape with random weights ({', '.join(SHAPES)}), or a model."
    ),
]
Only = Annotated[str | None, typer.Option(help="Comma-separated names; default: all.")]
Bars = Annotated[Path | None, typer.Option(help="A TOML file of targets, and of peers' results.")]
Side = Annotated[
    int, typer.Option(min=64, max=4096, help="Height and width of each image in pixels.")
]
Runs = Annotated[int, typer.Option(min=1, help="Repetitions of each measurement.")]


@dataclass(frozen=True, slots=True)
class GgufFiles:
    """GGUF files that engine and llama.cpp both read, instead of quantising while loading."""

    files: Annotated[
        str | None,
        typer.Option(
            help="Comma-separated types of GGUF files that engine and llama.cpp both read, "
            "instead of quantising while loading: BF16, Q8_0, Q4_0, Q4_K, Q5_K, Q6_K, "
            "IQ4_XS."
        ),
    ] = None
    operators: Annotated[
        bool,
        typer.Option("--operators", help="With --files, also record where a step's time goes."),
    ] = False

    def types(self, known: tuple[str, ...]) -> Collection[str]:
        """Return the types of files; ConfigError for one that is not known."""
        if self.files is not None:
            return chosen(self.files, known)
        if self.operators:
            raise ConfigError("--operators times engines that read GGUF files; add --files")
        return ()


def engine_on(deployment: Deployment, **asked: Any) -> Engine:
    """Return an engine with these fields of EngineConfig too, showing how far it has loaded."""
    deployment.keep_to_threads()
    with loading() as bar:
        parts = build(EngineConfig(**deployment.asked, **asked), bar)
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
