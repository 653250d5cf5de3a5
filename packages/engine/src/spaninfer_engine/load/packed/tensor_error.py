"""The error that packing makes in a tensor, apart from what measures it: that imports Numba."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod


@dataclass(frozen=True, slots=True)
class TensorError:
    """What packing changed of a tensor, or of several that are packed as one.

    bits          of a weight, scales included
    relative_rms  root of the mean square of the errors, by that of the numbers
    largest       the largest error, by the root of the mean square of the numbers
    """

    name: str
    shape: tuple[int, ...]
    bits: float
    relative_rms: float
    largest: float

    @property
    def num_weights(self) -> int:
        """Numbers of the tensor."""
        return prod(self.shape)
