"""Imports when something is asked for: doors of this package (PEP 562), and large libraries."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from typing import Any


def lazily(
    door: dict[str, Any], homes: Mapping[str, str]
) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """Return `__getattr__` and `__dir__` of a module that offers `homes`, its globals being `door`.

    Each home is a module below this package, and behind the last dot the name that it has there.
    All of the engine takes a second to import on a slow core: a process that answers requests for
    another's engine, or only says what options a command has, needs a part of it.
    """

    def get(name: str) -> object:
        if name not in homes:
            raise AttributeError(f"module {door['__name__']!r} has no attribute {name!r}")
        module, _, own = homes[name].rpartition(".")
        door[name] = getattr(import_module(f"{__package__}.{module}"), own)
        return door[name]

    def list_names() -> list[str]:
        return sorted({*door, *homes})

    return get, list_names


@contextmanager
def without_collector() -> Iterator[None]:
    """Look for no garbage inside of a block that imports: it makes hardly any.

    Looking for some took a fifth of the 0.5 s of CPU time in which backend cpu imports Numba (EPYC
    Zen 4).
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
