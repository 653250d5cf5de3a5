"""The place of a process among those that compute one model together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Rank:
    """Process number `index` of `count`; raises ValueError for a number that is not among them.

    >>> Rank(1, 2)
    Rank(index=1, count=2)
    >>> Rank(2, 2)
    Traceback (most recent call last):
    ValueError: rank 2 of 2; at least 0, less than 2
    """

    index: int = 0
    count: int = 1

    def __post_init__(self) -> None:
        """Raise for a rank that does not exist."""
        if not 0 <= self.index < self.count:
            raise ValueError(
                f"rank {self.index} of {self.count}; at least 0, less than {self.count}"
            )


ALONE: Final = Rank()
"""The only process."""
