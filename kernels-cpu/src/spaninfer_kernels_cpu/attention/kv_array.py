"""Keys or values of a layer in the KV cache, as callers hand them in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from spaninfer_kernels_cpu.attention.checks import demand
from spaninfer_kernels_cpu.attention.spans import NO_ARRAY, StridedArray
from spaninfer_kernels_cpu.codegen.elements import (
    BFLOAT16,
    FLOAT16,
    FLOAT32,
    INT8,
    UINT4,
    Element,
)
from spaninfer_kernels_cpu.errors import DTypeError, ShapeError

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

    With `split`, the numbers from that one on have a zero and a scale of their own: scales are
    [S L K 4]. So are those of MLA's keys, whose rotary part is not as large as the latent.
    """

    numbers: NDArray[Any]
    scales: Floats | None = None
    split: int | None = None

    @property
    def kind(self) -> Element:
        """The element type of the numbers."""
        return KINDS[self.numbers.dtype]

    @property
    def size(self) -> int:
        """D: numbers of a head; two numbers of 4 bits share a byte."""
        size: int = self.numbers.shape[3]
        return 2 * size if self.kind == UINT4 else size

    @property
    def first_part(self) -> int:
        """The numbers of a head that the first scale is of."""
        return self.size if self.split is None else self.split

    @property
    def place(self) -> StridedArray:
        """The address of the numbers."""
        return _place_of(self.numbers)

    @property
    def scales_place(self) -> StridedArray:
        """The address of the scales, if there are any."""
        return NO_ARRAY if self.scales is None else _place_of(self.scales)


def _place_of(array: NDArray[Any]) -> StridedArray:
    return StridedArray(array.ctypes.data, *array.strides[:3])


def check_cache(keys: KVArray, values: KVArray) -> None:
    """Raise unless keys, values and their scales fit together."""
    kind = KINDS.get(keys.numbers.dtype)
    if kind is None or values.numbers.dtype != keys.numbers.dtype:
        names = ", ".join(str(dtype) for dtype in KINDS)
        raise DTypeError(
            f"keys hold {keys.numbers.dtype} and values {values.numbers.dtype}; the kernel takes "
            f"one of {names}"
        )
    demand("keys", keys.numbers, keys.numbers.dtype, "S L K D", ordered=1)
    demand("values", values.numbers, values.numbers.dtype, "S L K E", ordered=1)
    shape = keys.numbers.shape
    if 0 in shape[1:] or 0 in values.numbers.shape[1:]:
        raise ShapeError(
            f"keys {shape} and values {values.numbers.shape}: none of the axes (L K D) and (L K E) "
            "may be empty"
        )
    if shape[:3] != values.numbers.shape[:3]:
        raise ShapeError(f"keys {shape} and values {values.numbers.shape} differ in (S L K)")
    for name, scales in (("scales of keys", keys.scales), ("scales of values", values.scales)):
        if kind.is_quantised != (scales is not None):
            raise ShapeError(f"{name}: {kind.name} keys and values {_SCALES[kind.is_quantised]}")
        if scales is not None:
            count = 4 if name == "scales of keys" and keys.split is not None else 2
            demand(name, scales, np.float32, f"S L K {count}", ordered=1)
            if scales.shape != (*shape[:3], count):
                expected = (*shape[:3], count)
                raise ShapeError(f"{name}: expected shape {expected}, got {scales.shape}")
    _check_split(keys, values)


def _check_split(keys: KVArray, values: KVArray) -> None:
    """Raise unless two scales of a head are of two parts that begin with a byte."""
    if values.split is not None:
        raise ShapeError(f"values are split at {values.split}; only keys are")
    if keys.split is None:
        return
    if keys.scales is None or not 0 < keys.split < keys.size or keys.split * keys.kind.bits % 8:
        raise ShapeError(
            f"keys [... {keys.size}] of {keys.kind.name} are split at {keys.split}; give quantised "
            "ones and a number inside them, an even one of 4 bits"
        )


_SCALES = {True: "need scales[S L K 2] (zero, scale)", False: "have no scales"}
