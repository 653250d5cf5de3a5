"""The division of a step of a prefill among thread blocks."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, eq=False)
class Division:
    """The division of a step; compared by identity, as the key of what is prepared for it.

    `pack` heads share a tile; up to `sharers` thread blocks share tasks.
    """

    num_rows: int
    slices: int
    pack: int
    sharers: int
