"""Kernels that code asks for: refused where they are not compiled yet, or noted instead.

So all that a piece of code needs can be compiled side by side, before it runs:

    try:
        with known_only():
            step()                # a second start ends here
    except NotCompiled:
        with gathering() as wanted:
            step()                # prepares its kernels and launches them; they do nothing
        compile_all(wanted, tell)
        step()
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Final

from spaninfer_kernel_launch.cache import FileCache
from spaninfer_kernel_launch.source import Source
from spaninfer_kernel_launch.variant import Variant

STAND_IN: Final = Variant.of("nothing", Source(__package__, "csrc/nothing.cu"), {})
"""The kernel that is launched in place of those that are noted."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """A variant, the architecture that it is wanted for, and where it is kept."""

    variant: Variant
    arch: str
    cache: FileCache | None


_known_only: ContextVar[bool] = ContextVar("_known_only", default=False)
_noted: ContextVar[set[Wanted] | None] = ContextVar("_noted", default=None)


@contextmanager
def known_only() -> Iterator[None]:
    """Have NotCompiled raised where this thread asks for a kernel that its cache does not have."""
    token = _known_only.set(True)
    try:
        yield
    finally:
        _known_only.reset(token)


def is_known_only() -> bool:
    """Return whether kernels that are not known are refused at the moment."""
    return _known_only.get()


@contextmanager
def gathering() -> Iterator[set[Wanted]]:
    """Note which kernels this thread asks for; none is compiled, and what is launched does nothing.

    Launches that were prepared meanwhile do nothing afterwards either: forget them.
    """
    wanted: set[Wanted] = set()
    token = _noted.set(wanted)
    try:
        yield wanted
    finally:
        _noted.reset(token)


def note(wanted: Wanted) -> bool:
    """Return whether kernels are noted at the moment, after doing so."""
    noted = _noted.get()
    if noted is not None:
        noted.add(wanted)
    return noted is not None
