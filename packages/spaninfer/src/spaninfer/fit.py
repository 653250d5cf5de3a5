"""The plan of `spaninfer fit`: what a memory, here or elsewhere, holds of a model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import typer
from spaninfer_engine import ConfigError, EngineConfig
from spaninfer_engine.tools import (
    Capacity,
    Machine,
    Place,
    Room,
    capacity,
    free_bytes,
    has_weights,
    locate,
    open_checkpoint,
    parse_bytes,
    this_machine,
)

LENGTHS = (2048, 8192, 32768, 1 << 40)
"""Tokens of a request, of the columns where none were requested; the last is the whole context."""

ANY_GPU = Machine(has_torch=True, has_cuda=True, has_kernels=True, capability=(9, 0))


@dataclass(frozen=True, slots=True)
class PlannedFor:
    """The memory to plan for; without either, this machine's."""

    gpu_memory: Annotated[
        str | None,
        typer.Option(
            help="Plan for a GPU with this much memory, such as 24GiB; it need not be in this "
            "machine."
        ),
    ] = None
    host_memory: Annotated[
        str | None, typer.Option(help="Plan for a CPU with this much free memory.")
    ] = None

    def place(self, asked: EngineConfig) -> Place:
        """Return the place; ConfigError where two are named."""
        if self.gpu_memory is not None and self.host_memory is not None:
            raise ConfigError(
                "--gpu-memory and --host-memory cannot be combined; run the command once for each"
            )
        if self.gpu_memory is not None:
            return Place(ANY_GPU, parse_bytes(self.gpu_memory))
        if self.host_memory is not None:
            return Place(this_machine(with_gpu=False), parse_bytes(self.host_memory))
        machine = this_machine(with_gpu=asked.backend not in ("cpu", "reference"))
        return Place(machine, free_bytes(machine))


def planned(asked: EngineConfig, on: PlannedFor, lengths: Sequence[int]) -> Capacity:
    """Return what a model leaves room for; raises as a start does."""
    path, _ = locate(asked.model)
    with open_checkpoint(path, with_weights=not path.is_dir() or has_weights(path)) as checkpoint:
        return capacity(asked, checkpoint, on.place(asked), lengths or LENGTHS)


@dataclass(frozen=True, slots=True)
class Wanted:
    """The demand: that many requests at once, of that many tokens; None: any number, any length."""

    requests: int | None
    max_len: int | None

    def __str__(self) -> str:
        """Return it in words."""
        if self.requests is None and self.max_len is None:
            return "a request"
        each = "the whole context" if self.max_len is None else f"{self.max_len:,} tokens"
        return f"{self.requests or 1:,} requests of {each}"

    def fits(self, room: Room) -> bool:
        """Return whether there is room for it."""
        if self.requests is None and self.max_len is None:
            return room.longest > 0
        return max(room.requests.items())[1] >= (self.requests or 1)
