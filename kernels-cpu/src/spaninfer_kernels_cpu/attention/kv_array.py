"""Keys or values of a layer in the KV cache, as callers hand them in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from spaninfer_kernels_cpu.attention.spans import NO_ARRAY, StridedArray
from spaninfer_kernels_cpu.codegen.elements import (
    BFLOAT16,
    FLOAT16,
    FLOAT32,
    INT8,
    UINT4,
    Element,
)

Floats = NDArray[np.float32]

KINDS: dict[np.dtype[Any], Element] = {
    np.dtype(np.float32): FLOAT32,
    np.dtype(ml_dtypes.bfloat16): BFLOAT16,
    np.dtype(np.float16): FLOAT16,
    np.dtype(np.int8): INT8,
    np.dtype(np.uint8): UINT4,
}
"""What keys and values of a dtype hold."""


@dataclass(frozen=True, slots=True)
class KVArray:
    """Keys or values of a layer: numbers[S L K D] of a dtype of KINDS, and of quantised ones
    scales[S L K 2], a zero and a scale (float32); strided but for the last axis.
    """

    numbers: NDArray[Any]
    scales: Floats | None = None

    @property
    def kind(self) -> Element:
        """What the numbers are."""
        return KINDS[self.numbers.dtype]

    @property
    def size(self) -> int:
        """D: numbers of a head; two numbers of 4 bits share a byte."""
        size: int = self.numbers.shape[3]
        return 2 * size if self.kind == UINT4 else size

    @property
    def place(self) -> StridedArray:
        """Where the numbers lie."""
        return _place_of(self.numbers)

    @property
    def scales_place(self) -> StridedArray:
        """Where the scales lie, if there are any."""
        return NO_ARRAY if self.scales is None else _place_of(self.scales)


def _place_of(array: NDArray[Any]) -> StridedArray:
    return StridedArray(array.ctypes.data, *array.strides[:3])
