"""Measures a model that sees: conversations one and 32 at a time, and decodes beside pictures."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Final

import typer
from spaninfer_engine import Engine

from spaninfer.bench.arguments import Runs, Side
from spaninfer.bench.engine import Note
from spaninfer.bench.photographs import check_takes_images
from spaninfer.bench.vision.conversations import measure_conversations
from spaninfer.bench.vision.stalls import measure_stalls

CONVERSATIONS: Final = {"one": 1, "many": 32}
"""How many there are at a time, by the name of the workload."""

WORKLOADS: Final = (*CONVERSATIONS, "stalls")


@dataclass(frozen=True, slots=True)
class Size:
    """The height and width of pictures, runs of conversations, and seconds of each window."""

    side: Side = 1024
    runs: Runs = 3
    seconds: Annotated[
        float, typer.Option(min=0.1, max=60, help="How long decodes are watched.")
    ] = 6.0


def measure_vision(
    engine: Engine, names: Collection[str], size: Size, note: Note
) -> Iterator[dict[str, Any]]:
    """Yield the records of workloads; UnsupportedTask for a model that takes no images."""
    check_takes_images(engine)
    for name, at_once in CONVERSATIONS.items():
        if name in names:
            yield from measure_conversations(engine, at_once, size.side, size.runs, note)
    if "stalls" in names:
        yield from measure_stalls(engine, size.side, size.seconds, note)
