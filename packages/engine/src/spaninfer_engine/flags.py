"""The boolean fields of a dataclass, where "no" would be true."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from functools import cache
from typing import Any

import numpy as np


def settle_flags(of: Any, refused: Callable[[str, object, str], Exception]) -> None:
    """Store the booleans of a dataclass as Python's, also in a frozen one; numpy's are others.

    Raises what `refused` makes of the name of a field, of what it holds instead, and of what is
    allowed.
    """
    for name, may_be_none in _flags(type(of)):
        value = getattr(of, name)
        if isinstance(value, bool) or (value is None and may_be_none):
            continue
        if not isinstance(value, np.bool_):
            raise refused(name, value, "True or False" + (", or None" if may_be_none else ""))
        object.__setattr__(of, name, bool(value))


@cache
def _flags(kind: type) -> tuple[tuple[str, bool], ...]:
    """Return the names of the boolean fields of a dataclass, and whether they may be None."""
    optional = {"bool": False, "bool | None": True}
    return tuple((each.name, optional[each.type]) for each in fields(kind) if each.type in optional)
