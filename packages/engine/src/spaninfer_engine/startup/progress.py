"""Callbacks for the progress of a start: stages, and units of a stage."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol


class Progress(Protocol):
    """A callback for the progress of loading."""

    def __call__(self, stage: str, done: int, total: int) -> None:
        """`done` of `total` units of a stage are finished; of one unit, how much is unknown."""
        ...


def silent(stage: str, done: int, total: int) -> None:
    """Report nothing."""


def stage_of(progress: Progress, stage: str) -> Callable[[int, int], None]:
    """Return the callback for the units of one stage."""
    return lambda done, total: progress(stage, done, total)
