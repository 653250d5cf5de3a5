"""Commands to the engine loop, from any thread."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from spaninfer_engine.output.processor import RequestStarted
from spaninfer_engine.request.request import FinishReason


@dataclass(frozen=True, slots=True)
class Add:
    """A request waits to begin."""

    opened: RequestStarted
    is_held: bool  # until the next command of any other kind


@dataclass(frozen=True, slots=True)
class HandOver:
    """Requests that were held may begin."""


@dataclass(frozen=True, slots=True)
class Stop:
    """Sequences end before the next step."""

    seq_ids: tuple[int, ...]
    reason: FinishReason


@dataclass(frozen=True, slots=True)
class Close:
    """No more requests are accepted."""

    at: float  # requests may finish until then


@dataclass(frozen=True, slots=True)
class Freeze:
    """No step is planned from now on, or again."""

    is_frozen: bool


@dataclass(frozen=True, slots=True)
class ForgetPrefixes:
    """Nothing computed so far is shared with later requests."""


@dataclass(frozen=True, slots=True)
class Drop:
    """Every request ends with an error, and everything is released."""


@dataclass(frozen=True, slots=True)
class Wake:
    """Spans have been read from disk, or written to it."""


Command: TypeAlias = Add | HandOver | Stop | Close | Freeze | ForgetPrefixes | Drop | Wake
