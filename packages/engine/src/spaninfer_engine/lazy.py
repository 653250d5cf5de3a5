"""Doors of this package that import what is asked for, when it is (PEP 562)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
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
