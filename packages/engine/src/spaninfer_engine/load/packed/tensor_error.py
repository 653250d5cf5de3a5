"""The error that rounding makes in a tensor, added up from as many of its rows as are compared."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod, sqrt

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class TensorError:
    """The rounding error of a tensor, or of several that are packed as one.

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


class ErrorSums:
    """Sums of squares of numbers and of their errors, and the largest error."""

    def __init__(self) -> None:
        self._errors = self._squares = self._largest = 0.0
        self._count = 0

    def add(self, numbers: NDArray[np.float64], rounded: NDArray[np.floating]) -> None:
        """Compare some rows with what they were rounded to."""
        error = rounded - numbers
        self._errors += float((error**2).sum())
        self._squares += float((numbers**2).sum())
        self._largest = max(self._largest, float(np.abs(error).max()))
        self._count += numbers.size

    def of(self, name: str, shape: tuple[int, ...], bits: float) -> TensorError:
        """Return the error of the tensor that the rows are of; zeros where all numbers are."""
        if not self._squares:
            return TensorError(name, shape, bits, 0.0, 0.0)
        size = sqrt(self._squares / self._count)
        return TensorError(
            name, shape, bits, sqrt(self._errors / self._squares), self._largest / size
        )
