"""Values whose hash takes long, such as layouts, as keys that are compared by identity."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Generic, TypeVar

ValueT = TypeVar("ValueT")


@dataclass(frozen=True, slots=True, eq=False)
class Interned(Generic[ValueT]):
    """A value; equal ones have the same object, whose hash takes no time."""

    value: ValueT


def interned(value: ValueT) -> Interned[ValueT]:
    """Return the object of this value, which is hashable.

    >>> interned((8, "float16")) is interned((8, "float16"))
    True
    """
    return _object_of(value)


@lru_cache(4096)  # a value that was forgotten gets another object, for which all is prepared again
def _object_of(value: Any) -> Interned[Any]:
    return Interned(value)
