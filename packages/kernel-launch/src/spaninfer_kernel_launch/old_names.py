"""Deprecated names of a module: they keep working and warn."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from warnings import warn


def renamed(module: str, **objects: tuple[str, object]) -> Callable[[str], object]:
    """Return a module's `__getattr__`: by old name, the new one and the object it stands for.

    Reading an old name emits a DeprecationWarning that gives the new one.
    """
    known: Mapping[str, tuple[str, object]] = objects

    def find(name: str) -> object:
        if name not in known:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        new, found = known[name]
        warn(f"{module}.{name} is now {module}.{new}", DeprecationWarning, stacklevel=2)
        return found

    return find
