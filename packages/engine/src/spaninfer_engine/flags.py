"""The boolean fields of a dataclass, where "no" would be true."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields

import numpy as np

Flags = Sequence[tuple[str, bool]]
"""Names of fields, and whether each may be None."""


def settle_flags(
    of: object, flags: Flags, refused: Callable[[str, object, str], Exception]
) -> None:
    """Store the booleans of a dataclass as Python's, also in a frozen one; numpy's are others.

    Raises what `refused` makes of the name of a field, of what it holds instead, and of what is
    allowed.
    """
    for name, may_be_none in flags:
        value = getattr(of, name)
        if isinstance(value, bool) or (value is None and may_be_none):
            continue
        if not isinstance(value, np.bool_):
            raise refused(name, value, "True or False" + (", or None" if may_be_none else ""))
        object.__setattr__(of, name, bool(value))


def flags_of(kind: type) -> Flags:
    """Return the boolean fields of a dataclass."""
    optional = {"bool": False, "bool | None": True}
    return tuple((each.name, optional[each.type]) for each in fields(kind) if each.type in optional)
