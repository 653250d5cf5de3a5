"""The sampling kernels that a step launches, as part of its CUDA graph or behind it. Pure."""

from __future__ import annotations

from typing import NamedTuple, Self

from spaninfer_engine.step.sampling import SamplingWork

FEWEST_ROWS = 7
"""Rows with typical_p that clusters of more than 8 blocks compute at once on an H200."""
FEW_ROWS = 15
"""Rows that clusters of 8 blocks, the largest, compute at once on an H200."""
ALL_ROWS = 65_535
"""As many rows as a launch can have."""


class SamplingLaunches(NamedTuple):
    """The kernels beside the one that samples tokens.

    Those of typical_p and of log-probabilities are launched for 0, FEW_ROWS or ALL_ROWS rows that
    have such work, those of typical_p for FEWEST_ROWS, too; the fewer they are, the more blocks
    compute each.
    """

    penalties: bool = False
    typical: int = 0
    logprobs: int = 0

    @classmethod
    def of(cls, work: SamplingWork) -> Self:
        """Return the launches of a step in which that many rows have work."""
        typical = FEWEST_ROWS if 0 < work.typical <= FEWEST_ROWS else _sized(work.typical)
        return cls(work.penalties > 0, typical, _sized(work.logprobs))

    @property
    def samples_as_plain(self) -> bool:
        """True if PLAIN samples the same tokens: log-probabilities may follow them."""
        return self._replace(logprobs=0) == PLAIN


PLAIN = SamplingLaunches()
"""Truncation and a random number per token alone: no other kernels."""


def _sized(num_rows: int) -> int:
    """Return the rows that a launch is for of which that many have work."""
    if num_rows > FEW_ROWS:
        return ALL_ROWS
    return FEW_ROWS if num_rows else 0
