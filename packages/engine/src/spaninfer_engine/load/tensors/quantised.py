"""One quantised weight of a container: its format is known, its codes are read on demand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from spaninfer_op_reference import QuantizedWeight, WeightFormat, dequantize_weight


@dataclass(frozen=True, slots=True)
class QuantizedEntry:
    """An Entry of `reader` whose `read` expands to `dtype`, and `load` returns what is stored.

    `num_bytes` are those of the file: codes, scales and zeros.
    """

    format: WeightFormat
    shape: tuple[int, ...]
    dtype: np.dtype
    num_bytes: int
    load: Callable[[], QuantizedWeight]

    def read(self) -> NDArray[np.generic]:
        """The numbers, made anew; rounded to float32, then to `dtype`."""
        numbers = dequantize_weight(self.load())
        return numbers.astype(self.dtype, copy=False)

    def permuted(self, order: NDArray[np.integer]) -> QuantizedEntry:
        """The weight[N K] with its rows in another order."""
        return replace(self, load=lambda: self.load().rows(order))
